//! How long messages took from their arrival to their reader: told to whom asked, in the order in which it was asked, with the layout of
//! Linux.

use harness::rds::{GENERATION, Nodes, at};
use rds_nostd::cmsg::{Abi, Cmsg, ControlReader, ControlWriter, RxTrace, RxTraceOption};
use rds_nostd::{Arrival, MsgFlags, RdsConfig, RdsError, SocketHandle};

const US: u64 = 1_000;

fn nodes(seed: u64) -> (Nodes, [SocketHandle; 2]) {
    let config =
        RdsConfig { seed, send_buffer: 1 << 20, receive_buffer: 1 << 20, ..RdsConfig::new(GENERATION) };
    let mut nodes = Nodes::with(seed, "none", 2, config);
    let sockets = [nodes.bind(0, 4000), nodes.bind(1, 5000)];
    (nodes, sockets)
}

/// What the next message of node 1 has beside it.
fn read(nodes: &mut Nodes, socket: SocketHandle, flags: MsgFlags) -> (usize, Vec<Cmsg>) {
    let mut bytes = [0; 128];
    let mut buffer = vec![0; 1 << 20];
    let mut writer = ControlWriter::new(Abi::LINUX, &mut bytes);
    let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
    let arrival = rds.recvmsg_control(adapter, socket, &mut buffer, flags, &mut writer).expect("readable");
    let Arrival::Message(message) = arrival else { panic!("{arrival:?}") };
    let (len, cut) = writer.finish();
    assert!(!cut);
    (message.len, ControlReader::new(Abi::LINUX, &bytes[..len]).map(|found| found.expect("one")).collect())
}

/// Node 1 has the next message, and nobody has read it for so long. How long it was on its way.
fn arrives(nodes: &mut Nodes, sockets: [SocketHandle; 2], len: usize, unread: u64) -> u64 {
    let [near, far] = sockets;
    nodes.until("there is room", |nodes| nodes.send(0, near, at(1, 5000), &vec![7; len]).is_ok());
    let sent = nodes.world.now();
    nodes.until("it is there", |nodes| nodes.rds[1].is_readable(far).expect("open"));
    let took = nodes.world.now() - sent;
    nodes.world.pass(unread);
    took
}

fn only(found: Vec<Cmsg>) -> RxTrace {
    match found[..] {
        [Cmsg::RxpathLatency(trace)] => trace,
        _ => panic!("{found:?}"),
    }
}

/// All parts, some of them, in any order; messages of one frame and of many; what nobody asked for is not told.
#[test]
fn what_was_asked_for_is_told() {
    let (mut nodes, sockets) = nodes(190);
    let [_, far] = sockets;
    arrives(&mut nodes, sockets, 64, 0);
    assert_eq!(read(&mut nodes, far, MsgFlags::empty()), (64, vec![]), "nobody asked");
    arrives(&mut nodes, sockets, 64, 500 * US);
    let option = |bytes: [u8; 4]| RxTraceOption::decode(&bytes).expect("positions");
    nodes.rds[1].set_rxpath_latency(far, option([3, 2, 1, 0])).expect("open");
    let (_, found) = read(&mut nodes, far, MsgFlags::empty());
    assert_eq!(only(found).nanoseconds, [0; 3], "it was there before");
    for (len, unread) in [(64, 300 * US), (1, 0), (0, 10 * US), (200_000, 700 * US), (5000, 1)] {
        let took = arrives(&mut nodes, sockets, len, unread);
        for flags in [MsgFlags::PEEK, MsgFlags::empty()] {
            let (read, found) = read(&mut nodes, far, flags);
            let RxTrace { option: asked, nanoseconds: [delivered, whole, start] } = only(found);
            assert_eq!((read, asked), (len, option([3, 2, 1, 0])));
            assert!(
                (unread..unread + 200 * US).contains(&delivered),
                "{len} bytes: {delivered} of {unread} ns"
            );
            // The clock stands while a node does something.
            assert_eq!(start, 0, "{len} bytes");
            // Nothing is reassembled of one frame; two come at once; 49 are most of what there is to wait for.
            let expected = if len > 100_000 { took / 2..took } else { 0..1 };
            assert!(expected.contains(&whole), "{len} bytes: {whole} of {took} ns");
        }
    }
    arrives(&mut nodes, sockets, 64, 300 * US);
    nodes.rds[1].set_rxpath_latency(far, option([1, 2, 0, 0])).expect("open");
    let (_, found) = read(&mut nodes, far, MsgFlags::empty());
    let RxTrace { nanoseconds: [delivered, nothing, more], .. } = only(found);
    assert!(delivered >= 300 * US && (nothing, more) == (0, 0));
    // Off again, for one that is there and for the next.
    arrives(&mut nodes, sockets, 64, 0);
    nodes.rds[1].set_rxpath_latency(far, RxTraceOption::default()).expect("open");
    assert_eq!(read(&mut nodes, far, MsgFlags::empty()), (64, vec![]));
    arrives(&mut nodes, sockets, 64, 0);
    assert_eq!(read(&mut nodes, far, MsgFlags::empty()), (64, vec![]));
    let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
    rds.close(adapter, far).expect("open");
    assert_eq!(rds.set_rxpath_latency(far, option([0; 4])), Err(RdsError::BadSocket));
    nodes.close();
}

/// A socket that wants to know changes nothing for the others but the time that it takes; nothing is lost, doubled, or late.
#[test]
fn others_are_not_told_and_get_all() {
    let (mut nodes, [near, far]) = nodes(191);
    let other = nodes.bind(1, 5001);
    let option = RxTraceOption::decode(&[1, 2, 0, 0]).expect("positions");
    nodes.rds[1].set_rxpath_latency(far, option).expect("open");
    for number in 0..300u64 {
        for port in [5000, 5001] {
            let len = (number * 37 % 9000) as usize;
            while nodes.send(0, near, at(1, port), &vec![number as u8; len]).is_err() {
                nodes.step();
            }
        }
        for (socket, told) in [(far, 1), (other, 0)] {
            nodes.until("it is there", |nodes| nodes.rds[1].is_readable(socket).expect("open"));
            let (len, found) = read(&mut nodes, socket, MsgFlags::empty());
            assert_eq!((len, found.len()), ((number * 37 % 9000) as usize, told), "message {number}");
        }
    }
    nodes.close();
}
