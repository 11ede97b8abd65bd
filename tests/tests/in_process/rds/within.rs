//! RDMA between sockets of one node: what would be allowed to a peer, told as it would be to one.

use dat_nostd::{DmaBuffer, DmaSlice};
use harness::SOLE_ACCESS;
use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::{
    AtomicArgs, AtomicOp, Control, Msg, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, RdsConfig,
    RdsError, SocketHandle,
};
use std::rc::Rc;

const LEN: usize = 1 << 16;
const NONE: RdmaFlags = RdmaFlags::empty();

/// Node 0 has both sockets: the first uses what the other one offers, in the second half of the memory. Node 1 is a peer.
struct Ground {
    nodes: Nodes,
    uses: SocketHandle,
    offers: SocketHandle,
    memory: Rc<DmaBuffer>,
}

impl Ground {
    fn new(seed: u64, isolate_peers: bool) -> Self {
        Self::with(
            seed,
            RdsConfig { isolate_peers, rdma_within: Some(SOLE_ACCESS), ..RdsConfig::new(GENERATION) },
        )
    }

    fn with(seed: u64, config: RdsConfig) -> Self {
        let mut nodes = Nodes::with(seed, "none", 2, RdsConfig { seed, ..config });
        let (uses, offers) = (nodes.bind(0, 4000), nodes.bind(0, 4001));
        let memory = Rc::new(nodes.adapters[0].dma_alloc(2 * LEN, 4096).expect("memory"));
        memory.write(0, &message(0, 1, 2 * LEN)).expect("inside");
        Self { nodes, uses, offers, memory }
    }

    fn part(memory: &DmaBuffer, offset: usize, len: usize) -> DmaSlice<'_> {
        memory.slice(offset, len).expect("inside")
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).expect("inside");
        bytes
    }

    /// The second socket offers part of the memory to those of its node.
    fn offer(&mut self, offset: usize, len: usize, flags: RdmaFlags) -> RdmaCookie {
        let part = Self::part(&self.memory, offset, len);
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        rds.get_mr_for_dest(adapter, self.offers, at(0, 4000), part, flags).expect("room")
    }

    fn send(&mut self, payload: &[u8], control: &Control<'_>) -> Result<Option<RdmaCookie>, RdsError> {
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        rds.sendmsg(adapter, self.uses, Msg::to(&at(0, 4001), payload).with(control))
    }

    /// The first socket moves data between pieces of the memory's first half and what was offered; how it ends.
    fn operate(
        &mut self,
        cookie: RdmaCookie,
        remote_offset: u64,
        cuts: &[usize],
        flags: RdmaFlags,
    ) -> Option<RdmaStatus> {
        let memory = Rc::clone(&self.memory);
        let local: Vec<_> = cuts.windows(2).map(|cut| Self::part(&memory, cut[0], cut[1] - cut[0])).collect();
        let remote_bytes = local.iter().map(|piece| piece.len() as u64).sum();
        let args = RdmaArgs { cookie, remote_offset, remote_bytes, local: &local, flags, user_token: 7 };
        let control = Control { rdma: Some(args), ..Control::default() };
        assert_eq!(self.send(b"done", &control), Ok(None));
        let told = self.nodes.rds[0].take_notification(self.uses).expect("open")?;
        assert_eq!(told.user_token, 7);
        Some(told.status)
    }

    /// Whether the message that goes with an operation has come, alone.
    fn heard(&mut self) -> bool {
        let heard = self.nodes.rds[0].is_readable(self.offers).expect("open");
        if heard {
            let message = self.nodes.receive(0, self.offers, &mut [0; 8]);
            assert_eq!((message.from, message.len, message.cookie), (at(0, 4000), 4, None));
        }
        heard
    }

    fn close(self) {
        self.nodes.close_with([Rc::into_inner(self.memory).expect("nobody has it")]);
    }
}

const WRITES: RdmaFlags = RdmaFlags::NOTIFY_ME.union(RdmaFlags::READWRITE);
const READS: RdmaFlags = RdmaFlags::NOTIFY_ME;

/// From several pieces and into them, at odd places, of memory offered by a call or with a message: each ends well, and its message comes.
#[test]
fn reads_and_writes() {
    for isolate_peers in [true, false] {
        let mut ground = Ground::new(180, isolate_peers);
        for by_message in [true, false] {
            let cookie = if by_message {
                let memory = Rc::clone(&ground.memory);
                let control = Control {
                    map: Some((Ground::part(&memory, LEN + 5, 20_000), NONE)),
                    ..Control::default()
                };
                let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
                let sent = rds.sendmsg(adapter, ground.offers, Msg::to(&at(0, 4000), b"use").with(&control));
                let cookie = sent.expect("accepted").expect("mapped");
                assert_eq!(ground.nodes.receive(0, ground.uses, &mut [0; 8]).cookie, Some(cookie));
                cookie
            } else {
                ground.offer(LEN + 5, 20_000, NONE)
            };
            let before = message(0, 1, 2 * LEN);
            ground.memory.write(0, &before).expect("inside");
            let cuts = [1, 100, 5000, 15_000];
            assert_eq!(ground.operate(cookie, 3, &cuts, WRITES), Some(RdmaStatus::Success));
            assert!(ground.heard());
            assert!(ground.bytes(LEN + 8, 14_999) == before[1..15_000], "written");
            assert!(ground.bytes(LEN, 8) == before[LEN..LEN + 8], "and nothing else");
            assert!(ground.bytes(LEN + 8 + 14_999, 100) == before[LEN + 15_007..LEN + 15_107]);
            ground.memory.fill(0, LEN, 0).expect("inside");
            assert_eq!(ground.operate(cookie, 3, &cuts, READS), Some(RdmaStatus::Success));
            assert!(ground.heard());
            assert!(ground.bytes(1, 14_999) == before[1..15_000], "read");
            // Nobody asked for word of it.
            assert_eq!(ground.operate(cookie, 0, &[0, 10], NONE), None);
            assert!(ground.heard());
            let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
            assert_eq!(rds.free_mr(adapter, ground.uses, cookie), Err(RdsError::InvalidArgument));
            assert_eq!(rds.free_mr(adapter, ground.offers, cookie), Ok(()));
            assert_eq!(
                ground.operate(cookie, 0, &[0, 10], READS),
                Some(RdmaStatus::RemoteError),
                "it is gone"
            );
            assert!(!ground.heard());
        }
        let counters = ground.nodes.rds[0].counters();
        assert_eq!((counters.send_rdma, counters.mr_8k_alloc + counters.mr_1m_alloc), (8, 2));
        ground.close();
    }
}

/// Key, bounds, rights and for whom it is: what a peer would be denied is denied, whole, and its message does not come.
#[test]
fn what_is_not_offered_is_not_touched() {
    let mut ground = Ground::new(181, true);
    let cookie = ground.offer(LEN + 8, 1000, NONE);
    let read_only = ground.offer(LEN + 2000, 1000, RdmaFlags::PEER_READS);
    let write_only = ground.offer(LEN + 4000, 1000, RdmaFlags::PEER_WRITES);
    let memory = Rc::clone(&ground.memory);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let part = Ground::part(&memory, LEN + 6000, 1000);
    let peers = rds.get_mr_for_dest(adapter, ground.offers, at(1, 5000), part, NONE).expect("room");
    let before = ground.bytes(0, 2 * LEN);
    let (unknown, free) = (RdmaCookie(cookie.0 ^ 0x100_0000), ground.nodes.rds[0].free_frames());
    let all = [0, 500, 1000];
    let long = [0, 1000, 1001];
    for (cookie, offset, cuts, flags) in [
        (unknown, 0, &all, READS),
        (cookie, 1, &all, WRITES),
        (cookie, 0, &long, WRITES),
        (cookie, u64::from(u32::MAX), &all, READS),
        (cookie, u64::MAX >> 1, &all, READS),
        (RdmaCookie(cookie.0 - (1 << 32)), 0, &all, READS),
        (read_only, 0, &all, WRITES),
        (write_only, 0, &all, READS),
        (peers, 0, &all, READS),
    ] {
        let denied = ground.operate(cookie, offset, cuts, flags);
        assert_eq!(denied, Some(RdmaStatus::RemoteError), "{cookie:?} at {offset}");
        assert!(!ground.heard() && ground.bytes(0, 2 * LEN) == before);
    }
    // Without being asked only a socket is told that wants to hear of failures.
    assert_eq!(ground.operate(unknown, 0, &all, NONE), None);
    ground.nodes.rds[0].set_receive_errors(ground.uses, true).expect("open");
    assert_eq!(ground.operate(unknown, 0, &all, NONE), Some(RdmaStatus::RemoteError));
    for (cookie, flags) in [(read_only, READS), (write_only, WRITES), (cookie, WRITES)] {
        assert_eq!(ground.operate(cookie, 0, &all, flags), Some(RdmaStatus::Success));
        assert!(ground.heard());
    }
    let local = [Ground::part(&memory, 0, 10)];
    let beyond = RdmaArgs {
        cookie,
        remote_offset: u64::MAX,
        remote_bytes: 10,
        local: &local,
        flags: READS,
        user_token: 0,
    };
    for (args, error) in [
        (beyond, RdsError::InvalidArgument),
        (RdmaArgs { local: &[], ..beyond }, RdsError::InvalidArgument),
        (RdmaArgs { remote_offset: 0, remote_bytes: 9, ..beyond }, RdsError::InvalidArgument),
    ] {
        let control = Control { rdma: Some(args), ..Control::default() };
        assert_eq!(ground.send(b"x", &control), Err(error));
    }
    let control = Control { dest: Some(peers), ..Control::default() };
    assert_eq!(ground.send(b"x", &control), Err(RdsError::InvalidArgument), "another socket's");
    assert_eq!(ground.nodes.rds[0].free_frames(), free, "of messages that did not come");
    drop(memory);
    ground.close();
}

/// What is offered to the node's own sockets is of no use to a peer that learns the key.
#[test]
fn no_peer_uses_what_is_offered_within() {
    let mut ground = Ground::new(182, true);
    let cookie = ground.offer(LEN, 1000, NONE);
    let before = ground.bytes(0, 2 * LEN);
    let peer = ground.nodes.bind(1, 5000);
    let memory = ground.nodes.adapters[1].dma_alloc(4096, 4096).expect("memory");
    let local = [memory.slice(0, 1000).expect("inside")];
    let args = RdmaArgs {
        cookie,
        remote_offset: 0,
        remote_bytes: 1000,
        local: &local,
        flags: WRITES,
        user_token: 1,
    };
    let control = Control { rdma: Some(args), ..Control::default() };
    let (rds, adapter) = (&mut ground.nodes.rds[1], &mut ground.nodes.adapters[1]);
    rds.sendmsg(adapter, peer, Msg::to(&at(0, 4001), b"x").with(&control)).expect("accepted");
    let mut told = None;
    ground.nodes.until("it is denied", |nodes| {
        told = nodes.rds[1].take_notification(peer).expect("open");
        told.is_some()
    });
    assert_eq!(told, Some(RdmaNotify { user_token: 1, status: RdmaStatus::RemoteError }));
    assert!(ground.bytes(0, 2 * LEN) == before);
    ground.nodes.adapters[1].dma_free(memory).expect("nothing leads there");
    ground.close();
}

/// Atomic operations alone, behind a transfer, and behind one that fails; silent ones; regions for one use.
#[test]
fn atomics_silence_and_one_use() {
    let mut ground = Ground::new(183, true);
    let all = RdmaFlags::PEER_READS | RdmaFlags::PEER_WRITES | RdmaFlags::PEER_ATOMICS;
    let (atomic, plain) = (ground.offer(LEN, 64, all), ground.offer(LEN + 64, 64, NONE));
    let memory = Rc::clone(&ground.memory);
    memory.write(LEN, &5u64.to_ne_bytes()).expect("inside");
    let add = |cookie, add, flags| AtomicArgs {
        cookie,
        remote_offset: 0,
        local: Ground::part(&memory, 0, 8),
        op: AtomicOp::FetchAdd { add },
        flags,
        user_token: 9,
    };
    let word = |ground: &Ground, at| u64::from_ne_bytes(ground.bytes(at, 8).try_into().expect("8 bytes"));
    let statuses = |ground: &mut Ground| -> Vec<_> {
        let (rds, uses) = (&mut ground.nodes.rds[0], ground.uses);
        std::iter::from_fn(|| rds.take_notification(uses).expect("open"))
            .map(|told| (told.user_token, told.status))
            .collect()
    };
    let silent = READS | RdmaFlags::SILENT;
    let control = Control { atomic: Some(add(atomic, 3, silent)), ..Control::default() };
    assert_eq!(ground.send(&[], &control), Ok(None));
    assert_eq!((word(&ground, 0), word(&ground, LEN)), (5, 8));
    assert_eq!(statuses(&mut ground), [(9, RdmaStatus::Success)]);
    assert!(!ground.heard(), "nothing is sent");
    let op = AtomicOp::CompareSwap { compare: 7, swap: 1 };
    for (op, after) in [(op, 8), (AtomicOp::CompareSwap { compare: 8, swap: 1 }, 1)] {
        let control =
            Control { atomic: Some(AtomicArgs { op, ..add(atomic, 0, silent) }), ..Control::default() };
        assert_eq!(ground.send(b"word", &control), Ok(None));
        assert_eq!((word(&ground, 0), word(&ground, LEN)), (8, after));
        assert_eq!(statuses(&mut ground), [(9, RdmaStatus::Success)]);
        assert!(ground.heard(), "there is something to send");
    }
    let control = Control { atomic: Some(add(plain, 3, READS)), ..Control::default() };
    assert_eq!(ground.send(b"word", &control), Ok(None));
    assert_eq!(statuses(&mut ground), [(9, RdmaStatus::RemoteError)]);
    assert!(!ground.heard());
    // Behind a transfer that is denied nothing is done.
    let local = [Ground::part(&memory, 100, 64)];
    let transfer = |cookie| RdmaArgs {
        cookie,
        remote_offset: 0,
        remote_bytes: 64,
        local: &local,
        flags: WRITES,
        user_token: 8,
    };
    for (cookie, expected, after) in [
        (RdmaCookie(0x5a00), [RdmaStatus::RemoteError, RdmaStatus::Dropped], 1),
        (plain, [RdmaStatus::Success; 2], 4),
    ] {
        let control = Control {
            rdma: Some(transfer(cookie)),
            atomic: Some(add(atomic, 3, READS)),
            ..Control::default()
        };
        assert_eq!(ground.send(b"both", &control), Ok(None));
        assert_eq!(statuses(&mut ground), [(8, expected[0]), (9, expected[1])]);
        assert_eq!((word(&ground, LEN), ground.heard()), (after, expected[1] == RdmaStatus::Success));
    }
    let once = ground.offer(LEN + 200, 64, RdmaFlags::USE_ONCE);
    assert_eq!(ground.operate(once, 0, &[0, 64], WRITES), Some(RdmaStatus::Success));
    assert!(ground.heard());
    assert_eq!(ground.operate(once, 0, &[0, 64], WRITES), Some(RdmaStatus::RemoteError));
    // Ends that nobody reads may have half of the table, and no more; then nothing is done.
    let mut done = 0;
    let refused = loop {
        let control = Control { atomic: Some(add(atomic, 1, silent)), ..Control::default() };
        match ground.send(&[], &control) {
            Ok(_) => done += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, done, word(&ground, LEN)), (RdsError::Exhausted, 8, 4 + 8));
    assert_eq!(statuses(&mut ground).len(), 8);
    drop(memory);
    ground.close();
}

/// The answer of an atomic operation is written last, as on the wire: where it goes to the number itself, that is as before.
#[test]
fn an_answer_is_written_last() {
    let mut ground = Ground::new(185, true);
    let cookie = ground.offer(LEN, 64, RdmaFlags::PEER_ATOMICS);
    let memory = Rc::clone(&ground.memory);
    for (op, after) in
        [(AtomicOp::FetchAdd { add: 3 }, 8), (AtomicOp::CompareSwap { compare: 5, swap: 7 }, 7)]
    {
        memory.write(LEN, &5u64.to_ne_bytes()).expect("inside");
        for (place, number) in [(LEN, 5), (0, after)] {
            let local = Ground::part(&memory, place, 8);
            let args = AtomicArgs { cookie, remote_offset: 0, local, op, flags: NONE, user_token: 9 };
            let control = Control { atomic: Some(args), ..Control::default() };
            assert_eq!(ground.send(b"word", &control), Ok(None));
            assert!(ground.heard());
            let word = |at| u64::from_ne_bytes(ground.bytes(at, 8).try_into().expect("8 bytes"));
            assert_eq!((word(place), word(LEN)), (5, number), "{op:?} at {place}");
        }
    }
    drop(memory);
    ground.close();
}

/// Where peers are not isolated what is offered to one is offered to all: of part of registered memory exactly that part.
#[test]
fn a_window_is_as_long_as_it_is() {
    let mut ground = Ground::new(184, false);
    let peer = ground.nodes.bind(1, 5000);
    let memory = Rc::clone(&ground.memory);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    rds.register_memory(adapter, ground.offers, at(1, 5000), Ground::part(&memory, LEN, LEN)).expect("room");
    ground.nodes.send(0, ground.offers, at(1, 5000), b"connect").expect("room");
    ground.nodes.receive(1, peer, &mut [0; 8]);
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let (part, to) = (Ground::part(&memory, LEN + 100, 100), at(1, 5000));
    let cookie = rds.get_mr_for_dest(adapter, ground.offers, to, part, RdmaFlags::PEER_WRITES).expect("room");
    assert_eq!(rds.counters().windows_bound, 1);
    assert_eq!(ground.operate(cookie, 0, &[0, 100], WRITES), Some(RdmaStatus::Success));
    assert!(ground.heard() && ground.bytes(LEN + 100, 100) == ground.bytes(0, 100));
    for (cookie, offset, cuts, flags) in [
        (cookie, 1, [0, 100], WRITES),
        (cookie, 100, [0, 1], WRITES),
        (RdmaCookie(cookie.0 - (1 << 32)), 0, [0, 1], WRITES),
        (cookie, 0, [0, 100], READS),
    ] {
        assert_eq!(ground.operate(cookie, offset, &cuts, flags), Some(RdmaStatus::RemoteError));
        assert!(!ground.heard());
    }
    drop(memory);
    ground.close();
}

/// Memory may be given to another thread while it is offered: nobody touches it who was not promised that it is not.
#[test]
fn without_the_promise_nothing_moves() {
    let mut ground = Ground::with(189, RdsConfig::new(GENERATION));
    let cookie = ground.offer(LEN, 100, NONE);
    let memory = Rc::clone(&ground.memory);
    let (local, before) = ([Ground::part(&memory, 0, 8)], ground.bytes(0, 2 * LEN));
    let args =
        RdmaArgs { cookie, remote_offset: 0, remote_bytes: 8, local: &local, flags: WRITES, user_token: 7 };
    let control = Control { rdma: Some(args), ..Control::default() };
    assert_eq!(ground.send(b"done", &control), Err(RdsError::NotSupported));
    assert!(ground.bytes(0, 2 * LEN) == before);
    assert_eq!(ground.nodes.rds[0].take_notification(ground.uses), Ok(None));
    drop(memory);
    ground.close();
}
