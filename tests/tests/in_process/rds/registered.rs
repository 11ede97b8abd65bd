//! Local memory of operations that was registered before, and memory that is not the adapter's.

use dat_nostd::{DmaBuffer, DmaSlice, Duration};
use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::{
    Control, MemoryHandle, Msg, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, RdsConfig, RdsError,
    SocketHandle,
};
use std::rc::Rc;

const LEN: usize = 1 << 16;
const SECOND: u64 = 1_000_000_000;

/// Node 0 operates on what node 1 offers.
struct Ground {
    nodes: Nodes,
    sockets: [SocketHandle; 2],
    memory: [Rc<DmaBuffer>; 2],
}

impl Ground {
    fn new(seed: u64, isolate_peers: bool) -> Self {
        let config = RdsConfig { seed, isolate_peers, ..RdsConfig::new(GENERATION) };
        let mut nodes = Nodes::with(seed, "none", 2, config);
        let sockets = [nodes.bind(0, 4000), nodes.bind(1, 5000)];
        let memory =
            [0, 1].map(|node| Rc::new(nodes.adapters[node].dma_alloc(2 * LEN, 4096).expect("memory")));
        Self { nodes, sockets, memory }
    }

    /// Registers the first half of node 0's memory for node 1.
    fn register(&mut self) -> MemoryHandle {
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        let half = self.memory[0].slice(0, LEN).expect("inside");
        rds.register_memory(adapter, self.sockets[0], at(1, 5000), half).expect("room")
    }

    /// Node 1 offers memory to node 0.
    fn offer(&mut self, region: DmaSlice<'_>) -> RdmaCookie {
        let (rds, adapter) = (&mut self.nodes.rds[1], &mut self.nodes.adapters[1]);
        rds.get_mr_for_dest(adapter, self.sockets[1], at(0, 4000), region, RdmaFlags::empty()).expect("room")
    }

    fn ask(&mut self, cookie: RdmaCookie, local: &[DmaSlice<'_>], write: bool, user_token: u64) {
        let mut flags = RdmaFlags::NOTIFY_ME | RdmaFlags::FENCE;
        flags.set(RdmaFlags::READWRITE, write);
        let remote_bytes = local.iter().map(|part| part.len() as u64).sum();
        let args = RdmaArgs { cookie, remote_offset: 0, remote_bytes, local, flags, user_token };
        let control = Control { rdma: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        rds.sendmsg(adapter, self.sockets[0], Msg::to(&at(1, 5000), b"done").with(&control)).expect("room");
    }

    /// How it ends.
    fn end(&mut self) -> RdmaNotify {
        let [near, _] = self.sockets;
        let mut told = None;
        self.nodes.until("the operation ends", |nodes| {
            told = nodes.rds[0].take_notification(near).expect("open");
            told.is_some()
        });
        told.expect("just found")
    }

    /// It ends well, and its message arrives.
    fn ends(&mut self, user_token: u64) {
        assert_eq!(self.end(), RdmaNotify { user_token, status: RdmaStatus::Success });
        assert_eq!(self.nodes.receive(1, self.sockets[1], &mut [0; 8]).len, 4);
    }

    fn operate(&mut self, cookie: RdmaCookie, cuts: &[usize], write: bool, user_token: u64) {
        let memory = Rc::clone(&self.memory[0]);
        let parts: Vec<_> =
            cuts.windows(2).map(|cut| memory.slice(cut[0], cut[1] - cut[0]).expect("inside")).collect();
        self.ask(cookie, &parts, write, user_token);
        self.ends(user_token);
    }

    fn close(self) {
        self.nodes.close_with(self.memory.map(|memory| Rc::into_inner(memory).expect("nobody has it")));
    }

    fn commands(&self) -> [u64; 2] {
        [0, 1].map(|node| self.nodes.adapters[node].hca().counters().commands)
    }
}

/// Reads and writes, from pieces or one, between a registered buffer and a region that was offered once: no command of firmware, on neither
/// side. Memory that was not registered works as well, by commands.
#[test]
fn operations_on_registered_memory_take_no_command() {
    for isolate_peers in [true, false] {
        let mut ground = Ground::new(120, isolate_peers);
        let registered = ground.register();
        let region = ground.memory[1].slice(3, LEN).expect("inside");
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        let flags = RdmaFlags::empty();
        let cookie =
            rds.get_mr_for_dest(adapter, ground.sockets[1], at(0, 4000), region, flags).expect("room");
        ground.operate(cookie, &[0, LEN], true, 0);
        let before = ground.commands();
        for number in 1..100 {
            let text = message(0, number, LEN);
            ground.memory[0].write(0, &text).expect("inside");
            let cuts = [0, number, LEN / 2 + number, LEN - number];
            ground.operate(cookie, &cuts, true, number as u64);
            let mut found = vec![0; LEN - number];
            ground.memory[1].read(3, &mut found).expect("inside");
            assert!(found == text[..LEN - number], "written");
            ground.memory[0].fill(0, LEN, 0).expect("inside");
            ground.operate(cookie, &[0, LEN], false, number as u64);
            ground.memory[0].read(0, &mut found).expect("inside");
            assert!(found == text[..LEN - number], "read");
        }
        assert_eq!(ground.commands(), before);
        // Half of it, and what lies behind it.
        ground.operate(cookie, &[LEN / 2, LEN + LEN / 2], true, 100);
        assert!(ground.commands()[0] > before[0]);
        let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
        let [socket, _] = ground.sockets;
        assert_eq!(rds.unregister_memory(adapter, socket, registered), Ok(()));
        let again = rds.unregister_memory(adapter, socket, registered);
        assert_eq!(again, Err(RdsError::InvalidArgument));
        ground.close();
    }
}

/// As many pieces as there may be, of memory that is registered.
#[test]
fn five_hundred_and_twelve_pieces() {
    let mut ground = Ground::new(121, true);
    ground.register();
    let region = ground.memory[1].slice(0, LEN).expect("inside");
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    let flags = RdmaFlags::empty();
    let cookie = rds.get_mr_for_dest(adapter, ground.sockets[1], at(0, 4000), region, flags).expect("room");
    let text = message(0, 7, LEN);
    ground.memory[0].write(0, &text).expect("inside");
    let cuts: Vec<usize> = (0..=rds_nostd::MAX_IOVS).map(|index| index * 127 + index % 5).collect();
    for write in [true, false] {
        ground.operate(cookie, &cuts, write, 1);
        let (mut there, mut here) = (vec![0; cuts[512]], vec![0; cuts[512]]);
        ground.memory[1].read(0, &mut there).expect("inside");
        ground.memory[0].read(0, &mut here).expect("inside");
        assert!(there == text[..cuts[512]] && here == there);
        ground.memory[0].fill(0, LEN, 0).expect("inside");
    }
    ground.close();
}

/// Memory stays registered as long as an operation uses it; closing the socket ends both.
#[test]
fn what_is_in_use_stays_registered() {
    let mut ground = Ground::new(122, true);
    let registered = ground.register();
    ground.nodes.world.set_cable(1, false);
    let memory = ground.memory[0].slice(5, 100).expect("inside");
    let args = RdmaArgs {
        cookie: RdmaCookie(0x300),
        remote_offset: 0,
        remote_bytes: 100,
        local: &[memory],
        flags: RdmaFlags::NOTIFY_ME,
        user_token: 1,
    };
    let control = Control { rdma: Some(args), ..Control::default() };
    let [socket, _] = ground.sockets;
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    rds.sendmsg(adapter, socket, Msg::to(&at(1, 5000), b"x").with(&control)).expect("room");
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Err(RdsError::Again));
    ground.nodes.cancel(0, socket, at(1, 5000));
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    assert_eq!(rds.unregister_memory(adapter, socket, registered), Ok(()));
    // Memory runs out, and is back when the socket closes.
    let part = ground.memory[0].slice(0, 10).expect("inside");
    let mut count = 0;
    while rds.register_memory(adapter, socket, at(1, 5000), part).is_ok() {
        count += 1;
    }
    assert_eq!(count, 16);
    let refused = rds.register_memory(adapter, socket, at(1, 5000), part);
    assert_eq!(refused, Err(RdsError::NoMemory));
    rds.close(adapter, socket).expect("open");
    let socket = rds.bind(at(0, 4000)).expect("free");
    assert!(rds.register_memory(adapter, socket, at(1, 5000), part).is_ok());
    let here = rds.register_memory(adapter, socket, at(0, 4001), part);
    assert_eq!(here, Err(RdsError::NotSupported));
    ground.nodes.world.set_cable(1, true);
    ground.close();
}

/// Both sides' memory is the program's own, wherever it is: offered with a message and by GET_MR, and read and written.
#[test]
fn memory_of_the_programs_own() {
    let mut ground = Ground::new(123, true);
    let [near, far] = [harness::foreign(LEN), harness::foreign(LEN)];
    let (text, zeros) = (message(0, 3, LEN), vec![0; LEN]);
    for by_message in [true, false] {
        near.write(0, &text).expect("inside");
        far.write(0, &zeros).expect("inside");
        let cookie = if by_message {
            let control = Control { map: Some((far, RdmaFlags::empty())), ..Control::default() };
            let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
            let sent = rds.sendmsg(adapter, ground.sockets[1], Msg::to(&at(0, 4000), b"use").with(&control));
            let cookie = sent.expect("accepted").expect("mapped");
            let arrived = ground.nodes.receive(0, ground.sockets[0], &mut [0; 8]);
            assert_eq!(arrived.cookie, Some(cookie));
            cookie
        } else {
            ground.offer(far)
        };
        // The emulated HCA sees a copy of such memory.
        let sync = |ground: &Ground, node: usize, memory: DmaSlice<'_>, to_device: bool| {
            let hca = ground.nodes.adapters[node].hca();
            if to_device {
                hca.sync_slice_for_device(memory);
            } else {
                hca.sync_slice_for_cpu(memory);
            }
        };
        ground.ask(cookie, &[near], true, 1);
        sync(&ground, 0, near, true);
        ground.ends(1);
        sync(&ground, 1, far, false);
        let mut found = vec![0; LEN];
        far.read(0, &mut found).expect("inside");
        assert!(found == text, "written");
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        rds.free_mr(adapter, ground.sockets[1], cookie).expect("there");
    }
    ground.close();
}

/// Behind an IOMMU an HCA writes only where it may. Memory that an operation only sends, or that
/// peers only read, may be read-only.
#[test]
fn memory_of_the_programs_own_is_writable_only_where_something_is_written() {
    let mut ground = Ground::new(127, true);
    let [near, far] = [harness::foreign(LEN), harness::foreign(LEN)];
    let (reads, writes) = (RdmaFlags::PEER_READS, RdmaFlags::PEER_WRITES);
    for (flags, is_written) in [(reads, false), (writes, true), (reads | writes, true)] {
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        let to = at(0, 4000);
        let cookie = rds.get_mr_for_dest(adapter, ground.sockets[1], to, far, flags).expect("room");
        assert_eq!(ground.nodes.world.mapped(1), [(far.va(), LEN, is_written)], "{flags:?}");
        for write in [true, false] {
            if !flags.contains(if write { writes } else { reads }) {
                continue;
            }
            ground.ask(cookie, &[near], write, 1);
            assert_eq!(ground.nodes.world.mapped(0), [(near.va(), LEN, !write)]);
            ground.ends(1);
            assert_eq!(ground.nodes.world.mapped(0), []);
        }
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        rds.free_mr(adapter, ground.sockets[1], cookie).expect("there");
    }
    ground.close();
}

/// The device that has failed cannot be kept from memory of the program's own: neither what is offered, nor what is registered, nor what an
/// operation is at is said to be free before the device was reset.
#[test]
fn memory_that_a_dead_device_may_write_to_is_not_free() {
    device_dies(124, false);
}

/// Nor is an operation said to be over whose memory was registered before.
#[test]
fn an_operation_on_registered_memory_is_not_over_on_a_dead_device() {
    device_dies(126, true);
}

fn device_dies(seed: u64, near_is_registered: bool) {
    let mut ground = Ground::new(seed, true);
    let [apart, registered, offered, far] = std::array::from_fn(|_| harness::foreign(LEN));
    let near = if near_is_registered { registered } else { apart };
    let cookie = ground.offer(far);
    let [socket, peer] = ground.sockets;
    ground.nodes.send(0, socket, at(1, 5000), b"hello").expect("room");
    assert_eq!(ground.nodes.receive(1, peer, &mut [0; 8]).len, 5);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let kept = rds.register_memory(adapter, socket, at(1, 5000), registered).expect("room");
    let told = rds.get_mr_for_dest(adapter, socket, at(1, 5000), offered, RdmaFlags::empty()).expect("room");
    ground.ask(cookie, &[near], false, 7);
    ground.nodes.world.lose_hca(0, 20 * SECOND);
    ground.nodes.until("the end", |nodes| nodes.adapters[0].is_dead());
    let end = ground.nodes.world.now() + SECOND;
    ground.nodes.until("a second", |nodes| nodes.world.now() > end);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    assert_eq!(rds.take_notification(socket), Ok(None), "the operation is not over");
    for _ in 0..2 {
        let refused = rds.unregister_memory(adapter, socket, kept);
        match near_is_registered {
            true => assert_eq!(refused, Err(RdsError::Again), "the operation is at it"),
            false => assert!(matches!(refused, Err(RdsError::Dat(_)))),
        }
        assert!(matches!(rds.free_mr(adapter, socket, told), Err(RdsError::Dat(_))));
    }
    assert_eq!(rds.close(adapter, socket), Err(RdsError::Again));
    adapter.recover(Duration::from_secs(30)).expect("recovers");
    rds.adapter_recovered(adapter).expect("goes on");
    let dropped = RdmaNotify { user_token: 7, status: RdmaStatus::Dropped };
    assert_eq!(rds.take_notification(socket), Ok(Some(dropped)));
    assert_eq!(rds.free_mr(adapter, socket, told), Err(RdsError::InvalidArgument), "it is gone");
    rds.close(adapter, socket).expect("nothing keeps it");
    ground.sockets[0] = rds.bind(at(0, 4000)).expect("free");
    ground.close();
}

/// Receives of a device that has failed are nobody's before it was reset: it may still write to them.
#[test]
fn receives_of_a_dead_device_are_nobodys() {
    let mut ground = Ground::new(125, false);
    let [near, far] = ground.sockets;
    ground.nodes.send(0, near, at(1, 5000), b"hello").expect("room");
    assert_eq!(ground.nodes.receive(1, far, &mut [0; 8]).len, 5);
    let up = ground.nodes.rds[0].free_frames();
    ground.nodes.world.lose_hca(0, 20 * SECOND);
    ground.nodes.until("the end", |nodes| nodes.adapters[0].is_dead());
    let end = ground.nodes.world.now() + SECOND;
    ground.nodes.until("a second", |nodes| nodes.world.now() > end);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    assert_eq!(rds.free_frames(), up, "posted then, withheld now");
    adapter.recover(Duration::from_secs(30)).expect("recovers");
    rds.adapter_recovered(adapter).expect("goes on");
    assert!(rds.free_frames() > up);
    ground.close();
}

/// How a region is offered, and released.
#[derive(Clone, Copy, Debug)]
enum Way {
    Message(RdmaFlags),
    Call(RdmaFlags),
}

impl Ground {
    /// Node 1 offers part of its memory: the cookie that node 0 has then.
    fn offer_by(&mut self, way: Way, region: DmaSlice<'_>) -> RdmaCookie {
        let [near, far] = self.sockets;
        let (rds, adapter) = (&mut self.nodes.rds[1], &mut self.nodes.adapters[1]);
        match way {
            Way::Call(flags) => {
                let cookie = rds.get_mr_for_dest(adapter, far, at(0, 4000), region, flags).expect("room");
                // The region is bound before messages that follow.
                self.nodes.send(1, far, at(0, 4000), b"use").expect("room");
                self.nodes.receive(0, near, &mut [0; 8]);
                cookie
            }
            Way::Message(flags) => {
                let control = Control { map: Some((region, flags)), ..Control::default() };
                let to = at(0, 4000);
                let message = Msg::to(&to, b"use").with(&control);
                let cookie = rds.sendmsg(adapter, far, message).expect("accepted").expect("mapped");
                let arrived = self.nodes.receive(0, near, &mut [0; 8]);
                assert_eq!(arrived.cookie, Some(cookie));
                cookie
            }
        }
    }

    fn release(&mut self, way: Way, cookie: RdmaCookie) {
        let (Way::Message(flags) | Way::Call(flags)) = way;
        if !flags.contains(RdmaFlags::USE_ONCE) {
            let (rds, adapter) = (&mut self.nodes.rds[1], &mut self.nodes.adapters[1]);
            rds.free_mr(adapter, self.sockets[1], cookie).expect("there");
        }
    }

    /// Node 1 gives its memory back, once access has ended.
    fn unregister_offers(&mut self, registered: MemoryHandle) {
        let [_, far] = self.sockets;
        self.nodes.until("access ends", |nodes| {
            match nodes.rds[1].unregister_memory(&mut nodes.adapters[1], far, registered) {
                Err(RdsError::Again) => false,
                done => done.is_ok() || panic!("{done:?}"),
            }
        });
    }

    /// Node 1 registers the first half of its memory for node 0, and they are connected.
    fn register_offers(&mut self) -> MemoryHandle {
        let [near, far] = self.sockets;
        let (rds, adapter) = (&mut self.nodes.rds[1], &mut self.nodes.adapters[1]);
        let half = self.memory[1].slice(0, LEN).expect("inside");
        let registered = rds.register_memory(adapter, far, at(0, 4000), half).expect("room");
        self.nodes.send(1, far, at(0, 4000), b"connect").expect("room");
        self.nodes.receive(0, near, &mut [0; 8]);
        registered
    }
}

/// A thousand offers of parts of registered memory, in every way there is, each used and released: no command of firmware, on neither
/// side. What was released is of no use.
#[test]
fn offers_of_registered_memory_take_no_command() {
    let (none, once) = (RdmaFlags::empty(), RdmaFlags::USE_ONCE);
    let ways = [Way::Message(once), Way::Message(none), Way::Call(none), Way::Call(once)];
    for isolate_peers in [true, false] {
        let mut ground = Ground::new(124, isolate_peers);
        ground.register();
        let registered = ground.register_offers();
        let (mut before, mut stale) = (None, RdmaCookie(0));
        for number in 0..1000 {
            // After each window was used for the first time.
            if number == 20 {
                before = Some(ground.commands());
            }
            let memory = Rc::clone(&ground.memory[1]);
            let (begin, len) = (number * 31 % 5000, 1 + number * 17 % 3000);
            let way = ways[number % ways.len()];
            let cookie = ground.offer_by(way, memory.slice(begin, len).expect("inside"));
            let text = message(0, number, len);
            ground.memory[0].write(0, &text).expect("inside");
            ground.operate(cookie, &[0, len], true, number as u64);
            let mut found = vec![0; len];
            ground.memory[1].read(begin, &mut found).expect("inside");
            assert!(found == text, "{way:?}");
            ground.release(way, cookie);
            stale = cookie;
        }
        assert_eq!(Some(ground.commands()), before);
        assert_eq!(ground.nodes.rds[1].counters().windows_bound, 1000);
        let local = ground.memory[0].clone();
        ground.ask(stale, &[local.slice(0, 1).expect("inside")], true, 7);
        assert_eq!(ground.end(), RdmaNotify { user_token: 7, status: RdmaStatus::RemoteError });
        drop(local);
        ground.unregister_offers(registered);
        ground.close();
    }
}

/// As long as part of it is offered memory stays registered, and not longer. What one socket registered another's offers do not use.
#[test]
fn what_is_offered_stays_registered() {
    let mut ground = Ground::new(125, true);
    let registered = ground.register_offers();
    let memory = Rc::clone(&ground.memory[1]);
    let part = memory.slice(100, 1000).expect("inside");
    let cookie = ground.offer_by(Way::Call(RdmaFlags::empty()), part);
    let [_, far] = ground.sockets;
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    assert_eq!(rds.counters().windows_bound, 1);
    assert_eq!(rds.unregister_memory(adapter, far, registered), Err(RdsError::Again));
    rds.free_mr(adapter, far, cookie).expect("there");
    assert_eq!(
        rds.unregister_memory(adapter, far, registered),
        Err(RdsError::Again),
        "the unbind is in flight"
    );
    ground.unregister_offers(registered);
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    let other = rds.bind(at(1, 5001)).expect("free");
    let half = memory.slice(0, LEN).expect("inside");
    rds.register_memory(adapter, far, at(0, 4000), half).expect("room");
    rds.get_mr_for_dest(adapter, other, at(0, 4000), part, RdmaFlags::empty()).expect("room");
    rds.get_mr_for_dest(adapter, far, at(0, 4000), part, RdmaFlags::empty()).expect("room");
    assert_eq!(rds.counters().windows_bound, 2);
    // It goes beyond what is registered.
    let beyond = memory.slice(LEN - 10, 20).expect("inside");
    rds.get_mr_for_dest(adapter, far, at(0, 4000), beyond, RdmaFlags::empty()).expect("room");
    assert_eq!(rds.counters().windows_bound, 2);
    // With everything offered, the socket closes.
    assert_eq!(rds.close(adapter, far), Err(RdsError::Again), "the unbind is in flight");
    ground.nodes.close_socket(1, far);
    drop(memory);
    ground.close();
}

/// A key outlives the connection that its window was bound on, also when that broke before the HCA had come to the bind.
#[test]
fn a_window_outlives_its_connection() {
    for cut_before in [false, true] {
        let mut ground = Ground::new(126, true);
        ground.register();
        ground.register_offers();
        let memory = Rc::clone(&ground.memory[1]);
        let part = memory.slice(5, 100).expect("inside");
        let [near, far] = ground.sockets;
        if cut_before {
            // The send queue of node 1 is full of what the cable does not carry.
            ground.nodes.world.set_cable(0, false);
            let filler = vec![0; 1 << 16];
            while ground.nodes.rds[1].free_frames() > 600 {
                if ground.nodes.send(1, far, at(0, 4000), &filler).is_err() {
                    break;
                }
            }
        }
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        let control = Control { map: Some((part, RdmaFlags::empty())), ..Control::default() };
        rds.set_send_buffer(far, 1 << 20).expect("open");
        let to = at(0, 4000);
        let offered = Msg::to(&to, b"use").with(&control);
        let cookie = rds.sendmsg(adapter, far, offered).expect("accepted").expect("mapped");
        assert_eq!(rds.counters().windows_bound, 1);
        let breaks = |nodes: &Nodes| nodes.rds[1].counters().conn_reset;
        let before = breaks(&ground.nodes);
        if !cut_before {
            let mut buffer = [0; 8];
            ground.nodes.receive(0, near, &mut buffer);
            ground.nodes.world.set_cable(0, false);
            ground.nodes.send(1, far, at(0, 4000), b"x").expect("room");
        }
        ground.nodes.until("the connection breaks", |nodes| breaks(nodes) > before);
        ground.nodes.world.set_cable(0, true);
        let mut buffer = vec![0; 1 << 16];
        let mut last = Vec::new();
        while last != if cut_before { b"use".to_vec() } else { b"x".to_vec() } {
            let arrived = ground.nodes.receive(0, near, &mut buffer);
            last = buffer[..arrived.len].to_vec();
        }
        ground.memory[0].write(0, &message(0, 1, 100)).expect("inside");
        ground.operate(cookie, &[0, 100], true, 1);
        let mut found = vec![0; 100];
        ground.memory[1].read(5, &mut found).expect("inside");
        assert!(found == message(0, 1, 100));
        let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
        rds.free_mr(adapter, far, cookie).expect("there");
        drop(memory);
        ground.close();
    }
}
