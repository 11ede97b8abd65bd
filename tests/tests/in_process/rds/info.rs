//! What RDS tells of itself, types of service, and why connections end.

use dat_nostd::CloseFlags;
use harness::dat::address;
use harness::net::usual_card;
use harness::rds::{GENERATION, Nodes, at, message};
use rdma_fabric::capture::Capture;
use rds_nostd::{
    ConnectionFlags, DownReason, InfoError, InfoWritten, RDS_INFO_CONNECTIONS, RDS_INFO_COUNTERS,
    RDS_INFO_IB_CONNECTIONS, RDS_INFO_RECV_MESSAGES, RDS_INFO_RETRANS_MESSAGES, RDS_INFO_SEND_MESSAGES,
    RDS_INFO_SOCKETS, RDS6_INFO_CONNECTIONS, RDS6_INFO_IB_CONNECTIONS, RDS6_INFO_SOCKETS, RdsConfig,
    RdsError, TableKind, Transport,
};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// Service levels and destination queue pairs of all RC packets, by sending port.
#[derive(Clone, Default)]
struct Levels(Arc<Mutex<BTreeSet<(u32, u8)>>>);

impl Capture for Levels {
    fn interface(&mut self, _: u32, _: &str) {}

    fn packet(&mut self, interface: u32, _: u64, bytes: &[u8], _: Option<&str>) {
        // LRH of 8 bytes: the level is the high half of the second; then BTH, whose first byte tells RC by three zero bits.
        if bytes[1] & 3 == 2 && bytes[8] >> 5 == 0 {
            self.0.lock().expect("one thread").insert((interface, bytes[1] >> 4));
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn types_of_service_have_connections_of_their_own() {
    let mut nodes = Nodes::new(61, "none");
    let levels = Levels::default();
    nodes.world.capture(Box::new(levels.clone()));
    let plain = nodes.bind(0, 4000);
    let urgent = nodes.bind(0, 4001);
    let (receiver, answering) = (nodes.bind(1, 5000), nodes.bind(1, 5001));

    // When it can be set, and read back.
    let unbound = nodes.rds[0].socket().expect("a free one");
    assert_eq!(nodes.rds[0].set_type_of_service(unbound, 3), Err(RdsError::NoTypeOfService));
    nodes.rds[0].bind_socket(unbound, "127.0.0.1:4002".parse().expect("an address")).expect("free");
    assert_eq!(nodes.rds[0].set_type_of_service(unbound, 3), Err(RdsError::NoTypeOfService));
    assert_eq!(nodes.rds[0].set_type_of_service(urgent, 0), Ok(()));
    assert_eq!(nodes.rds[0].set_type_of_service(urgent, 0x23), Ok(()));
    assert_eq!(nodes.rds[0].set_type_of_service(urgent, 0x24), Err(RdsError::InvalidArgument), "it sticks");
    assert_eq!(nodes.rds[0].type_of_service(urgent), Ok(0x23));
    assert_eq!(nodes.rds[0].type_of_service(plain), Ok(0));

    nodes.send(0, plain, at(1, 5000), b"plain").expect("accepted");
    assert_eq!(nodes.rds[0].set_type_of_service(plain, 3), Err(RdsError::InvalidArgument), "it has sent");
    nodes.send(0, urgent, at(1, 5000), b"urgent").expect("accepted");
    let mut buffer = [0; 16];
    let mut from: Vec<SocketAddr> =
        [(); 2].map(|()| nodes.receive(1, receiver, &mut buffer).from).into_iter().collect();
    from.sort();
    assert_eq!(from, [at(0, 4000), at(0, 4001)]);
    for node in 0..2 {
        let mut seen: Vec<_> = nodes.rds[node]
            .connections_info()
            .map(|info| (info.tos, info.local, info.foreign, info.flags & ConnectionFlags::CONNECTED))
            .collect();
        seen.sort_by_key(|info| info.0);
        let (local, foreign) = (address(node), address(1 - node));
        let up = ConnectionFlags::CONNECTED;
        assert_eq!(seen, [(0, local, foreign, up), (0x23, local, foreign, up)], "node {node}");
        let mut levels: Vec<_> = nodes.rds[node]
            .ib_connections_info(&nodes.adapters[node])
            .map(|info| (info.tos, info.sl))
            .collect();
        levels.sort();
        assert_eq!(levels, [(0, 0), (0x23, 3)]);
    }

    // The other way: an answer takes the connection of its own socket's type, which the peer had asked for.
    nodes.rds[1].set_type_of_service(answering, 0x23).expect("new");
    nodes.send(1, answering, at(0, 4000), b"back").expect("accepted");
    assert_eq!(nodes.receive(0, plain, &mut buffer).from, at(1, 5001));
    assert_eq!((nodes.rds[0].connections_up(), nodes.rds[1].connections_up()), (2, 2));
    if !usual_card().is_ethernet() {
        // Frames without a VLAN tag carry no service level.
        assert_eq!(*levels.0.lock().expect("one thread"), BTreeSet::from([(0, 0), (0, 3), (1, 0), (1, 3)]));
    }
    nodes.close();
}

#[test]
fn a_peer_has_only_so_many_types_of_service() {
    let config = RdsConfig { connections_per_peer: 2, ..RdsConfig::new(GENERATION) };
    let mut nodes = Nodes::with(62, "none", 2, config);
    let senders = [0u8, 1, 2].map(|tos| {
        let socket = nodes.bind(0, 4000 + u16::from(tos));
        nodes.rds[0].set_type_of_service(socket, tos).expect("new");
        socket
    });
    nodes.bind(1, 5000);
    for socket in senders {
        nodes.send(0, socket, at(1, 5000), b"x").expect("accepted");
    }
    nodes.until("the third is refused", |nodes| nodes.rds[1].counters().connect_refused > 0);
    nodes.until("the others are up", |nodes| nodes.rds[1].counters().recv_queued == 2);
    assert_eq!(nodes.rds[1].connections_info().count(), 2);
    let refused = nodes.rds[0].connections_info().find(|info| info.tos == 2).expect("asked for");
    nodes.until("the reason is known", |nodes| {
        nodes.rds[0].counters().downs[DownReason::PeerRejected as usize] > 0
    });
    assert!(!refused.flags.contains(ConnectionFlags::CONNECTED));
    nodes.close();
}

fn info(nodes: &Nodes, node: usize, option: u32) -> (InfoWritten, Vec<u8>) {
    let (rds, adapter) = (&nodes.rds[node], &nodes.adapters[node]);
    let needed = match rds.info(adapter, option, &mut []) {
        Ok(written) => {
            assert_eq!(written.len, 0);
            return (written, Vec::new());
        }
        Err(InfoError::NoSpace { needed }) => needed,
        Err(InfoError::Unknown) => panic!("{option} is known"),
    };
    let mut bytes = vec![0xee; needed];
    let short = rds.info(adapter, option, &mut bytes[1..]);
    assert_eq!(short, Err(InfoError::NoSpace { needed }), "one byte short");
    let written = rds.info(adapter, option, &mut bytes).expect("fits");
    assert_eq!(written.len, needed);
    (written, bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[test]
fn everything_is_listed() {
    let mut nodes = Nodes::new(63, "none");
    let (sender, receiver) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    nodes.rds[0].socket().expect("an unbound one");
    nodes.rds[0].connect(sender, at(1, 5000)).expect("unicast");
    // The cable is out: all of it waits.
    nodes.world.set_cable(1, false);
    for (number, len) in [100, 5000, 0].into_iter().enumerate() {
        nodes.send(0, sender, at(1, 5000), &message(0, number, len)).expect("accepted");
    }
    let queued: Vec<_> =
        nodes.rds[0].send_queue_info().map(|info| (info.len, info.local, info.foreign, info.tos)).collect();
    let ends = (at(0, 4000), at(1, 5000));
    assert_eq!(queued, [(100, ends.0, ends.1, 0), (5000, ends.0, ends.1, 0), (0, ends.0, ends.1, 0)]);
    let sequences: Vec<_> = nodes.rds[0].send_queue_info().map(|info| info.sequence).collect();
    assert_eq!(sequences, [0, 1, 2].map(|n| sequences[0] + n));
    let connecting = nodes.rds[0].connections_info().next().expect("one");
    assert_eq!((connecting.flags, connecting.last_down), (ConnectionFlags::CONNECTING, None));
    let (written, bytes) = info(&nodes, 0, RDS_INFO_SEND_MESSAGES);
    assert_eq!((written.element_size, bytes.len()), (26, 3 * 26));
    assert_eq!((u64_at(&bytes, 26), u32_at(&bytes, 34)), (sequences[1], 5000));
    assert_eq!(bytes[38..50], [10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0, 0x13, 0x88]);

    nodes.world.set_cable(1, true);
    nodes.until("all arrived", |nodes| nodes.rds[1].counters().recv_queued == 3);
    let unread: Vec<_> =
        nodes.rds[1].receive_queue_info().map(|info| (info.len, info.local, info.foreign)).collect();
    assert_eq!(unread, [(100, ends.1, ends.0), (5000, ends.1, ends.0), (0, ends.1, ends.0)]);
    let (written, bytes) = info(&nodes, 1, RDS_INFO_RECV_MESSAGES);
    assert_eq!((written.element_size, bytes.len()), (26, 78));
    // This node's side comes first.
    assert_eq!(bytes[12..24], [10, 0, 0, 2, 10, 0, 0, 1, 0x13, 0x88, 0x0f, 0xa0]);
    assert!(info(&nodes, 0, RDS_INFO_SEND_MESSAGES).1.is_empty());
    // Only the first was asked to be acknowledged.
    assert_eq!(
        nodes.rds[0].retransmit_queue_info().count() * 26,
        info(&nodes, 0, RDS_INFO_RETRANS_MESSAGES).1.len()
    );

    let connection = nodes.rds[0].connections_info().next().expect("one");
    assert_eq!(connection.flags, ConnectionFlags::CONNECTED);
    assert_eq!((connection.next_tx, connection.transport), (sequences[2] + 1, Transport::InfiniBand));
    let peers = nodes.rds[1].connections_info().next().expect("one");
    assert_eq!(peers.next_rx, sequences[2] + 1);
    let (written, bytes) = info(&nodes, 0, RDS_INFO_CONNECTIONS);
    assert_eq!((written.element_size, bytes.len()), (42, 42));
    assert_eq!((u64_at(&bytes, 0), &bytes[16..24]), (connection.next_tx, &[10, 0, 0, 1, 10, 0, 0, 2][..]));
    assert_eq!(bytes[24..42], *b"infiniband\0\0\0\0\0\0\x04\0");
    assert_eq!(info(&nodes, 0, RDS6_INFO_CONNECTIONS).0, InfoWritten { element_size: 65, len: 65 });

    // The unbound socket has no IPv4 address to be listed by, but is there.
    let sockets: Vec<_> = nodes.rds[0].sockets_info().map(|info| (info.bound, info.connected)).collect();
    assert_eq!(sockets, [(Some(ends.0), Some(ends.1)), (None, None)]);
    let (written, bytes) = info(&nodes, 0, RDS_INFO_SOCKETS);
    assert_eq!((written.element_size, bytes.len()), (28, 28));
    assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 16)), (1 << 20, 106_496));
    assert_eq!(bytes[4..16], [10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0, 0x13, 0x88]);
    assert_eq!(info(&nodes, 0, RDS6_INFO_SOCKETS).0, InfoWritten { element_size: 52, len: 104 });
    assert_eq!(nodes.rds[1].sockets_info().next().map(|info| info.unread), Some(5100));

    // Both sides know both ports.
    let sides: Vec<_> = (0..2)
        .map(|node| nodes.rds[node].ib_connections_info(&nodes.adapters[node]).next().expect("one"))
        .collect();
    assert_eq!((sides[0].local_gid, sides[0].foreign_gid), (sides[1].foreign_gid, sides[1].local_gid));
    assert_ne!(sides[0].local_gid, sides[0].foreign_gid);
    let (written, bytes) = info(&nodes, 0, RDS_INFO_IB_CONNECTIONS);
    assert_eq!((written.element_size, bytes.len()), (68, 68));
    assert_eq!((&bytes[8..24], &bytes[24..40]), (&sides[0].local_gid[..], &sides[0].foreign_gid[..]));
    assert_eq!((u32_at(&bytes, 40), u32_at(&bytes, 44)), (sides[0].max_send_wr, sides[0].max_recv_wr));
    assert_eq!(info(&nodes, 0, RDS6_INFO_IB_CONNECTIONS).0, InfoWritten { element_size: 92, len: 92 });

    // Counters by name, as a program that reads them finds them.
    let (written, bytes) = info(&nodes, 1, RDS_INFO_COUNTERS);
    assert_eq!((written.element_size, bytes.len() % 40), (40, 0));
    let value = |wanted: &str| {
        let found = bytes
            .chunks(40)
            .find(|counter| counter[..32].starts_with(wanted.as_bytes()) && counter[wanted.len()] == 0);
        u64_at(found.unwrap_or_else(|| panic!("{wanted} is listed")), 32)
    };
    assert_eq!((value("recv_queued"), value("recv_delivered"), value("conn_reset")), (3, 0, 0));
    assert_eq!((value("ib_ack_sent"), value("recv_ack_required")), (1, 1));
    nodes.until("the acknowledgement arrives", |nodes| nodes.rds[0].counters().ack_received == 1);
    assert_eq!(nodes.rds[0].counters().send_ack_required, 1);

    for unknown in [0, 9999, 10002, 10007, 10009, 10010, 10016, 10018, u32::MAX] {
        let asked = nodes.rds[0].info(&nodes.adapters[0], unknown, &mut [0; 4096]);
        assert_eq!(asked, Err(InfoError::Unknown), "{unknown}");
    }

    // And as tables.
    let text = |kind| nodes.rds[1].table(&nodes.adapters[1], kind).to_string();
    let lines: Vec<usize> = TableKind::ALL.iter().map(|&kind| text(kind).lines().count()).collect();
    assert_eq!(lines[1..], [3, 3, 5, 2, 2, 3], "a title, headings, and a line for each");
    assert!(text(TableKind::Counters).lines().any(|line| line.split_whitespace().eq(["recv_queued", "3"])));
    let connections = text(TableKind::Connections);
    let fields: Vec<_> = connections.lines().nth(2).expect("one").split_whitespace().collect();
    assert_eq!(fields[..3], ["10.0.0.2", "10.0.0.1", "0"]);
    assert_eq!(fields[5..], ["--C", "infiniband", "0", "-"]);
    let mut buffer = [0; 5000];
    assert_eq!(nodes.receive(1, receiver, &mut buffer).len, 100);
    nodes.close();
}

/// Every end of a connection has its reason, at the side that ended it and at the other.
#[test]
fn reasons_are_remembered() {
    let mut nodes = Nodes::with(64, "none", 2, RdsConfig { retry_count: 1, ..RdsConfig::new(GENERATION) });
    let (sender, receiver) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let mut buffer = [0; 16];
    let last = |nodes: &Nodes, node: usize| {
        nodes.rds[node].connections_info().next().and_then(|info| info.last_down)
    };
    let downs =
        |nodes: &Nodes, node: usize| nodes.rds[node].connections_info().next().map_or(0, |info| info.downs);
    nodes.send(0, sender, at(1, 5000), b"one").expect("accepted");
    nodes.receive(1, receiver, &mut buffer);
    assert_eq!((last(&nodes, 0), last(&nodes, 1)), (None, None));

    // The cable is pulled: packets are not acknowledged.
    nodes.world.set_cable(1, false);
    nodes.send(0, sender, at(1, 5000), b"two").expect("accepted");
    nodes.until("the sender gives up", |nodes| downs(nodes, 0) > 0);
    assert_eq!(last(&nodes, 0), Some(DownReason::RetryExceeded));
    // The other side found the same, if it had something to acknowledge, or hears of it at the latest when asked anew.
    nodes.world.set_cable(1, true);
    nodes.receive(1, receiver, &mut buffer);
    let other = last(&nodes, 1).expect("a reason");
    let possible = [DownReason::Disconnected, DownReason::Replaced, DownReason::RetryExceeded];
    assert!(possible.contains(&other), "{other:?}");
    for node in 0..2 {
        let counters = nodes.rds[node].counters();
        let connection = nodes.rds[node].connections_info().next().expect("one");
        assert_eq!(counters.downs.iter().sum::<u64>(), connection.downs, "node {node}");
    }

    // The peer's RDS stops: its connection manager says so.
    let before = downs(&nodes, 0);
    let mut rds = nodes.rds.pop().expect("two");
    rds.stop(&mut nodes.adapters[1], CloseFlags::Abrupt, |_| {}).expect("stops");
    nodes.until("the sender hears of it", |nodes| downs(nodes, 0) > before);
    assert_eq!(last(&nodes, 0), Some(DownReason::Disconnected));
    // And then there is nobody.
    nodes.send(0, sender, at(1, 5000), b"three").expect("accepted");
    nodes.until("nobody listens", |nodes| last(nodes, 0) == Some(DownReason::NonPeerRejected));
    let table = nodes.rds[0].table(&nodes.adapters[0], TableKind::Connections).to_string();
    assert!(table.contains("no listener at the peer"), "{table}");
}
