//! What sockets of one node do to each other: messages that never leave it, operations that they share a table of.

use harness::rds::{GENERATION, LIMIT, Nodes, at};
use rds_nostd::{Control, Msg, RdmaArgs, RdmaFlags, RdsConfig, RdsError};
use std::net::SocketAddr;

/// As Linux's loop transport: a socket on a loopback address that nobody reads holds its senders back, but no port of any map is marked
/// for it, and peers go on.
#[test]
fn loopback_knows_no_congestion_and_takes_nothing_of_peers() {
    let mut nodes = Nodes::new(61, "none");
    let here = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    let (from, full) = (rds.bind(here(4000)).expect("free"), rds.bind(here(5000)).expect("free"));
    rds.set_receive_buffer(adapter, full, 5_000).expect("open");
    let mut sent = 0;
    let refused = loop {
        match rds.sendmsg(adapter, from, Msg::to(&here(5000), &[7; 1000])) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 2000, "nothing is endless");
    };
    assert_eq!((refused, refused.errno()), (RdsError::NoBufferSpace, 11));
    assert!(sent > 5, "the limit is soft");
    // The same port of the node's other address is open to peers, and so is everything else.
    let (receiver, sender) = (nodes.bind(0, 5000), nodes.bind(1, 4000));
    let end = nodes.world.now() + LIMIT;
    for number in 0..100u8 {
        while nodes.send(1, sender, at(0, 5000), &[number; 3000]).is_err() {
            assert!(nodes.world.now() < end, "room");
            nodes.step();
        }
        let mut buffer = [0; 4000];
        assert_eq!(nodes.receive(0, receiver, &mut buffer).len, 3000);
        assert!(buffer[..3000].iter().all(|byte| *byte == number));
    }
    assert_eq!(nodes.rds[0].counters().cong_update_queued, 0);
    assert_eq!(nodes.rds[1].counters().cong_send_error, 0);
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    rds.close(adapter, full).expect("open");
    assert_eq!(rds.sendmsg(adapter, from, Msg::to(&here(6000), b"dropped")), Ok(None), "there is room again");
    nodes.close();
}

/// A control block without anything in it is none, wherever the message goes; between loopback addresses nothing else goes along, as on Linux.
#[test]
fn nothing_goes_along_between_loopback_addresses() {
    let mut nodes = Nodes::new(62, "none");
    let here = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let (one, other) = (nodes.bind(0, 4000), nodes.bind(0, 4001));
    let memory = nodes.adapters[0].dma_alloc(4096, 4096).expect("memory");
    let none = Control::default();
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    assert_eq!(rds.sendmsg(adapter, one, Msg::to(&at(0, 4001), b"plain").with(&none)), Ok(None));
    let loops = rds.bind(here(4000)).expect("free");
    let map = Some((memory.slice(0, 100).expect("inside"), RdmaFlags::empty()));
    let control = Control { map, ..none };
    let refused = rds.sendmsg(adapter, loops, Msg::to(&here(4000), b"x").with(&control));
    assert_eq!(refused, Err(RdsError::NotSupported));
    let counters = rds.counters();
    assert_eq!((counters.mr_8k_alloc, counters.mr_8k_free), (0, 0));
    let mut buffer = [0; 16];
    assert_eq!(nodes.receive(0, other, &mut buffer).len, 5);
    assert_eq!(nodes.rds[0].is_readable(loops), Ok(false));
    nodes.close_with([memory]);
}

/// A socket that does not hear how its operations ended may have half of the table, and no more.
#[test]
fn ends_that_nobody_hears_of_hold_nobody_else_up() {
    let config = RdsConfig { seed: 63, isolate_peers: false, ..RdsConfig::new(GENERATION) };
    let mut nodes = Nodes::with(63, "none", 2, config);
    let (deaf, hears) = (nodes.bind(0, 4000), nodes.bind(0, 4001));
    let owner = nodes.bind(1, 5000);
    let memory = [0, 1].map(|node| nodes.adapters[node].dma_alloc(4096, 4096).expect("memory"));
    let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
    let region = memory[1].slice(0, 64).expect("inside");
    let cookie = rds.get_mr(adapter, owner, region, RdmaFlags::empty()).expect("offered");
    let local = [memory[0].slice(0, 64).expect("inside")];
    let read = |nodes: &mut Nodes, socket, user_token| {
        let flags = RdmaFlags::NOTIFY_ME | RdmaFlags::SILENT;
        let args = RdmaArgs { cookie, remote_offset: 0, remote_bytes: 64, local: &local, flags, user_token };
        let control = Control { rdma: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
        rds.sendmsg(adapter, socket, Msg::to(&at(1, 5000), &[]).with(&control))
    };
    let pass = |nodes: &mut Nodes| {
        let end = nodes.world.now() + 50_000_000;
        nodes.until("some time passes", |nodes| nodes.world.now() >= end);
    };
    let mut accepted = 0;
    while read(&mut nodes, deaf, accepted).is_ok() {
        accepted += 1;
        pass(&mut nodes);
        assert!(accepted < 100, "for ever");
    }
    assert_eq!(accepted, 8, "half of 16");
    for token in 100..140 {
        assert_eq!(read(&mut nodes, hears, token), Ok(None), "another socket");
        pass(&mut nodes);
        let told = nodes.rds[0].take_notification(hears).expect("open").expect("told");
        assert_eq!(told.user_token, token);
    }
    assert_eq!(read(&mut nodes, deaf, 8), Err(RdsError::Exhausted));
    let first = nodes.rds[0].take_notification(deaf).expect("open").expect("told");
    assert_eq!(first.user_token, 0, "oldest first");
    assert_eq!(read(&mut nodes, deaf, 8), Ok(None), "one was heard of");
    pass(&mut nodes);
    nodes.close_with(memory);
}
