//! Clauses of rds(3SOCKET) that nothing else asserts, with sockets of that profile.

use dat_nostd::{DmaBuffer, Instant};
use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::cmsg::{Abi, Cmsg, ControlReader, ControlWriter};
use rds_nostd::{
    Arrival, Control, Msg, MsgFlags, PollMask, Profile, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify,
    RdmaStatus, RdsConfig, RdsError, SocketHandle,
};

const NONE: MsgFlags = MsgFlags::empty();

fn nodes(seed: u64) -> Nodes {
    let isolate_peers = false;
    let config = RdsConfig { seed, isolate_peers, profile: Profile::Solaris, ..RdsConfig::new(GENERATION) };
    Nodes::with(seed, "none", 2, config)
}

/// Node 1 offers memory to node 0, which operates on it.
struct Ground {
    nodes: Nodes,
    sockets: [SocketHandle; 2],
    memory: [DmaBuffer; 2],
    cookie: RdmaCookie,
}

impl Ground {
    fn new(seed: u64) -> Self {
        let mut nodes = nodes(seed);
        let sockets = [0, 1].map(|node| nodes.bind(node, 4000 + node as u16));
        let memory = [0, 1].map(|node| nodes.adapters[node].dma_alloc(4096, 4096).expect("memory"));
        let region = memory[1].slice(0, 4096).expect("inside");
        let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
        let cookie = rds.get_mr(adapter, sockets[1], region, RdmaFlags::empty()).expect("offered");
        Self { nodes, sockets, memory, cookie }
    }

    /// A read of `len` bytes that may touch `remote_bytes`.
    fn read(
        &mut self,
        len: usize,
        remote_bytes: u64,
        flags: RdmaFlags,
        user_token: u64,
    ) -> Result<(), RdsError> {
        let local = [self.memory[0].slice(0, len).expect("inside")];
        let args = RdmaArgs {
            cookie: self.cookie,
            remote_offset: 0,
            remote_bytes,
            local: &local,
            flags,
            user_token,
        };
        let control = Control { rdma: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(&at(1, 4001), b"done").with(&control)).map(|_| ())
    }

    /// Until node 0 has something to receive.
    fn until_told(&mut self) {
        let socket = self.sockets[0];
        self.nodes.until("it is told", |nodes| {
            nodes.rds[0].poll_mask(socket).is_ok_and(|mask| mask.contains(PollMask::IN))
        });
    }

    /// `recvmsg` of a node with so many bytes of control messages: what came, the messages beside it, and whether some were cut.
    fn receive(&mut self, node: usize, room: usize) -> Result<(Arrival, Vec<Cmsg>, bool), RdsError> {
        let (mut buffer, mut control) = ([0; 64], vec![0; room]);
        let mut writer = ControlWriter::new(Abi::SOLARIS, &mut control);
        let (rds, adapter) = (&mut self.nodes.rds[node], &mut self.nodes.adapters[node]);
        let arrival = rds.recvmsg_control(adapter, self.sockets[node], &mut buffer, NONE, &mut writer)?;
        let (len, cut) = writer.finish();
        let messages = ControlReader::new(Abi::SOLARIS, &control[..len]).filter_map(Result::ok).collect();
        Ok((arrival, messages, cut))
    }

    fn close(self) {
        self.nodes.close_with(self.memory);
    }
}

#[test]
fn an_unbound_socket_neither_sends_nor_receives() {
    let mut nodes = nodes(91);
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    let socket = rds.socket().expect("a free one");
    assert_eq!(rds.local_address(socket), Err(RdsError::NotConnected));
    let sent = rds.sendmsg(adapter, socket, Msg::to(&at(1, 4000), b"x"));
    assert_eq!(sent.map_err(|error| error.errno_for(Profile::Solaris)), Err(134));
    assert_eq!(rds.recvmsg(adapter, socket, &mut [0; 8], NONE), Err(RdsError::Again));
    rds.bind_socket(socket, at(0, 4000)).expect("free");
    assert_eq!(rds.local_address(socket), Ok(at(0, 4000)));
    assert_eq!(rds.sendmsg(adapter, socket, Msg::to(&at(1, 4000), b"x")), Ok(None));
    nodes.close();
}

#[test]
fn ports_are_chosen_at_random() {
    let mut all = std::collections::BTreeSet::new();
    for seed in 1..6 {
        let mut nodes = nodes(seed);
        for _ in 0..2 {
            let socket = nodes.bind(0, 0);
            let here = nodes.rds[0].local_address(socket).expect("bound");
            assert!(here.ip() == at(0, 0).ip() && here.port() > 1, "{here}");
            all.insert(here.port());
        }
        nodes.close();
    }
    assert_eq!(all.len(), 10, "{all:?}");
    assert!(all.last().zip(all.first()).is_some_and(|(last, first)| last - first > 1000), "{all:?}");
}

#[test]
fn a_destination_without_room_says_eagain() {
    let mut nodes = nodes(92);
    let (sender, full) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    nodes.rds[1].set_rcvbuf(&mut nodes.adapters[1], full, 10_000).expect("open");
    let mut sent = 0;
    nodes.until("its buffer is full", |nodes| {
        match nodes.send(0, sender, at(1, 5000), &message(0, sent, 3000)) {
            Ok(_) => {
                sent += 1;
                false
            }
            Err(error) => {
                assert_eq!(error.errno_for(Profile::Solaris), 11, "{error}");
                error == RdsError::Congested
            }
        }
    });
    let out = PollMask::OUT | PollMask::WRNORM;
    assert_eq!(nodes.rds[0].poll_mask(sender), Ok(out), "the application backs off by itself");
    let mut buffer = [0; 4000];
    for number in 0..sent {
        assert_eq!(nodes.receive(1, full, &mut buffer).len, 3000);
        assert!(buffer[..3000] == message(0, number, 3000));
    }
    nodes.until("there is room", |nodes| nodes.send(0, sender, at(1, 5000), b"x").is_ok());
    nodes.close();
}

#[test]
fn pollin_says_that_a_message_waits() {
    let mut nodes = nodes(93);
    let (sender, receiver) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let out = PollMask::OUT | PollMask::WRNORM;
    let both = out | PollMask::IN | PollMask::RDNORM;
    assert_eq!(nodes.rds[1].poll_mask(receiver), Ok(out));
    nodes.send(0, sender, at(1, 5000), b"").expect("accepted");
    nodes.until("it arrives", |nodes| nodes.rds[1].counters().recv_queued == 1);
    assert_eq!(nodes.rds[1].poll_mask(receiver), Ok(both), "of no bytes, too");
    assert_eq!(nodes.receive(1, receiver, &mut [0; 8]).len, 0);
    assert_eq!(nodes.rds[1].poll_mask(receiver), Ok(out));
    nodes.close();
}

#[test]
fn statuses_come_alone_and_several_at_once() {
    let mut ground = Ground::new(94);
    for token in 1..=5 {
        ground.read(100, 100, RdmaFlags::NOTIFY_ME, token).expect("accepted");
    }
    // One that nobody wants to hear of.
    ground.read(100, 100, RdmaFlags::empty(), 6).expect("accepted");
    ground.nodes.until("all are over", |nodes| nodes.rds[1].counters().recv_queued == 6);
    // And a message behind them.
    ground.nodes.send(1, ground.sockets[1], at(0, 4000), b"hello").expect("accepted");
    ground.nodes.until("it arrives", |nodes| nodes.rds[0].counters().recv_queued == 1);
    let status = |user_token| Cmsg::RdmaStatus(RdmaNotify { user_token, status: RdmaStatus::Success });
    let first = |token| Arrival::RdmaStatus(RdmaNotify { user_token: token, status: RdmaStatus::Success });
    let room = 3 * Abi::SOLARIS.cmsg_space(8);
    let told = ground.receive(0, room).expect("there");
    assert_eq!(told, (first(1), vec![status(1), status(2), status(3)], false));
    assert_eq!(told.0.value(NONE), 0, "an empty message");
    assert_eq!(ground.receive(0, room), Ok((first(4), vec![status(4), status(5)], false)));
    let (arrival, beside, cut) = ground.receive(0, room).expect("there");
    assert_eq!((arrival.value(NONE), beside, cut), (5, vec![], false));
    assert_eq!(ground.receive(0, room), Err(RdsError::Again), "one for each operation, none for the last");

    // Without room for one it is told that it was cut.
    ground.read(100, 100, RdmaFlags::NOTIFY_ME, 7).expect("accepted");
    ground.until_told();
    assert_eq!(ground.receive(0, 8), Ok((first(7), vec![], true)));
    ground.close();
}

#[test]
fn a_cookie_comes_beside_its_message() {
    let mut ground = Ground::new(95);
    let control = Control { dest: Some(ground.cookie), ..Control::default() };
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    rds.sendmsg(adapter, ground.sockets[1], Msg::to(&at(0, 4000), b"use this").with(&control))
        .expect("accepted");
    ground.nodes.until("it arrives", |nodes| nodes.rds[0].counters().recv_queued == 1);
    let (arrival, beside, _) = ground.receive(0, 64).expect("there");
    assert_eq!((arrival.value(NONE), beside), (8, vec![Cmsg::RdmaDest(ground.cookie)]));
    ground.close();
}

#[test]
fn lengths_of_both_sides_match() {
    let mut ground = Ground::new(96);
    for (len, remote, expected) in [
        (100, 100, Ok(())),
        (100, 101, Err(RdsError::InvalidArgument)),
        (100, 99, Err(RdsError::InvalidArgument)),
    ] {
        assert_eq!(ground.read(len, remote, RdmaFlags::empty(), 1), expected, "{len} of {remote}");
    }
    // As Linux has it, the peer's part may be longer.
    ground.nodes.rds[0].set_profile(ground.sockets[0], Profile::Linux).expect("open");
    assert_eq!(ground.read(100, 101, RdmaFlags::empty(), 1), Ok(()));
    assert_eq!(ground.read(100, 99, RdmaFlags::empty(), 1), Err(RdsError::InvalidArgument));
    ground.nodes.until("both are over", |nodes| nodes.rds[1].counters().recv_queued == 2);
    ground.close();
}

/// Cookie 0 ends what was released, of which nothing is left, and nothing else.
#[test]
fn cookie_0_ends_nothing_that_is_in_use() {
    let mut ground = Ground::new(97);
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    assert_eq!(rds.free_mr(adapter, ground.sockets[1], RdmaCookie(0)), Ok(()));
    ground.read(100, 100, RdmaFlags::NOTIFY_ME, 1).expect("accepted");
    ground.until_told();
    let (arrival, ..) = ground.receive(0, 64).expect("told");
    assert_eq!(arrival, Arrival::RdmaStatus(RdmaNotify { user_token: 1, status: RdmaStatus::Success }));
    ground.close();
}

#[test]
fn without_hardware_there_is_no_socket() {
    let mut nodes = nodes(98);
    nodes.world.unplug(0);
    let end = nodes.world.now() + 10_000_000_000;
    while !nodes.adapters[0].is_dead() {
        assert!(nodes.world.now() < end, "nobody noticed");
        let now = Instant::from_nanos(nodes.world.now());
        let wake = nodes.adapters[0].poll(now);
        nodes.world.idle_until(wake);
    }
    let family = Profile::Solaris.address_family();
    let kind = Profile::Solaris.socket_type();
    let refused = nodes.rds[0].socket_of(&nodes.adapters[0], Profile::Solaris, family, kind, 0);
    assert_eq!(refused.map_err(|error| error.errno_for(Profile::Solaris)).err(), Some(19));
}

/// An operation whose connection breaks before its end is told as dropped, and so is its message.
#[test]
fn an_operation_that_is_cut_off_is_told() {
    let mut ground = Ground::new(99);
    ground.nodes.rds[0].set_receive_errors(ground.sockets[0], true).expect("open");
    ground.read(100, 100, RdmaFlags::empty(), 1).expect("accepted");
    ground.nodes.until("it is over", |nodes| nodes.rds[1].counters().recv_queued == 1);
    ground.nodes.world.set_cable(1, false);
    ground.read(100, 100, RdmaFlags::empty(), 2).expect("accepted");
    ground.nodes.until("the connection breaks", |nodes| nodes.rds[0].counters().conn_reset > 0);
    ground.nodes.world.set_cable(1, true);
    let mut told = None;
    ground.nodes.until("it is told", |nodes| {
        told = nodes.rds[0].take_notification(ground.sockets[0]).expect("open");
        told.is_some()
    });
    let RdmaNotify { user_token, status } = told.expect("just found");
    assert_eq!(user_token, 2);
    assert!(matches!(status, RdmaStatus::Dropped | RdmaStatus::OtherError), "{status:?}");
    ground.nodes.send(0, ground.sockets[0], at(1, 4001), b"after").expect("accepted");
    let mut buffer = [0; 16];
    assert_eq!(ground.nodes.receive(1, ground.sockets[1], &mut buffer).len, 4);
    assert_eq!(ground.nodes.receive(1, ground.sockets[1], &mut buffer).len, 5, "nothing of the dropped one");
    ground.close();
}
