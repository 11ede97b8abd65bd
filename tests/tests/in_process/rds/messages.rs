//! RDS between two nodes in one process.

use harness::rds::{GENERATION, LIMIT, Nodes, at, message};
use harness::{World, WorldConfig, dat};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage, Received, SocketHandle};

#[test]
fn datagrams_arrive_once_in_order_and_whole() {
    for seed in 1..4 {
        let mut nodes = Nodes::new(seed, "loss=1%,dup=1%,reorder=1%");
        let sockets = [nodes.bind(0, 4000), nodes.bind(1, 4001)];
        let lengths = [0, 1, 64, 4095, 4096, 4097, 8192, 100_000, 262_144];
        let mut buffer = vec![0; 300_000];
        // Both ways at once: each side connects.
        for (n, len) in lengths.into_iter().enumerate() {
            for node in [0, 1] {
                let bytes = message(node, n, len);
                let to = at(1 - node, 4000 + 1 - node as u16);
                let end = nodes.world.now() + LIMIT;
                while nodes.send(node, sockets[node], to, &bytes).is_err() {
                    assert!(nodes.world.now() < end, "there is room again when the peer has acknowledged");
                    nodes.step();
                }
            }
        }
        for node in [0, 1] {
            for (n, len) in lengths.into_iter().enumerate() {
                let received = nodes.receive(node, sockets[node], &mut buffer);
                let from = at(1 - node, 4000 + 1 - node as u16);
                assert_eq!(received, Received { from, len, message_len: len, cookie: None });
                assert!(
                    buffer[..len] == message(1 - node, n, len),
                    "seed {seed}: message {n} to node {node}"
                );
            }
        }
        for node in [0, 1] {
            let counters = nodes.rds[node].counters();
            assert_eq!((counters.recv_delivered, counters.recv_protocol_errors), (lengths.len() as u64, 0));
        }
        nodes.close();
    }
}

#[test]
fn loopback_truncation_and_addresses() {
    let mut nodes = Nodes::new(5, "none");
    let (a, b) = (nodes.bind(0, 5000), nodes.bind(0, 5001));
    let bytes = message(0, 1, 1000);
    assert_eq!(nodes.send(0, a, at(0, 5001), &bytes), Ok(1000));
    let mut short = [0; 10];
    let received = nodes.receive(0, b, &mut short);
    assert_eq!(received, Received { from: at(0, 5000), len: 10, message_len: 1000, cookie: None });
    assert_eq!(short, bytes[..10]);

    assert_eq!(nodes.rds[0].bind(at(0, 5000)), Err(RdsError::AddressInUse));
    assert_eq!(nodes.rds[0].bind(at(1, 5000)), Err(RdsError::AddressNotAvailable));
    let mut buffer = [0; 8];
    let nothing = nodes.rds[0].recvmsg(&mut nodes.adapters[0], a, &mut buffer, MsgFlags::empty());
    assert_eq!(nothing, Err(RdsError::Again));
    nodes.rds[0].close(&mut nodes.adapters[0], b).expect("closes");
    let closed = nodes.rds[0].recvmsg(&mut nodes.adapters[0], b, &mut buffer, MsgFlags::empty());
    assert_eq!(closed, Err(RdsError::BadSocket));
    nodes.close();
}

#[test]
fn what_nobody_is_bound_to_is_dropped_and_counted() {
    let mut nodes = Nodes::new(6, "none");
    let (socket, peer) = (nodes.bind(0, 6000), nodes.bind(1, 6001));
    for n in 0..5 {
        nodes.send(0, socket, at(1, 6666), &message(0, n, 500)).expect("accepted");
    }
    nodes.send(0, socket, at(1, 6001), b"last").expect("accepted");
    let mut buffer = [0; 1000];
    let received = nodes.receive(1, peer, &mut buffer);
    assert_eq!(&buffer[..received.len], b"last");
    assert_eq!(nodes.rds[1].counters().recv_drop_no_sock, 5);
    nodes.close();
}

#[test]
fn a_full_send_buffer_is_told_and_empties_when_the_peer_is_there() {
    let mut nodes = Nodes::new(7, "none");
    let (socket, peer) = (nodes.bind(0, 7000), nodes.bind(1, 7001));
    nodes.rds[0].set_send_buffer(socket, 20_000).expect("open");
    let bytes = message(0, 1, 9000);
    let mut accepted = 0;
    let refused = loop {
        match nodes.send(0, socket, at(1, 7001), &bytes) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    // As in Linux, a message is taken while less than the buffer waits, so the last one may reach beyond it.
    assert_eq!((accepted, refused), (3, RdsError::Again));
    assert_eq!(nodes.send(0, socket, at(1, 7001), &message(0, 1, 20_001)), Err(RdsError::MessageSize));
    let mut buffer = vec![0; 10_000];
    for _ in 0..accepted {
        assert_eq!(nodes.receive(1, peer, &mut buffer).len, 9000);
        assert!(buffer[..9000] == bytes);
    }
    let end = nodes.world.now() + LIMIT;
    while nodes.send(0, socket, at(1, 7001), &bytes).is_err() {
        assert!(nodes.world.now() < end, "there is room again when the peer has acknowledged");
        nodes.step();
    }
    nodes.receive(1, peer, &mut buffer);
    nodes.close();
}

/// A doorbell tells of all messages that were sent with MORE, at the next message without it, or in the next poll.
#[test]
fn messages_that_more_follow_leave_together() {
    const FEW: usize = 12;
    let mut nodes = Nodes::new(9, "none");
    let (socket, peer) = (nodes.bind(0, 5000), nodes.bind(1, 5001));
    let mut buffer = [0; 64];
    // The connection comes up, and its maps go.
    nodes.send(0, socket, at(1, 5001), b"first").expect("room");
    nodes.receive(1, peer, &mut buffer);
    (0..200).for_each(|_| nodes.step());
    for alone in [true, false] {
        let rung = |nodes: &Nodes| nodes.world.with_hca(0, |hca| hca.counters().doorbells);
        let before = rung(&nodes);
        let mut send = |n: usize, flags| {
            let bytes = [n as u8];
            let to = at(1, 5001);
            let message = Msg::to(&to, &bytes).flags(flags);
            nodes.rds[0].sendmsg(&mut nodes.adapters[0], socket, message).expect("room");
        };
        (0..FEW).for_each(|n| send(n, MsgFlags::MORE | MsgFlags::DONTWAIT));
        if !alone {
            send(FEW, MsgFlags::empty());
        }
        nodes.step();
        assert_eq!(rung(&nodes), before + 1, "alone {alone}");
        for n in 0..FEW + usize::from(!alone) {
            assert_eq!((nodes.receive(1, peer, &mut buffer).len, usize::from(buffer[0])), (1, n));
        }
        (0..200).for_each(|_| nodes.step());
    }
    nodes.close();
}

/// They wait for one to their own peer alone, and not for one that is refused; nor for a connection that is not there.
#[test]
fn messages_that_more_follow_wait_for_their_own() {
    let config = RdsConfig { send_buffer: 1 << 20, ..RdsConfig::new(GENERATION) };
    let mut nodes = Nodes::with(10, "none", 4, config);
    let [socket, full] = [5000, 5001].map(|port| nodes.bind(0, port));
    let peers: Vec<_> = (1..4).map(|node| nodes.bind(node, 5000)).collect();
    let mut buffer = [0; 64];
    for node in [1, 2] {
        nodes.send(0, socket, at(node, 5000), b"first").expect("room");
        nodes.receive(node, peers[node - 1], &mut buffer);
    }
    (0..200).for_each(|_| nodes.step());
    // The devices go on; nobody polls.
    let rung = |nodes: &Nodes| {
        nodes.world.pass(10_000);
        nodes.world.with_hca(0, |hca| hca.counters().doorbells)
    };
    let before = rung(&nodes);
    let send = |nodes: &mut Nodes, from: SocketHandle, node: usize, bytes: &[u8], flags| {
        nodes.rds[0].sendmsg(&mut nodes.adapters[0], from, Msg::to(&at(node, 5000), bytes).flags(flags))
    };
    let (more, last) = (MsgFlags::MORE, MsgFlags::empty());
    assert_eq!(send(&mut nodes, socket, 1, b"waits", more), Ok(None));
    assert_eq!(rung(&nodes), before);
    assert_eq!(send(&mut nodes, socket, 2, b"leaves", last), Ok(None));
    assert_eq!(rung(&nodes), before + 1, "it alone");
    nodes.step();
    assert_eq!(rung(&nodes), before + 2);
    assert_eq!(nodes.receive(1, peers[0], &mut buffer).len, 5);
    assert_eq!(nodes.receive(2, peers[1], &mut buffer).len, 6);
    (0..200).for_each(|_| nodes.step());

    nodes.rds[0].set_send_buffer(full, 4).expect("open");
    let before = rung(&nodes);
    assert_eq!(send(&mut nodes, full, 1, b"four", more), Ok(None));
    assert_eq!(send(&mut nodes, full, 1, b"five", last), Err(RdsError::Again));
    assert_eq!(rung(&nodes), before, "nothing leaves");
    nodes.step();
    assert_eq!(rung(&nodes), before + 1);
    nodes.receive(1, peers[0], &mut buffer);
    assert_eq!(&buffer[..4], b"four");

    assert_eq!(send(&mut nodes, socket, 3, b"connects", more), Ok(None));
    assert_eq!(nodes.receive(3, peers[2], &mut buffer).len, 8);
    nodes.close();
}

/// What was sent to a port before its peer heard that nobody reads there keeps nobody else waiting: it is packed, listed, and read later.
#[test]
fn a_socket_that_nobody_reads_holds_up_nobody() {
    let mut nodes = Nodes::new(11, "loss=1%,dup=1%,reorder=1%");
    let (socket, peers) = (nodes.bind(0, 5000), [5001, 5002].map(|port| nodes.bind(1, port)));
    let mut buffer = [0; 100];
    let mut sent = 0;
    // The peer learns of the full port only while this node polls.
    while nodes.send(0, socket, at(1, 5001), &message(0, sent, 64)).is_ok() {
        sent += 1;
    }
    assert!(sent > 150, "{sent}");
    nodes.until("all arrived", |nodes| nodes.rds[1].counters().recv_queued == sent as u64);
    let next = message(0, sent, 64);
    nodes.until("there is room", |nodes| nodes.send(0, socket, at(1, 5002), &next).is_ok());
    nodes.receive(1, peers[1], &mut buffer);
    assert!(buffer[..64] == next);
    assert_eq!(nodes.send(0, socket, at(1, 5001), b"more"), Err(RdsError::Congested));

    let listed: Vec<_> = nodes.rds[1].receive_queue_info().map(|info| (info.sequence, info.len)).collect();
    let first = listed[0].0;
    assert_eq!(listed, (first..).take(sent).map(|sequence| (sequence, 64)).collect::<Vec<_>>());
    for n in 0..sent {
        let flags = if n % 2 == 0 { MsgFlags::ZEROCOPY } else { MsgFlags::empty() };
        let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
        match rds.recvmsg(adapter, peers[0], &mut buffer, flags) {
            Ok(Arrival::Lent(lent)) => {
                assert_eq!((lent.from, lent.message_len), (at(0, 5000), 64));
                let part = rds.frames(lent.frames).expect("lent").next().expect("one");
                part.read(0, &mut buffer[..64]).expect("inside");
                rds.give_back(adapter, lent.frames).expect("lent");
            }
            Ok(Arrival::Message(received)) => assert_eq!((received.from, received.len), (at(0, 5000), 64)),
            other => panic!("message {n}: {other:?}"),
        }
        assert!(buffer[..64] == message(0, n, 64), "message {n}");
    }
    nodes.until("the port is clear", |nodes| nodes.send(0, socket, at(1, 5001), b"more").is_ok());
    nodes.receive(1, peers[0], &mut buffer);
    nodes.close();
}

/// A node with frames for 1 MiB sends to one that accepts 256 KiB. The reply to its request has the limit.
#[test]
fn oversize_message_is_refused_by_the_sender_or_dropped_by_the_receiver() {
    let world = World::new(&WorldConfig::new(71));
    let mut adapters = dat::open(&world, 71, 2, 32 << 20).expect("opens");
    let settings = RdsConfig { seed: 71, send_buffer: 1 << 20, ..RdsConfig::new(GENERATION) };
    let (large, small) = (RdsStorage::<4, 4, 1024>::new(), RdsStorage::<4, 4, 256>::new());
    let parts = [harness::keep(large).parts(), harness::keep(small).parts()];
    let start = |(adapter, parts)| Rds::start(adapter, parts, settings).expect("starts");
    let rds = adapters.iter_mut().zip(parts).map(start).collect();
    let mut nodes = Nodes { world, adapters, rds };
    let (from, to, longest) = (nodes.bind(0, 4000), nodes.bind(1, 4000), 256 << 10);
    let mut buffer = vec![0; longest];

    // The limit is unknown before the connection is up.
    assert_eq!(nodes.send(0, from, at(1, 4000), &message(0, 0, longest + 1)), Ok(longest + 1));
    assert_eq!(nodes.send(0, from, at(1, 4000), &message(0, 1, 100)), Ok(100));
    assert_eq!(nodes.receive(1, to, &mut buffer).len, 100);
    assert_eq!(nodes.rds[1].counters().recv_drop_too_long, 1);

    for (len, sent) in [(longest + 1, Err(RdsError::MessageSize)), (longest, Ok(longest))] {
        assert_eq!(nodes.send(0, from, at(1, 4000), &message(0, 2, len)), sent);
    }
    assert_eq!(nodes.receive(1, to, &mut buffer).len, longest);
    assert!(buffer == message(0, 2, longest));
    // In the other direction the sender's own limit is lower.
    let sent = nodes.send(1, to, at(0, 4000), &buffer[..nodes.rds[1].longest_message()]);
    assert!(sent.is_ok());
    let (first, second) = (nodes.rds[0].counters(), nodes.rds[1].counters());
    assert_eq!((first.conn_reset, second.conn_reset, second.recv_protocol_errors), (0, 0, 0));
    nodes.close();
}
