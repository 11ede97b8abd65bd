//! What RDS sockets have beside datagrams: congestion, options, readiness, RDMA by cookies.

use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::{
    Arrival, AtomicArgs, AtomicOp, Control, Msg, MsgFlags, PollMask, PollRule, RdmaArgs, RdmaCookie,
    RdmaFlags, RdmaNotify, RdmaStatus, RdsConfig, RdsError, SocketHandle, Transport, port_mask,
};
use std::net::SocketAddr;
use std::rc::Rc;

/// Sends until the peer's port is congested; gives how many messages went.
fn fill(nodes: &mut Nodes, from: SocketHandle, to: SocketAddr, len: usize) -> usize {
    let mut sent = 0;
    nodes.until("the port congests", |nodes| {
        match nodes.send(0, from, to, &message(0, sent, len)) {
            Ok(_) => sent += 1,
            Err(RdsError::Congested) => return true,
            Err(error) => assert_eq!(error, RdsError::Again),
        }
        false
    });
    sent
}

#[test]
fn a_full_receiver_blocks_its_own_port_alone_and_recovers() {
    let mut nodes = Nodes::new(31, "none");
    let sender = nodes.bind(0, 4000);
    let (full, other) = (nodes.bind(1, 5000), nodes.bind(1, 5001));
    nodes.rds[1].set_receive_buffer(&mut nodes.adapters[1], full, 20_000).expect("open");
    nodes.rds[0].set_congestion_monitor(sender, true).expect("open");
    let sent = fill(&mut nodes, sender, at(1, 5000), 3000);
    assert!(sent >= 7, "the limit is soft, but not below what was set: {sent}");
    assert_eq!(nodes.rds[0].poll_mask(sender).map(|mask| mask & PollMask::IN), Ok(PollMask::empty()));

    // The other port is open all the while.
    nodes.send(0, sender, at(1, 5001), b"through").expect("not congested");
    let mut buffer = vec![0; 8000];
    assert_eq!(nodes.receive(1, other, &mut buffer).len, 7);
    assert_eq!(nodes.send(0, sender, at(1, 5000), b"x"), Err(RdsError::Congested));

    // Nothing of what was accepted is lost, and reading it opens the port.
    for n in 0..sent {
        assert_eq!(nodes.receive(1, full, &mut buffer).len, 3000);
        assert!(buffer[..3000] == message(0, n, 3000), "message {n}");
    }
    nodes.until("the sender hears of it", |nodes| {
        nodes.rds[0].poll_mask(sender).expect("open").contains(PollMask::IN)
    });
    let mask = nodes.rds[0].poll_mask(sender).expect("open");
    assert!(!mask.contains(PollMask::WRBAND), "which tells who does not monitor");
    let update = nodes.rds[0].recvmsg(&mut nodes.adapters[0], sender, &mut buffer, MsgFlags::empty());
    assert_eq!(update, Ok(Arrival::CongestionUpdate(port_mask(5000))));
    nodes.send(0, sender, at(1, 5000), b"again").expect("open again");
    assert_eq!(nodes.receive(1, full, &mut buffer).len, 5);
    assert_eq!(nodes.rds[0].counters().conn_reset + nodes.rds[1].counters().conn_reset, 0);
    nodes.close();
}

#[test]
fn a_congested_port_is_found_open_after_its_socket_closes_or_its_link_breaks() {
    let mut nodes = Nodes::new(32, "none");
    let (sender, full) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    nodes.rds[1].set_receive_buffer(&mut nodes.adapters[1], full, 5_000).expect("open");
    fill(&mut nodes, sender, at(1, 5000), 3000);
    // The map that clears the port goes while the link is cut: it has to be learnt on a new connection.
    nodes.world.set_cable(1, false);
    nodes.rds[1].close(&mut nodes.adapters[1], full).expect("open");
    nodes.until("the connection breaks", |nodes| nodes.rds[1].counters().conn_reset > 0);
    assert_eq!(nodes.send(0, sender, at(1, 5000), b"x"), Err(RdsError::Congested));
    nodes.world.set_cable(1, true);
    nodes.until("the port opens", |nodes| nodes.send(0, sender, at(1, 5000), b"dropped").is_ok());
    nodes.until("it arrives", |nodes| nodes.rds[1].counters().recv_drop_no_sock > 0);
    nodes.close();
}

#[test]
fn options_read_back_what_was_set() {
    let mut nodes = Nodes::new(33, "none");
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    let socket = rds.socket().expect("a free one");
    assert_eq!(rds.local_address(socket), Err(RdsError::NotConnected));
    assert_eq!(rds.sendmsg(adapter, socket, Msg::to(&at(1, 5000), b"x")), Err(RdsError::NotConnected));
    assert_eq!(rds.transport(socket), Ok(None));
    assert_eq!(rds.poll_mask(socket), Ok(PollMask::OUT | PollMask::WRNORM), "bound or not");
    rds.bind_socket(socket, at(0, 4000)).expect("free");
    assert_eq!(rds.bind_socket(socket, at(0, 4001)), Err(RdsError::InvalidArgument), "bound once");
    assert_eq!(rds.transport(socket), Ok(Some(Transport::InfiniBand)));
    assert_eq!(rds.set_transport(socket, Transport::Loopback), Err(RdsError::NotSupported));
    assert_eq!(rds.poll_mask(socket), Ok(PollMask::OUT | PollMask::WRNORM));

    assert_eq!(rds.peer_address(socket), Err(RdsError::NotConnected));
    assert_eq!(rds.sendmsg(adapter, socket, Msg::new(b"x")), Err(RdsError::NotConnected));
    rds.connect(socket, at(1, 5000)).expect("any unicast address");
    assert_eq!(rds.peer_address(socket), Ok(at(1, 5000)));
    let multicast = "224.0.0.1:5000".parse().expect("an address");
    assert_eq!(rds.connect(socket, multicast), Err(RdsError::InvalidArgument));
    let nowhere = "0.0.0.0:5000".parse().expect("an address");
    assert_eq!(rds.connect(socket, nowhere), Err(RdsError::NoDestination));
    for many in ["[::]", "[ff02::1]", "[::ffff:0.0.0.0]", "[::ffff:255.255.255.255]", "[::ffff:224.0.0.1]"] {
        let many = format!("{many}:5000").parse().expect("an address");
        assert_eq!(rds.connect(socket, many), Err(RdsError::NotUnicast), "{many}");
    }
    assert_eq!(rds.peer_address(socket), Ok(at(1, 5000)));

    assert_eq!((rds.receive_errors(socket), rds.send_buffer(socket)), (Ok(false), Ok(1 << 20)));
    rds.set_receive_errors(socket, true).expect("open");
    rds.set_receive_buffer(adapter, socket, 12_345).expect("open");
    assert_eq!((rds.receive_errors(socket), rds.receive_buffer(socket)), (Ok(true), Ok(12_345)));
    // As Linux and as the manual page have it: with a send buffer that is full.
    rds.set_send_buffer(socket, 0).expect("open");
    assert_eq!(rds.poll_mask(socket), Ok(PollMask::empty()));
    rds.set_poll_rule(socket, PollRule::Solaris).expect("open");
    assert_eq!(rds.poll_mask(socket), Ok(PollMask::OUT | PollMask::WRNORM));
    rds.close(adapter, socket).expect("open");
    assert_eq!(rds.poll_mask(socket), Err(RdsError::BadSocket));

    let chosen = rds.socket().expect("a free one");
    rds.set_transport(chosen, Transport::Loopback).expect("not bound");
    assert_eq!(rds.bind_socket(chosen, at(0, 4000)), Err(RdsError::NoTransport));
    nodes.close();
}

#[test]
fn loopback_addresses_reach_each_other_alone() {
    let mut nodes = Nodes::new(34, "none");
    let here = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    let a = rds.bind(here(4000)).expect("free");
    // The same port of another address is another socket.
    let b = rds.bind(at(0, 4000)).expect("free");
    let c = rds.bind(here(0)).expect("free");
    let to = rds.local_address(c).expect("bound");
    rds.sendmsg(adapter, a, Msg::to(&to, b"round")).expect("goes");
    let mut buffer = [0; 16];
    let message = rds.recvmsg(adapter, c, &mut buffer, MsgFlags::empty()).expect("there at once");
    let message = message.message().expect("a message");
    assert_eq!((message.from, message.len), (here(4000), 5));
    assert_eq!(rds.sendmsg(adapter, a, Msg::to(&at(0, 4000), b"x")), Err(RdsError::InvalidArgument));
    assert_eq!(rds.sendmsg(adapter, b, Msg::to(&to, b"x")), Err(RdsError::InvalidArgument));
    nodes.close();
}

#[test]
fn cancelled_messages_are_gone_and_make_room() {
    let mut nodes = Nodes::new(35, "none");
    let (socket, peer) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let other = nodes.bind(1, 5001);
    // No connection yet, so all of it waits.
    nodes.world.set_cable(1, false);
    for n in 0..6 {
        nodes.send(0, socket, at(1, 5000 + n % 2), &message(0, usize::from(n), 900)).expect("accepted");
    }
    nodes.cancel(0, socket, at(1, 5000));
    assert_eq!(nodes.rds[0].unacknowledged(socket), Ok(3));
    nodes.world.set_cable(1, true);
    let mut buffer = [0; 1000];
    for n in [1, 3, 5] {
        assert_eq!(nodes.receive(1, other, &mut buffer).len, 900);
        assert!(buffer[..900] == message(0, n, 900), "message {n}");
    }
    assert_eq!(nodes.rds[1].is_readable(peer), Ok(false));
    nodes.close();
}

/// Two sockets, with DMA memory of each node.
struct Ground {
    nodes: Nodes,
    sockets: [SocketHandle; 2],
    memory: [Rc<dat_nostd::DmaBuffer>; 2],
}

const BYTES: usize = 1 << 20;

impl Ground {
    fn new(seed: u64, faults: &str) -> Self {
        let mut nodes = Nodes::new(seed, faults);
        let sockets = [nodes.bind(0, 4000), nodes.bind(1, 5000)];
        let memory = [0, 1].map(|node| nodes.adapters[node].dma_alloc(BYTES + 8192, 4096).expect("memory"));
        let memory = memory.map(Rc::new);
        Self { nodes, sockets, memory }
    }

    fn fill(&self, node: usize, offset: usize, number: usize, len: usize) {
        self.memory[node].write(offset, &message(node, number, len)).expect("inside");
    }

    fn holds(&self, node: usize, offset: usize, sender: usize, number: usize, len: usize) -> bool {
        let mut bytes = vec![0; len];
        self.memory[node].read(offset, &mut bytes).expect("inside");
        bytes == message(sender, number, len)
    }

    /// Node 1 offers memory to node 0 with a message; gives the cookie as it arrived.
    fn offer(&mut self, offset: usize, len: usize, flags: RdmaFlags) -> RdmaCookie {
        let region = self.memory[1].slice(offset, len).expect("inside");
        let control = Control { map: Some((region, flags)), ..Control::default() };
        let (rds, adapter) = (&mut self.nodes.rds[1], &mut self.nodes.adapters[1]);
        let sent = rds.sendmsg(adapter, self.sockets[1], Msg::to(&at(0, 4000), b"use this").with(&control));
        let cookie = sent.expect("accepted").expect("mapped");
        let mut buffer = [0; 16];
        let message = self.nodes.receive(0, self.sockets[0], &mut buffer);
        assert_eq!((&buffer[..message.len], message.cookie), (&b"use this"[..], Some(cookie)));
        cookie
    }

    /// Node 0 does an operation on node 1's memory, with a message.
    fn operate(&mut self, args: &RdmaArgs<'_>, payload: &[u8]) {
        let control = Control { rdma: Some(*args), ..Control::default() };
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(&at(1, 5000), payload).with(&control))
            .expect("accepted");
    }

    fn notification(&mut self) -> RdmaNotify {
        let socket = self.sockets[0];
        let mut found = None;
        self.nodes.until("the operation ends", |nodes| {
            found = nodes.rds[0].take_notification(socket).expect("open");
            found.is_some()
        });
        found.expect("just found")
    }

    fn close(self) {
        self.nodes.close_with(self.memory.map(|memory| Rc::into_inner(memory).expect("nobody has it")));
    }
}

#[test]
fn reads_and_writes_by_cookie_at_odd_places() {
    for (seed, faults) in [(41, "none"), (42, "loss=0.5%,dup=1%,reorder=1%")] {
        let mut ground = Ground::new(seed, faults);
        for (number, len) in [1, 63, 64, 4095, 4096, 4097, 65_537, 1 << 20].into_iter().enumerate() {
            let odd = 1 + number * 37 % 4000;
            // Write from two pieces, the second part of the region.
            let cookie = ground.offer(odd, len, RdmaFlags::empty());
            ground.fill(0, 0, number, len);
            let own = Rc::clone(&ground.memory[0]);
            let pieces = [own.slice(0, len / 2), own.slice(len / 2, len - len / 2)];
            let pieces: Vec<_> = pieces.into_iter().flatten().filter(|piece| !piece.is_empty()).collect();
            let args = RdmaArgs {
                cookie,
                remote_offset: 0,
                remote_bytes: len as u64,
                local: &pieces,
                flags: RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME,
                user_token: number as u64,
            };
            ground.operate(&args, b"written");
            let mut buffer = [0; 16];
            let received = ground.nodes.receive(1, ground.sockets[1], &mut buffer);
            assert_eq!(&buffer[..received.len], b"written");
            assert!(ground.holds(1, odd, 0, number, len), "write of {len}");
            assert_eq!(
                ground.notification(),
                RdmaNotify { user_token: number as u64, status: RdmaStatus::Success }
            );

            // Read it back, all but the first byte, to another place; the answer is fenced.
            ground.fill(1, odd, number + 50, len);
            let skipped = usize::from(len > 1);
            let local = [own.slice(3, len - skipped).expect("inside")];
            let args = RdmaArgs {
                cookie,
                remote_offset: skipped as u64,
                remote_bytes: (len - skipped) as u64,
                local: &local,
                flags: RdmaFlags::FENCE | RdmaFlags::NOTIFY_ME,
                user_token: 7,
            };
            ground.operate(&args, &[]);
            ground.nodes.receive(1, ground.sockets[1], &mut buffer);
            assert_eq!(ground.notification().status, RdmaStatus::Success);
            let mut bytes = vec![0; len - skipped];
            ground.memory[0].read(3, &mut bytes).expect("inside");
            assert!(bytes == message(1, number + 50, len)[skipped..], "read of {len}");
            let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
            rds.free_mr(adapter, ground.sockets[1], cookie).expect("its own");
        }
        ground.close();
    }
}

#[test]
fn what_is_not_offered_is_not_touched() {
    let mut ground = Ground::new(43, "none");
    ground.nodes.rds[0].set_receive_errors(ground.sockets[0], true).expect("open");
    let len = 1000;
    ground.fill(1, 0, 9, 8192);
    let cookie = ground.offer(100, len, RdmaFlags::empty());
    let own = Rc::clone(&ground.memory[0]);
    let local = [own.slice(0, len).expect("inside")];
    let good = RdmaArgs {
        cookie,
        remote_offset: 0,
        remote_bytes: len as u64,
        local: &local,
        flags: RdmaFlags::READWRITE,
        user_token: 1,
    };
    // One byte beyond the end, one before the start, and a key that nobody has: told because of RDS_RECVERR.
    let below = RdmaCookie(cookie.0 - (1 << 32));
    let bad = [
        RdmaArgs { remote_offset: 1, user_token: 2, ..good },
        RdmaArgs { cookie: below, user_token: 3, ..good },
        RdmaArgs { cookie: RdmaCookie(cookie.0 ^ 0x5500), user_token: 4, ..good },
    ];
    for args in bad {
        ground.operate(&args, b"never arrives");
        let expected = RdmaNotify { user_token: args.user_token, status: RdmaStatus::RemoteError };
        assert_eq!(ground.notification(), expected);
        assert!(ground.holds(1, 0, 1, 9, 8192), "touched");
    }
    // Several pieces make one transfer, which is denied as a whole.
    let pieces =
        [own.slice(0, 100), own.slice(300, 400), own.slice(900, 500)].map(|piece| piece.expect("inside"));
    let args = RdmaArgs { local: &pieces, remote_offset: 1, user_token: 6, ..good };
    ground.operate(&args, b"never arrives");
    assert_eq!(ground.notification(), RdmaNotify { user_token: 6, status: RdmaStatus::RemoteError });
    assert!(ground.holds(1, 0, 1, 9, 8192), "touched");
    // Released: the cookie is stale.
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    rds.free_mr(adapter, ground.sockets[1], cookie).expect("its own");
    assert_eq!(rds.free_mr(adapter, ground.sockets[1], cookie), Err(RdsError::InvalidArgument));
    ground.operate(&RdmaArgs { user_token: 5, ..good }, b"never arrives");
    assert_eq!(ground.notification(), RdmaNotify { user_token: 5, status: RdmaStatus::RemoteError });
    assert!(ground.holds(1, 0, 1, 9, 8192), "touched");
    assert_eq!(
        ground.nodes.rds[1].is_readable(ground.sockets[1]),
        Ok(false),
        "no message of a failed operation"
    );
    drop(own);
    ground.close();
}

/// Pieces of one byte and more, in a strange order, make what the peer has in one place.
#[test]
fn many_pieces_are_gathered_and_scattered() {
    const COUNT: usize = 100;
    let mut ground = Ground::new(47, "loss=0.5%,dup=1%,reorder=1%");
    let own = Rc::clone(&ground.memory[0]);
    let lens: Vec<usize> = (0..COUNT).map(|index| 1 + index * 977 % 300).collect();
    let total: usize = lens.iter().sum();
    let cookie = ground.offer(77, total, RdmaFlags::empty());
    // Piece after piece, each 1000 bytes before the one that precedes it.
    let pieces: Vec<_> =
        lens.iter().enumerate().map(|(index, len)| own.slice((COUNT - index) * 1000, *len)).collect();
    let pieces: Vec<_> = pieces.into_iter().map(|piece| piece.expect("inside")).collect();
    let whole = message(0, 4, total);
    let mut from = 0;
    for (index, len) in lens.iter().enumerate() {
        own.write((COUNT - index) * 1000, &whole[from..from + len]).expect("inside");
        from += len;
    }
    let args = RdmaArgs {
        cookie,
        remote_offset: 0,
        remote_bytes: total as u64,
        local: &pieces,
        flags: RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME,
        user_token: 1,
    };
    ground.operate(&args, b"written");
    assert_eq!(ground.notification(), RdmaNotify { user_token: 1, status: RdmaStatus::Success });
    assert!(ground.holds(1, 77, 0, 4, total), "gathered");
    ground.fill(1, 77, 5, total);
    ground.operate(&RdmaArgs { flags: RdmaFlags::NOTIFY_ME, user_token: 2, ..args }, b"read");
    assert_eq!(ground.notification(), RdmaNotify { user_token: 2, status: RdmaStatus::Success });
    let (whole, mut from) = (message(1, 5, total), 0);
    for (index, len) in lens.iter().enumerate() {
        let mut bytes = vec![0; *len];
        own.read((COUNT - index) * 1000, &mut bytes).expect("inside");
        assert!(bytes == whole[from..from + len], "piece {index}");
        from += len;
    }
    // More than there may be.
    let piece = own.slice(0, 1).expect("inside");
    let many = [piece; rds_nostd::MAX_IOVS + 1];
    let args = RdmaArgs { local: &many, remote_bytes: many.len() as u64, ..args };
    let control = Control { rdma: Some(args), ..Control::default() };
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let refused = rds.sendmsg(adapter, ground.sockets[0], Msg::to(&at(1, 5000), b"x").with(&control));
    assert_eq!(refused, Err(RdsError::MessageSize));
    drop(own);
    ground.close();
}

#[test]
fn a_region_for_one_use_is_gone_after_it() {
    let mut ground = Ground::new(44, "none");
    let flags = RdmaFlags::USE_ONCE | RdmaFlags::INVALIDATE;
    let cookie = ground.offer(5000, 777, flags);
    ground.fill(0, 0, 3, 777);
    let own = Rc::clone(&ground.memory[0]);
    let local = [own.slice(0, 777).expect("inside")];
    let args = RdmaArgs {
        cookie,
        remote_offset: 0,
        remote_bytes: 777,
        local: &local,
        flags: RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME,
        user_token: 1,
    };
    ground.operate(&args, b"used");
    let mut buffer = [0; 16];
    ground.nodes.receive(1, ground.sockets[1], &mut buffer);
    assert!(ground.holds(1, 5000, 0, 3, 777));
    assert_eq!(ground.notification().status, RdmaStatus::Success);
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    assert_eq!(
        rds.free_mr(adapter, ground.sockets[1], cookie),
        Err(RdsError::InvalidArgument),
        "gone already"
    );
    ground.operate(&args, b"again");
    assert_eq!(ground.notification().status, RdmaStatus::RemoteError);
    drop(own);
    ground.close();
}

#[test]
fn silent_operations_need_no_message() {
    let mut ground = Ground::new(45, "none");
    let cookie = ground.offer(0, 4096, RdmaFlags::empty());
    for number in 0..20 {
        ground.fill(0, 0, number, 4096);
        let own = Rc::clone(&ground.memory[0]);
        let local = [own.slice(0, 4096).expect("inside")];
        let flags = RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME | RdmaFlags::SILENT;
        let args = RdmaArgs {
            cookie,
            remote_offset: 0,
            remote_bytes: 4096,
            local: &local,
            flags,
            user_token: number as u64,
        };
        ground.operate(&args, &[]);
        let done = RdmaNotify { user_token: number as u64, status: RdmaStatus::Success };
        assert_eq!(ground.notification(), done);
        assert!(ground.holds(1, 0, 0, number, 4096));
    }
    assert_eq!(ground.nodes.rds[1].is_readable(ground.sockets[1]), Ok(false));
    assert_eq!(ground.nodes.rds[0].unacknowledged(ground.sockets[0]), Ok(0));
    // Numbers go on where they were.
    ground.nodes.send(0, ground.sockets[0], at(1, 5000), b"after").expect("accepted");
    let mut buffer = [0; 16];
    assert_eq!(ground.nodes.receive(1, ground.sockets[1], &mut buffer).len, 5);
    ground.close();
}

#[test]
fn misuse_is_refused_and_leaves_nothing() {
    let mut ground = Ground::new(46, "none");
    let [socket, _] = ground.sockets;
    let memory = Rc::clone(&ground.memory[0]);
    let local = [memory.slice(0, 100).expect("inside")];
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let own = rds.get_mr(adapter, socket, local[0], RdmaFlags::empty()).expect("room");
    let args = RdmaArgs {
        cookie: RdmaCookie(0x300),
        remote_offset: 0,
        remote_bytes: 100,
        local: &local,
        flags: RdmaFlags::empty(),
        user_token: 0,
    };
    let none = Control::default();
    let empty = [];
    let long = [memory.slice(0, 1 << 20).expect("inside"), memory.slice(0, 1).expect("inside")];
    let cases = [
        (Control { rdma: Some(args), dest: Some(own), ..none }, RdsError::InvalidArgument),
        (
            Control { map: Some((local[0], RdmaFlags::empty())), dest: Some(own), ..none },
            RdsError::InvalidArgument,
        ),
        (Control { dest: Some(RdmaCookie(0x300)), ..none }, RdsError::InvalidArgument),
        (Control { rdma: Some(RdmaArgs { remote_bytes: 99, ..args }), ..none }, RdsError::InvalidArgument),
        (Control { rdma: Some(RdmaArgs { local: &empty, ..args }), ..none }, RdsError::InvalidArgument),
        (
            Control { rdma: Some(RdmaArgs { local: &long, remote_bytes: 1 << 21, ..args }), ..none },
            RdsError::MessageSize,
        ),
    ];
    let free = rds.free_frames();
    for (control, error) in cases {
        let refused = rds.sendmsg(adapter, socket, Msg::to(&at(1, 5000), b"x").with(&control));
        assert_eq!(refused, Err(error), "{control:?}");
    }
    assert_eq!(rds.unacknowledged(socket), Ok(0));
    assert!(rds.free_frames() + 1 >= free, "but for the acknowledgement frame of the connection");

    // Regions run out, and are all back after the socket closes.
    let mut regions = 1;
    while rds.get_mr(adapter, socket, local[0], RdmaFlags::empty()).is_ok() {
        regions += 1;
    }
    assert_eq!(regions, 16);
    rds.close(adapter, socket).expect("open");
    let socket = rds.bind(at(0, 4000)).expect("free");
    let region = memory.slice(0, (1 << 20) + 1).expect("inside");
    assert_eq!(rds.get_mr(adapter, socket, region, RdmaFlags::empty()), Err(RdsError::MessageSize));
    for _ in 0..16 {
        rds.get_mr(adapter, socket, local[0], RdmaFlags::empty()).expect("room again");
    }
    let refused = rds.get_mr(adapter, socket, local[0], RdmaFlags::empty());
    assert_eq!(refused.map_err(|error| (error, error.errno())), Err((RdsError::Exhausted, 11)));
    ground.sockets[0] = socket;
    drop(memory);
    ground.close();
}

#[test]
fn atomics_by_cookie() {
    let mut ground = Ground::new(47, "loss=0.5%,dup=1%,reorder=1%");
    let cookie = ground.offer(4096 + 40, 16, RdmaFlags::PEER_ATOMICS);
    let word = |ground: &Ground, node: usize, offset: usize| {
        let mut bytes = [0; 8];
        ground.memory[node].read(offset, &mut bytes).expect("inside");
        u64::from_ne_bytes(bytes)
    };
    let mut value = 0x0102_0304_0506_0708_u64;
    ground.memory[1].write(4096 + 48, &value.to_ne_bytes()).expect("inside");
    let mut buffer = [0; 16];
    for number in 1..50 {
        // Every third compares with what is not there; every second adds, with a message behind it.
        let op = match number % 3 {
            0 => AtomicOp::CompareSwap { compare: value ^ 1, swap: 1 },
            1 => AtomicOp::CompareSwap { compare: value, swap: value.rotate_left(9) },
            _ => AtomicOp::FetchAdd { add: 0xffff_0000_0000_0001_u64.wrapping_mul(number) },
        };
        let local = ground.memory[0].slice(64, 8).expect("inside");
        let flags = RdmaFlags::NOTIFY_ME | RdmaFlags::FENCE;
        let args = AtomicArgs { cookie, remote_offset: 8, local, op, flags, user_token: number };
        let control = Control { atomic: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
        rds.sendmsg(adapter, ground.sockets[0], Msg::to(&at(1, 5000), b"counted").with(&control))
            .expect("accepted");
        let done = RdmaNotify { user_token: number, status: RdmaStatus::Success };
        assert_eq!(ground.notification(), done);
        ground.nodes.receive(1, ground.sockets[1], &mut buffer);
        assert_eq!(word(&ground, 0, 64), value, "operation {number}: what was there");
        value = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == value => swap,
            AtomicOp::CompareSwap { .. } => value,
            AtomicOp::FetchAdd { add } => value.wrapping_add(add),
            masked => unreachable!("{masked:?} is not asked for"),
        };
        assert_eq!(word(&ground, 1, 4096 + 48), value, "operation {number}: what is there");
    }
    let local = ground.memory[0].slice(64, 8).expect("inside");
    let odd = AtomicArgs {
        cookie,
        remote_offset: 4,
        local,
        op: AtomicOp::FetchAdd { add: 1 },
        flags: RdmaFlags::empty(),
        user_token: 0,
    };
    let control = Control { atomic: Some(odd), ..Control::default() };
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let refused = rds.sendmsg(adapter, ground.sockets[0], Msg::to(&at(1, 5000), b"x").with(&control));
    assert_eq!(refused, Err(RdsError::InvalidArgument));
    ground.close();
}

/// An operation that is under way when its socket cancels it or closes: from then on nothing comes into its memory.
#[test]
fn what_is_cancelled_touches_no_memory_any_more() {
    for (seed, closes) in [(46, false), (47, true)] {
        let mut ground = Ground::new(seed, "none");
        let len = 100_000;
        let cookie = ground.offer(0, len, RdmaFlags::empty());
        ground.fill(1, 0, 5, len);
        ground.memory[0].fill(0, len, 0).expect("inside");
        // The request is lost on its way; the HCA would send it again.
        ground.nodes.world.set_cable(1, false);
        let own = Rc::clone(&ground.memory[0]);
        let local = [own.slice(0, len).expect("inside")];
        let (remote_offset, remote_bytes, user_token) = (0, len as u64, 9);
        let flags = RdmaFlags::NOTIFY_ME;
        ground.operate(
            &RdmaArgs { cookie, remote_offset, remote_bytes, local: &local, flags, user_token },
            b"x",
        );
        if closes {
            ground.nodes.close_socket(0, ground.sockets[0]);
        } else {
            ground.nodes.cancel(0, ground.sockets[0], at(1, 5000));
            let (rds, status) = (&mut ground.nodes.rds[0], RdmaStatus::Canceled);
            assert_eq!(rds.take_notification(ground.sockets[0]), Ok(Some(RdmaNotify { user_token, status })));
        }
        ground.nodes.world.set_cable(1, true);
        let end = ground.nodes.world.now() + 2_000_000_000;
        ground.nodes.until("some time passes", |nodes| nodes.world.now() >= end);
        let mut bytes = vec![1; len];
        ground.memory[0].read(0, &mut bytes).expect("inside");
        assert!(bytes.iter().all(|byte| *byte == 0), "closes: {closes}");
        drop(own);
        ground.close();
    }
}

/// When the frames that a peer may have are used up, the call says EAGAIN, `poll` does not say OUT, and does when there are some again.
#[test]
fn poll_waits_for_frames() {
    let config = RdsConfig { send_frames: 64, send_buffer: 1 << 20, ..RdsConfig::new(GENERATION) };
    let mut nodes = Nodes::with(48, "none", 2, config);
    let (sender, receiver) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let out = PollMask::OUT | PollMask::WRNORM;
    nodes.world.set_cable(1, false);
    let mut sent = 0;
    let error = loop {
        match nodes.send(0, sender, at(1, 5000), &message(0, sent, 64)) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 64);
        assert_eq!(nodes.rds[0].poll_mask(sender).map(|mask| mask & out), Ok(out));
    };
    assert_eq!((error, error.errno()), (RdsError::NoBufferSpace, 11));
    assert_eq!(nodes.rds[0].poll_mask(sender).map(|mask| mask & out), Ok(PollMask::empty()));
    nodes.world.set_cable(1, true);
    let mut buffer = [0; 64];
    for number in 0..sent {
        nodes.receive(1, receiver, &mut buffer);
        assert!(buffer[..] == message(0, number, 64), "{number}");
    }
    nodes.until("there are frames", |nodes| {
        nodes.rds[0].poll_mask(sender).is_ok_and(|mask| mask.contains(out))
    });
    nodes.send(0, sender, at(1, 5000), b"more").expect("room");
    nodes.close();
}
