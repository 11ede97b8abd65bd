//! Offers of registered memory, which are memory windows: what stands in their way keeps nobody else waiting, and what cannot be ended is
//! not said to be.

use dat_nostd::{DmaBuffer, DmaSlice, Duration};
use harness::rds::{GENERATION, Nodes, at, message};
use mlx5_prm::opcode::Opcode;
use rds_nostd::{
    Control, MemoryHandle, Msg, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, RdsConfig, RdsError,
    SocketHandle,
};
use std::rc::Rc;

const LEN: usize = 1 << 16;
const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Nodes 1 and 2 are the peers of node 0, which offers.
const OFFERS: usize = 0;
const PEERS: [usize; 2] = [1, 2];

struct Ground {
    nodes: Nodes,
    sockets: [SocketHandle; 3],
    memory: Rc<DmaBuffer>,
}

impl Ground {
    fn new(seed: u64, isolate_peers: bool) -> Self {
        Self::with(seed, RdsConfig { isolate_peers, ..RdsConfig::new(GENERATION) })
    }

    fn with(seed: u64, config: RdsConfig) -> Self {
        let (send_buffer, rdma_within) = (1 << 20, Some(harness::SOLE_ACCESS));
        let config = RdsConfig { seed, send_buffer, rdma_within, ..config };
        let mut nodes = Nodes::with(seed, "none", 3, config);
        let sockets = [0, 1, 2].map(|node| nodes.bind(node, 4000));
        let memory = Rc::new(nodes.adapters[OFFERS].dma_alloc(2 * LEN, 4096).expect("memory"));
        let mut ground = Self { nodes, sockets, memory };
        for peer in PEERS {
            ground.greet(peer);
        }
        ground
    }

    /// A message to a peer, which acknowledges it: they are connected.
    fn greet(&mut self, peer: usize) {
        let socket = self.sockets[OFFERS];
        self.nodes.send(OFFERS, socket, at(peer, 4000), b"connect").expect("room");
        self.nodes.receive(peer, self.sockets[peer], &mut [0; 8]);
        self.nodes.until("it is acknowledged", |nodes| nodes.rds[OFFERS].unacknowledged(socket) == Ok(0));
    }

    /// Memory for a peer, of a socket.
    fn register(&mut self, socket: SocketHandle, peer: usize, memory: DmaSlice<'_>) -> MemoryHandle {
        let (rds, adapter) = (&mut self.nodes.rds[OFFERS], &mut self.nodes.adapters[OFFERS]);
        rds.register_memory(adapter, socket, at(peer, 4000), memory).expect("room")
    }

    fn offer(
        &mut self,
        socket: SocketHandle,
        peer: usize,
        part: DmaSlice<'_>,
        flags: RdmaFlags,
    ) -> RdmaCookie {
        let (rds, adapter) = (&mut self.nodes.rds[OFFERS], &mut self.nodes.adapters[OFFERS]);
        rds.get_mr_for_dest(adapter, socket, at(peer, 4000), part, flags).expect("room")
    }

    fn free(&mut self, socket: SocketHandle, cookie: RdmaCookie) -> Result<(), RdsError> {
        self.nodes.rds[OFFERS].free_mr(&mut self.nodes.adapters[OFFERS], socket, cookie)
    }

    /// Waits until access has ended to all that a socket released.
    fn wait_for_end(&mut self, socket: SocketHandle) {
        self.nodes.until("access ends", |nodes| {
            match nodes.rds[OFFERS].free_mr(&mut nodes.adapters[OFFERS], socket, RdmaCookie(0)) {
                Err(RdsError::Again) => false,
                done => done.is_ok() || panic!("{done:?}"),
            }
        });
    }

    fn bound(&self) -> u64 {
        self.nodes.rds[OFFERS].counters().windows_bound
    }

    fn breaks(&self) -> u64 {
        self.nodes.rds[OFFERS].counters().conn_reset
    }

    /// How long something takes, in virtual time.
    fn takes<T>(&mut self, what: impl FnOnce(&mut Self) -> T) -> (T, u64) {
        let before = self.nodes.world.now();
        let result = what(self);
        (result, self.nodes.world.now() - before)
    }

    /// The peer's cable is out, and something is on its way to it: requests behind that wait.
    fn stall(&mut self, peer: usize) {
        self.nodes.world.set_cable(peer, false);
        let socket = self.sockets[OFFERS];
        self.nodes.send(OFFERS, socket, at(peer, 4000), b"stuck").expect("room");
    }

    /// How it ends when a peer writes by a cookie.
    fn write(&mut self, peer: usize, cookie: RdmaCookie, bytes: &[u8]) -> RdmaStatus {
        self.nodes.write((peer, self.sockets[peer]), at(OFFERS, 4000), (cookie, 0), bytes)
    }

    /// How it ends when another socket of the node that offers does, so far behind the beginning.
    fn write_within(&mut self, cookie: RdmaCookie, offset: u64, bytes: &[u8]) -> RdmaStatus {
        let socket = self.nodes.bind(OFFERS, 4002);
        let status = self.nodes.write((OFFERS, socket), at(OFFERS, 4000), (cookie, offset), bytes);
        self.nodes.rds[OFFERS].close(&mut self.nodes.adapters[OFFERS], socket).expect("open");
        status
    }

    fn close(self) {
        self.nodes.close_with([Rc::into_inner(self.memory).expect("nobody has it")]);
    }
}

/// A device that has failed may still take what peers write: nothing that leads to memory of the program's own is said to be out of
/// reach before it was reset, neither what is released now nor what was being released.
#[test]
fn a_window_on_a_dead_device_is_not_ended() {
    let mut ground = Ground::new(160, true);
    let [socket, _, _] = ground.sockets;
    let own = harness::foreign(LEN);
    let registered = ground.register(socket, 1, own);
    let part = |number: usize| own.slice(number * 1000, 1000).expect("inside");
    let [kept, ended] = [0, 1].map(|number| ground.offer(socket, 1, part(number), RdmaFlags::empty()));
    let before = ground.offer(socket, 1, part(9), RdmaFlags::empty());
    assert_eq!(ground.bound(), 3);
    ground.stall(1);
    ground.free(socket, before).expect("is on its way");
    ground.nodes.world.lose_hca(OFFERS, 20 * SECOND);
    ground.nodes.until("the end", |nodes| nodes.adapters[OFFERS].is_dead());
    let end = ground.nodes.world.now() + SECOND;
    ground.nodes.until("a second", |nodes| nodes.world.now() > end);
    for _ in 0..2 {
        for cookie in [kept, ended, RdmaCookie(0)] {
            let refused = ground.free(socket, cookie);
            assert!(matches!(refused, Err(RdsError::Dat(_))), "{cookie:?}: {refused:?}");
        }
        let (rds, adapter) = (&mut ground.nodes.rds[OFFERS], &mut ground.nodes.adapters[OFFERS]);
        assert!(rds.unregister_memory(adapter, socket, registered).is_err());
    }
    let (rds, adapter) = (&mut ground.nodes.rds[OFFERS], &mut ground.nodes.adapters[OFFERS]);
    assert!(rds.close(adapter, socket).is_err());
    adapter.recover(Duration::from_secs(30)).expect("recovers");
    rds.adapter_recovered(adapter).expect("goes on");
    assert_eq!(rds.free_mr(adapter, socket, kept), Err(RdsError::InvalidArgument), "it is gone");
    rds.close(adapter, socket).expect("nothing keeps it");
    ground.nodes.world.set_cable(1, true);
    ground.close();
}

/// What one socket released, and a peer keeps waiting, is nothing to other sockets: they neither wait for it nor is its connection ended.
#[test]
fn one_socket_does_not_wait_for_anothers_releases() {
    let mut ground = Ground::new(161, true);
    let memory = Rc::clone(&ground.memory);
    let [socket, _, _] = ground.sockets;
    let other = ground.nodes.bind(OFFERS, 4001);
    ground.register(socket, 1, memory.slice(0, LEN).expect("inside"));
    let [first, second] =
        [0, 1].map(|half| ground.register(other, 2, memory.slice(LEN + half * 8192, 8192).expect("inside")));
    let other_peers = ground.nodes.bind(OFFERS, 4003);
    let cookie = ground.offer(socket, 1, memory.slice(0, 100).expect("inside"), RdmaFlags::empty());
    assert_eq!(ground.bound(), 1);
    ground.stall(1);
    ground.free(socket, cookie).expect("is on its way");
    let breaks = ground.breaks();
    let (_, duration) = ground.takes(|ground| {
        ground.free(other, RdmaCookie(0)).expect("nothing is released");
        let (rds, adapter) = (&mut ground.nodes.rds[OFFERS], &mut ground.nodes.adapters[OFFERS]);
        rds.unregister_memory(adapter, other, first).expect("its own");
        rds.close(adapter, other).expect("open");
    });
    assert!(duration < MS, "{duration} ns");
    assert_eq!(ground.breaks(), breaks);
    let (rds, adapter) = (&mut ground.nodes.rds[OFFERS], &mut ground.nodes.adapters[OFFERS]);
    assert_eq!(rds.unregister_memory(adapter, other, second), Err(RdsError::BadSocket));
    // Its own releases a socket does wait for, and not for ever: completions of others postpone nothing.
    let (_, duration) = ground.takes(|ground| {
        ground.nodes.until("access ends", |nodes| {
            let (rds, adapter) = (&mut nodes.rds[OFFERS], &mut nodes.adapters[OFFERS]);
            let _ = rds.sendmsg(adapter, other_peers, Msg::to(&at(2, 4000), b"moves"));
            rds.free_mr(adapter, socket, RdmaCookie(0)) != Err(RdsError::Again)
        });
    });
    assert!((100 * MS..110 * MS).contains(&duration), "{duration} ns");
    assert_eq!((ground.free(socket, RdmaCookie(0)), ground.breaks()), (Ok(()), breaks + 1));
    ground.nodes.world.set_cable(1, true);
    drop(memory);
    ground.close();
}

/// Any connection of the zone takes an unbind: one whose peer stalls is not waited for.
#[test]
fn an_unbind_goes_around_a_peer_that_stalls() {
    for stalls in PEERS {
        let mut ground = Ground::new(162, false);
        let memory = Rc::clone(&ground.memory);
        let [socket, _, _] = ground.sockets;
        ground.register(socket, 1, memory.slice(0, LEN).expect("inside"));
        let cookie = ground.offer(socket, 1, memory.slice(0, 100).expect("inside"), RdmaFlags::empty());
        assert_eq!(ground.bound(), 1);
        ground.nodes.world.pass(MS);
        ground.nodes.step();
        ground.stall(stalls);
        ground.free(socket, cookie).expect("there");
        let (_, duration) = ground.takes(|ground| ground.wait_for_end(socket));
        assert!(duration < MS, "{duration} ns");
        ground.nodes.world.set_cable(stalls, true);
        drop(memory);
        ground.close();
    }
}

/// Offers to a peer that stalls return at once, without a command. They are bound behind what is on its way, before later messages.
#[test]
fn offers_to_a_peer_that_stalls_wait_in_its_send_queue() {
    for isolate_peers in [true, false] {
        let mut ground = Ground::new(163, isolate_peers);
        let memory = Rc::clone(&ground.memory);
        let [socket, peer, _] = ground.sockets;
        ground.register(socket, 1, memory.slice(0, LEN).expect("inside"));
        let part = |number: usize| memory.slice(number * 100, 100).expect("inside");
        // Windows are made by commands.
        let made = [0; 8].map(|number| ground.offer(socket, 1, part(number), RdmaFlags::empty()));
        for cookie in made {
            ground.free(socket, cookie).expect("there");
        }
        ground.wait_for_end(socket);
        ground.stall(1);
        let before = (ground.bound(), ground.nodes.adapters[OFFERS].hca().counters().commands);
        let (cookies, duration) = ground.takes(|ground| {
            [0, 1, 2, 3, 4, 5, 6, 7].map(|number| ground.offer(socket, 1, part(number), RdmaFlags::empty()))
        });
        let after = (ground.bound(), ground.nodes.adapters[OFFERS].hca().counters().commands);
        assert_eq!((after, duration), ((before.0 + 8, before.1), 0));
        ground.nodes.send(OFFERS, socket, at(1, 4000), b"use").expect("room");
        ground.nodes.world.set_cable(1, true);
        for _ in 0..2 {
            ground.nodes.receive(1, peer, &mut [0; 8]);
        }
        for (number, cookie) in cookies.into_iter().enumerate() {
            let text = message(1, number, 100);
            assert_eq!(ground.write(1, cookie, &text), RdmaStatus::Success);
            let mut found = vec![0; 100];
            memory.read(number * 100, &mut found).expect("inside");
            assert!(found == text);
        }
        drop(memory);
        ground.close();
    }
}

/// Offers with messages, released while their binds wait behind a full send queue: nothing waits for them, the connection stays, every
/// message arrives, and access ends.
#[test]
fn a_release_behind_a_full_send_queue_breaks_nothing() {
    // The peer has receives for all that the send queue takes: it stands still while the release waits.
    const SEND_DEPTH: u16 = 32;
    // What is left of it for messages, but for acknowledgements.
    const FILLERS: usize = 29;
    let config = RdsConfig { send_depth: SEND_DEPTH, ..RdsConfig::new(GENERATION) };
    let mut ground = Ground::with(164, config);
    let memory = Rc::clone(&ground.memory);
    let [socket, _, _] = ground.sockets;
    let registered = ground.register(socket, 1, memory.slice(0, LEN).expect("inside"));
    // Windows are made by commands, in which time the queue would empty.
    let parts = (0..12).map(|number| memory.slice(number * 100, 100).expect("inside"));
    let made: Vec<_> = parts.map(|part| ground.offer(socket, 1, part, RdmaFlags::empty())).collect();
    for cookie in made {
        ground.free(socket, cookie).expect("there");
    }
    let end = ground.nodes.world.now() + MS;
    ground.nodes.until("a millisecond", |nodes| nodes.world.now() > end);
    let (breaks, before) = (ground.breaks(), ground.bound());
    let mut sent = 0;
    for _ in 0..FILLERS {
        ground.nodes.send(OFFERS, socket, at(1, 4000), b"filler").expect("room");
        sent += 1;
    }
    let mut cookies = Vec::new();
    while cookies.len() < 12 {
        let part = memory.slice(cookies.len() * 100, 100).expect("inside");
        let control = Control { map: Some((part, RdmaFlags::empty())), ..Control::default() };
        let (rds, adapter) = (&mut ground.nodes.rds[OFFERS], &mut ground.nodes.adapters[OFFERS]);
        let offered = rds.sendmsg(adapter, socket, Msg::to(&at(1, 4000), b"use").with(&control));
        cookies.push(offered.expect("room").expect("mapped"));
        sent += 1;
    }
    let bound = ground.bound() - before;
    assert!((1..12).contains(&bound), "{bound}: until it is full");
    // The last one that was bound first: its bind is in flight.
    let bound = bound as usize;
    let last = cookies[bound - 1];
    for cookie in cookies.drain(..).rev() {
        ground.free(socket, cookie).expect("there");
    }
    assert_eq!(ground.free(socket, RdmaCookie(0)), Err(RdsError::Again));
    for _ in 0..sent {
        ground.nodes.receive(1, ground.sockets[1], &mut [0; 8]);
    }
    ground.wait_for_end(socket);
    assert_eq!(ground.breaks(), breaks);
    assert_eq!(ground.write(1, last, &[7; 8]), RdmaStatus::RemoteError);
    let (rds, adapter) = (&mut ground.nodes.rds[OFFERS], &mut ground.nodes.adapters[OFFERS]);
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Ok(()));
    drop(memory);
    ground.close();
}

/// A region for one use is released because of a peer's message: no call waits for that, even if that peer
/// takes nothing any more. Access ends all the same, at the latest when cookie 0 is released.
#[test]
fn a_region_that_is_used_up_keeps_nobody_waiting() {
    let mut ground = Ground::new(165, true);
    let memory = Rc::clone(&ground.memory);
    let [socket, peer, _] = ground.sockets;
    ground.register(socket, 1, memory.slice(0, LEN).expect("inside"));
    let part = memory.slice(0, 100).expect("inside");
    let cookie = ground.offer(socket, 1, part, RdmaFlags::USE_ONCE);
    assert_eq!(ground.bound(), 1);
    // Word that it was used arrives, and nobody looks yet.
    let local = ground.nodes.adapters[1].dma_alloc(100, 64).expect("memory");
    let args = RdmaArgs {
        cookie,
        remote_offset: 0,
        remote_bytes: 100,
        local: &[local.as_slice()],
        flags: RdmaFlags::READWRITE,
        user_token: 0,
    };
    let control = Control { rdma: Some(args), ..Control::default() };
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    rds.sendmsg(adapter, peer, Msg::to(&at(OFFERS, 4000), b"used").with(&control)).expect("room");
    ground.nodes.world.pass(MS);
    ground.stall(1);
    let breaks = ground.breaks();
    let now = dat_nostd::Instant::from_nanos(ground.nodes.world.now());
    let (_, duration) = ground.takes(|ground| {
        let Nodes { rds, adapters, .. } = &mut ground.nodes;
        for _ in 0..4 {
            let _ = rds[OFFERS].poll(&mut adapters[OFFERS], now);
        }
    });
    assert!(duration < MS, "{duration} ns");
    assert_eq!((ground.breaks(), ground.nodes.rds[OFFERS].counters().mr_8k_free), (breaks, 1));
    ground.wait_for_end(socket);
    assert_eq!(ground.breaks(), breaks + 1);
    ground.nodes.world.set_cable(1, true);
    ground.greet(1);
    assert_eq!(ground.write(1, cookie, &[7; 8]), RdmaStatus::RemoteError);
    let mut found = [0; 8];
    memory.read(0, &mut found).expect("inside");
    assert_ne!(found, [7; 8]);
    ground.nodes.until("its operation is over", |nodes| nodes.rds[1].unacknowledged(peer) == Ok(0));
    ground.nodes.adapters[1].dma_free(local).expect("nothing leads there");
    drop(memory);
    ground.close();
}

/// A release that firmware refused, and that came about later: the old cookie is nobody's, also when its window is another offer's. It
/// ends nothing, and leads no socket of the node itself to what the window is bound to now.
#[test]
fn an_old_cookie_ends_no_other_offer() {
    for isolate_peers in [true, false] {
        let mut ground = Ground::new(166, isolate_peers);
        let memory = Rc::clone(&ground.memory);
        let [socket, _, _] = ground.sockets;
        ground.register(socket, 1, memory.slice(0, LEN).expect("inside"));
        let old = ground.offer(socket, 1, memory.slice(0, 100).expect("inside"), RdmaFlags::empty());
        assert_eq!(ground.bound(), 1);
        // Without a connection a command ends access.
        let breaks = ground.breaks() + 2;
        for peer in PEERS {
            ground.stall(peer);
        }
        ground.nodes.until("both break", |nodes| nodes.rds[OFFERS].counters().conn_reset >= breaks);
        let refuse = |ground: &Ground, refused: &[Opcode]| {
            ground.nodes.world.with_hca(OFFERS, |hca| hca.habits_mut().refused_commands = refused.to_vec());
        };
        refuse(&ground, &[Opcode::DESTROY_MKEY]);
        for cookie in [old, RdmaCookie(0)] {
            assert!(matches!(ground.free(socket, cookie), Err(RdsError::Dat(_))), "{cookie:?}");
        }
        refuse(&ground, &[]);
        for peer in PEERS {
            ground.nodes.world.set_cable(peer, true);
        }
        for peer in PEERS {
            ground.nodes.receive(peer, ground.sockets[peer], &mut [0; 8]);
        }
        ground.free(socket, RdmaCookie(0)).expect("now it does");
        let new = ground.offer(socket, 1, memory.slice(200, 100).expect("inside"), RdmaFlags::empty());
        assert_eq!(ground.bound(), 2);
        // Where the new one begins, as seen from the old one.
        for offset in [0, 200] {
            assert_eq!(ground.write_within(old, offset, &[9; 8]), RdmaStatus::RemoteError, "at {offset}");
        }
        let mut found = [0; 300];
        memory.read(0, &mut found).expect("inside");
        assert_eq!(found, [0; 300]);
        if !isolate_peers {
            assert_eq!(ground.write_within(new, 0, &[8; 8]), RdmaStatus::Success, "that is what it is for");
        }
        assert_eq!(ground.free(socket, old), Ok(()), "once, as it was refused before");
        assert_eq!(ground.free(socket, old), Err(RdsError::InvalidArgument));
        assert_eq!(ground.write(1, new, &[7; 8]), RdmaStatus::Success);
        assert_eq!(ground.free(socket, new), Ok(()));
        drop(memory);
        ground.close();
    }
}
