//! A node's consumer that does random things with its endpoints and keeps account of everything it has posted: every operation
//! completes exactly once and in order, every attempt to connect has exactly one end, behind everything that it ends.
//!
//! Everything here panics where a test would.

use crate::net::{Node, address};
use crate::seeds::Random;
use dat_nostd::{
    AsyncError, CloseFlags, CompletionFlags, ConnectFlags, ConnectionEvent, CrHandle, DatResult, DatReturn,
    DmaBuffer, DtoCompletion, DtoOperation, DtoStatus, EpAttributes, EpHandle, EpState, EvdFlags, EvdHandle,
    EventData, IaHandle, LmrCreated, LmrTriplet, MemPriv, PspFlags, PzHandle, Qos, ReturnType, RmrHandle,
    RmrTriplet, SrqAttributes, SrqHandle, TIMEOUT_INFINITE,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What everybody listens on.
pub const QUALIFIER: u64 = 7;
/// DMA memory that a node needs, bytes.
pub const NODE_MEMORY: usize = 6 << 20;
const MEMORY: usize = 1 << 17;
/// Bytes of a receive buffer, and of the longest message.
const LONGEST: u64 = 20_000;
const NONE: CompletionFlags = CompletionFlags::empty();
/// Buffers of the shared receive queue.
const SHARED: SrqAttributes = SrqAttributes { max_recv_dtos: 16, max_recv_iov: 1, low_watermark: 0 };

/// How often a player does what, and with which endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// Posts a receive, on the shared queue if the endpoint is on it.
    pub receive: u32,
    /// Sends.
    pub send: u32,
    /// Writes to the peer's memory.
    pub write: u32,
    /// Reads from it.
    pub read: u32,
    /// Compare and swap, fetch and add.
    pub atomic: u32,
    /// Sends and writes with immediate data.
    pub immediate: u32,
    /// Sends that ask the peer's device to end a key that it may not end so.
    pub invalidate: u32,
    /// Binds a window.
    pub bind: u32,
    /// Asks for a connection.
    pub connect: u32,
    /// Disconnects abruptly.
    pub disconnect: u32,
    /// Disconnects gracefully.
    pub graceful: u32,
    /// Resets.
    pub reset: u32,
    /// Frees, and makes another in its place.
    pub free: u32,
}

/// What a turn may be.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Receive,
    Send,
    Write,
    Read,
    Atomic,
    Immediate,
    Invalidate,
    Bind,
    Connect,
    Disconnect,
    Graceful,
    Reset,
    Free,
}

impl Habits {
    fn pick(&self, random: &mut Random) -> Turn {
        let turns = [
            (self.receive, Turn::Receive),
            (self.send, Turn::Send),
            (self.write, Turn::Write),
            (self.read, Turn::Read),
            (self.atomic, Turn::Atomic),
            (self.immediate, Turn::Immediate),
            (self.invalidate, Turn::Invalidate),
            (self.bind, Turn::Bind),
            (self.connect, Turn::Connect),
            (self.disconnect, Turn::Disconnect),
            (self.graceful, Turn::Graceful),
            (self.reset, Turn::Reset),
            (self.free, Turn::Free),
        ];
        turns[random.weighted(&turns.map(|turn| turn.0))].1
    }
}

/// An operation posted and not yet reported.
#[derive(Debug)]
struct Posted {
    cookie: u64,
    suppressed: bool,
    /// Posted to a disconnected EP, so not bound to come before its end.
    late: bool,
}

/// What the player knows of an EP.
#[derive(Debug, Default)]
struct Known {
    /// On the shared receive queue.
    shared: bool,
    requests: VecDeque<Posted>,
    receives: VecDeque<Posted>,
    /// An attempt is under way or a connection stands, and its end has not been told.
    open: bool,
    established: bool,
}

/// What happened in all.
#[derive(Debug, Default)]
pub struct Tally {
    /// Operations that completed.
    pub successes: u64,
    /// Operations that failed or were flushed.
    pub failures: u64,
    /// Receives from the shared queue that completed, either way.
    pub shared: u64,
    /// Binds that completed, either way.
    pub binds: u64,
    /// Connections that came to stand.
    pub established: u64,
    /// Ends of connections and attempts.
    pub ends: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.successes += other.successes;
        self.failures += other.failures;
        self.shared += other.shared;
        self.binds += other.binds;
        self.established += other.established;
        self.ends += other.ends;
    }
}

/// A node's consumer.
pub struct Player {
    index: usize,
    ia: IaHandle,
    pz: PzHandle,
    memory: DmaBuffer,
    lmr: LmrCreated,
    evd: EvdHandle,
    asynchronous: EvdHandle,
    eps: BTreeMap<EpHandle, Known>,
    srq: SrqHandle,
    /// Posted to the shared queue and not reported.
    buffers: BTreeSet<u64>,
    /// Of these, those whose report went with a reset or a free.
    lost: usize,
    windows: [RmrHandle; 2],
    /// Binds by their cookies.
    binds: BTreeMap<u64, EpHandle>,
    requests: Vec<CrHandle>,
    cookie: u64,
    /// The device was told to be gone.
    catastrophe: bool,
    /// The device is gone, told or not: calls that need it may say INTERNAL_ERROR.
    pub broken: bool,
}

fn attributes() -> EpAttributes {
    EpAttributes { max_request_dtos: 8, max_recv_dtos: 8, ..EpAttributes::DEFAULT }
}

impl Player {
    /// With so many endpoints of their own receives, and so many on a shared receive queue.
    pub fn new(index: usize, node: &mut Node, own: usize, shared: usize) -> Self {
        let (ia, asynchronous) = node.ia_open("ib0", 8, None).unwrap();
        let pz = node.pz_create(ia).unwrap();
        let memory = node.dma_alloc(MEMORY, 4096).unwrap();
        let lmr = node.lmr_create(ia, &memory, pz, MemPriv::ALL | MemPriv::REMOTE_ATOMIC).unwrap();
        let streams = EvdFlags::DTO | EvdFlags::RMR_BIND | EvdFlags::CONNECTION | EvdFlags::CR;
        let evd = node.evd_create(ia, 256, None, streams).unwrap();
        node.psp_create(ia, QUALIFIER, evd, PspFlags::Consumer).unwrap();
        let srq = node.srq_create(ia, pz, &SHARED).unwrap();
        let windows = [(); 2].map(|()| node.rmr_create(pz).unwrap());
        let mut player = Self {
            index,
            ia,
            pz,
            memory,
            lmr,
            evd,
            asynchronous,
            eps: BTreeMap::new(),
            srq,
            buffers: BTreeSet::new(),
            lost: 0,
            windows,
            binds: BTreeMap::new(),
            requests: Vec::new(),
            cookie: (index as u64) << 40,
            catastrophe: false,
            broken: false,
        };
        for number in 0..own + shared {
            player.make(node, number >= own);
        }
        player
    }

    /// What a peer needs to reach this player's memory.
    #[must_use]
    pub fn key(&self) -> (u32, u64) {
        (self.lmr.rmr_context, self.lmr.registered_address)
    }

    fn make(&mut self, node: &mut Node, shared: bool) {
        let (evd, attributes) = (Some(self.evd), attributes());
        let made = if shared {
            node.ep_create_with_srq(self.ia, self.pz, evd, evd, evd, self.srq, &attributes)
        } else {
            node.ep_create(self.ia, Some(self.pz), evd, evd, evd, Some(&attributes))
        };
        match made {
            Ok(ep) => {
                self.eps.insert(ep, Known { shared, ..Known::default() });
            }
            Err(error) => self.expect_broken(error),
        }
    }

    #[track_caller]
    fn expect_broken(&self, error: DatReturn) {
        assert!(self.broken && error.is(ReturnType::InternalError), "{error}");
    }

    /// Takes everything that has happened.
    pub fn drain(&mut self, node: &mut Node, tally: &mut Tally) {
        while let Ok(event) = node.evd_dequeue(self.asynchronous) {
            match event.data {
                EventData::Async { error: AsyncError::IaCatastrophic, .. } => {
                    assert!(!self.catastrophe, "told once");
                    self.catastrophe = true;
                }
                // The device tells of a peer's request that it refused.
                EventData::Async { error: AsyncError::EpBroken, .. } => {}
                other => panic!("{other:?}"),
            }
        }
        while let Ok(event) = node.evd_dequeue(self.evd) {
            match event.data {
                EventData::ConnectionRequest { cr, .. } => self.requests.push(cr),
                EventData::Dto(done) => self.completed(&done, tally),
                EventData::RmrBind(done) => {
                    assert!(self.windows.contains(&done.rmr));
                    tally.binds += 1;
                    let ep = self.binds.remove(&done.user_cookie).expect("a bind that was posted");
                    self.requested(ep, done.user_cookie, done.status, tally);
                }
                EventData::Connection { event, ep, .. } => self.changed(node, event, ep, tally),
                other => panic!("{other:?}"),
            }
        }
        // A dead device takes nothing back.
        if !node.is_dead() {
            let outstanding = node.srq_query(self.srq).unwrap().outstanding_dto_count as usize;
            assert_eq!(outstanding + self.lost, self.buffers.len(), "buffers of the shared queue");
        }
    }

    fn changed(&mut self, node: &Node, event: ConnectionEvent, ep: EpHandle, tally: &mut Tally) {
        let known = self.eps.get_mut(&ep).expect("an event of an EP that lives");
        assert!(known.open, "{event:?} of an EP whose end was told");
        if event == ConnectionEvent::Established {
            assert!(!known.established);
            known.established = true;
            tally.established += 1;
            return;
        }
        tally.ends += 1;
        (known.open, known.established) = (false, false);
        let state = node.ep_get_status(ep).unwrap().state;
        // Reset at once, perhaps, while the event waited.
        assert!(matches!(state, EpState::Disconnected | EpState::Unconnected), "{state:?} after {event:?}");
        let left = known.requests.iter().filter(|posted| !posted.late && !posted.suppressed).count();
        assert_eq!(left, 0, "requests behind {event:?}: {:?}", known.requests);
        let left = known.receives.iter().filter(|posted| !posted.late).count();
        assert_eq!(left, 0, "receives behind {event:?}: {:?}", known.receives);
    }

    fn completed(&mut self, done: &DtoCompletion, tally: &mut Tally) {
        let known = self.eps.get_mut(&done.ep).expect("a completion of an EP that lives");
        if done.operation != DtoOperation::Receive {
            return self.requested(done.ep, done.user_cookie, done.status, tally);
        }
        tally.count(done.status);
        if known.shared {
            tally.shared += 1;
            assert!(self.buffers.remove(&done.user_cookie), "{done:?} of no buffer");
            assert!(known.open, "{done:?} behind the end of its connection");
        } else {
            let posted = known.receives.pop_front().expect("a receive was posted");
            assert_eq!(posted.cookie, done.user_cookie, "receives complete in order");
        }
    }

    /// A request has completed: it is the next one, but for those that are suppressed.
    fn requested(&mut self, ep: EpHandle, cookie: u64, status: DtoStatus, tally: &mut Tally) {
        let known = self.eps.get_mut(&ep).expect("a completion of an EP that lives");
        tally.count(status);
        loop {
            let posted = known.requests.pop_front().expect("a request was posted");
            if posted.cookie == cookie {
                let success = status == DtoStatus::Success;
                assert!(!(posted.suppressed && success), "a suppressed success is not told");
                return;
            }
            assert!(posted.suppressed && !posted.late, "{posted:?} was passed over by {cookie:#x}");
            self.binds.remove(&posted.cookie);
        }
    }

    /// Answers a request, or does something to one of the EPs. `peer` is the other's [`Player::key`].
    pub fn act(
        &mut self,
        node: &mut Node,
        habits: &Habits,
        peer: (u32, u64),
        random: &mut Random,
        tally: &mut Tally,
    ) {
        if let Some(cr) = self.requests.pop() {
            self.answer(node, cr, random);
            return;
        }
        let eps: Vec<EpHandle> = self.eps.keys().copied().collect();
        if eps.is_empty() {
            return;
        }
        let ep = random.pick(&eps);
        let state = node.ep_get_status(ep).unwrap().state;
        match habits.pick(random) {
            Turn::Receive => self.receive(node, ep, state, random),
            Turn::Connect if state == EpState::Unconnected => self.connect(node, ep, random),
            Turn::Connect => {}
            Turn::Disconnect => Self::disconnect(node, ep, state, CloseFlags::Abrupt),
            Turn::Graceful => Self::disconnect(node, ep, state, CloseFlags::Graceful),
            Turn::Reset => self.reset(node, ep, state, tally),
            Turn::Free => {
                if let Err(error) = node.ep_free(ep) {
                    self.expect_broken(error);
                }
                let known = self.eps.remove(&ep).expect("it lived");
                self.binds.retain(|_, of| *of != ep);
                self.lose_buffers(node, known.shared);
                self.make(node, known.shared);
            }
            turn => self.request(node, turn, ep, state, peer, random),
        }
    }

    /// Reports of an EP are gone: buffers of the shared queue too, if it was on it.
    fn lose_buffers(&mut self, node: &Node, shared: bool) {
        let outstanding = node.srq_query(self.srq).unwrap().outstanding_dto_count as usize;
        let lost = self.buffers.len() - outstanding;
        assert!(lost == self.lost || lost > self.lost && shared, "{lost} buffers instead of {}", self.lost);
        self.lost = lost;
    }

    fn answer(&mut self, node: &mut Node, cr: CrHandle, random: &mut Random) {
        let unconnected = |ep: &EpHandle| node.ep_get_status(*ep).unwrap().state == EpState::Unconnected;
        let free: Vec<EpHandle> = self.eps.keys().copied().filter(unconnected).collect();
        if free.is_empty() || random.one_in(4) {
            return node.cr_reject_with(cr, b"no").unwrap();
        }
        let ep = random.pick(&free);
        match node.cr_accept(cr, Some(ep), b"yes") {
            Ok(()) => self.eps.get_mut(&ep).unwrap().open = true,
            Err(error) => {
                self.expect_broken(error);
                node.cr_reject(cr).unwrap();
            }
        }
    }

    /// A cookie not used before.
    fn next_cookie(&mut self) -> u64 {
        self.cookie += 1;
        self.cookie
    }

    /// A segment in the half of the memory that the player itself uses.
    fn segment(&self, random: &mut Random, len: u64) -> LmrTriplet {
        let at = self.lmr.registered_address + random.below(MEMORY as u64 / 2 - LONGEST);
        LmrTriplet::new(self.lmr.lmr_context, at, len)
    }

    fn receive(&mut self, node: &mut Node, ep: EpHandle, state: EpState, random: &mut Random) {
        let (cookie, iov) = (self.next_cookie(), [self.segment(random, LONGEST)]);
        let known = self.eps.get_mut(&ep).unwrap();
        let full = |error: DatReturn| error.is(ReturnType::InsufficientResources);
        if known.shared {
            let own = node.ep_post_recv(ep, &iov, cookie, NONE).unwrap_err();
            assert!(own.is(ReturnType::InvalidState), "{own}");
            match node.srq_post_recv(self.srq, &iov, cookie) {
                Ok(()) => assert!(self.buffers.insert(cookie)),
                Err(error) => assert!(full(error), "{error}"),
            }
            return;
        }
        match node.ep_post_recv(ep, &iov, cookie, NONE) {
            Ok(()) => {
                let late = state == EpState::Disconnected;
                known.receives.push_back(Posted { cookie, suppressed: false, late });
            }
            Err(error) => assert!(full(error), "{error} in {state:?}"),
        }
    }

    fn request(
        &mut self,
        node: &mut Node,
        turn: Turn,
        ep: EpHandle,
        state: EpState,
        (key, address): (u32, u64),
        random: &mut Random,
    ) {
        let cookie = self.next_cookie();
        let len = random.pick(&[0, 1, 64, 4095, 5000, LONGEST]);
        let iov = [self.segment(random, len)];
        let half = MEMORY as u64 / 2;
        let remote = RmrTriplet::new(key, address + half + random.below(half - LONGEST), len);
        let suppressed = random.one_in(3);
        let flags = if suppressed { CompletionFlags::SUPPRESS } else { NONE };
        let result = match turn {
            Turn::Write => node.ep_post_rdma_write(ep, &iov, cookie, &remote, flags),
            Turn::Read => node.ep_post_rdma_read(ep, &iov, cookie, &remote, flags),
            Turn::Atomic => {
                let local = LmrTriplet { segment_length: 8, ..iov[0] };
                let remote = RmrTriplet::new(key, remote.target_address & !7, 8);
                if random.one_in(2) {
                    node.ep_post_fetch_add(ep, &local, cookie, &remote, 3, flags)
                } else {
                    node.ep_post_compare_swap(ep, &local, cookie, &remote, 0, 5, flags)
                }
            }
            Turn::Immediate if random.one_in(2) => {
                node.ep_post_rdma_write_immediate(ep, &iov, cookie, &remote, 77, flags)
            }
            Turn::Immediate => node.ep_post_send_immediate(ep, &iov, cookie, 78, flags),
            Turn::Invalidate => node.ep_post_send_invalidate(ep, &iov, cookie, key, flags),
            Turn::Bind => self.bind(node, ep, cookie, random, flags),
            _ => node.ep_post_send(ep, &iov, cookie, flags),
        };
        let late = state == EpState::Disconnected;
        let known = self.eps.get_mut(&ep).unwrap();
        match result {
            Ok(()) => {
                assert!(late || state == EpState::Connected, "posted in {state:?}");
                known.requests.push_back(Posted { cookie, suppressed, late });
                if matches!(turn, Turn::Bind) {
                    self.binds.insert(cookie, ep);
                }
            }
            // Full, or a poll for room has ended the connection.
            Err(error) if error.is(ReturnType::InsufficientResources) => {}
            Err(error) if error.is(ReturnType::InvalidState) => {
                let now = node.ep_get_status(ep).unwrap().state;
                assert!(!matches!(now, EpState::Connected | EpState::Disconnected), "{error} in {now:?}");
            }
            Err(error) => panic!("{error} in {state:?}"),
        }
    }

    /// Binds one of the windows to something, or to nothing.
    fn bind(
        &self,
        node: &mut Node,
        ep: EpHandle,
        cookie: u64,
        random: &mut Random,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let len = random.pick(&[0, 64, 4096]);
        let (window, segment) = (random.pick(&self.windows), self.segment(random, len));
        let rights = random.pick(&[MemPriv::REMOTE_READ, MemPriv::REMOTE_WRITE]);
        node.rmr_bind(window, &segment, rights, ep, cookie, flags).map(|_| ())
    }

    fn connect(&mut self, node: &mut Node, ep: EpHandle, random: &mut Random) {
        let timeout =
            if random.one_in(2) { TIMEOUT_INFINITE } else { 50_000 + random.below(2_000_000) as u32 };
        let to = address(1 - self.index);
        match node.ep_connect(ep, &to, QUALIFIER, timeout, b"hi", Qos::BestEffort, ConnectFlags::Default) {
            Ok(()) => self.eps.get_mut(&ep).unwrap().open = true,
            Err(error) => self.expect_broken(error),
        }
    }

    fn disconnect(node: &mut Node, ep: EpHandle, state: EpState, how: CloseFlags) {
        match node.ep_disconnect(ep, how) {
            Ok(()) => assert_ne!(state, EpState::Unconnected),
            Err(error) => {
                assert!(error.is(ReturnType::InvalidState) && state == EpState::Unconnected, "{error}");
            }
        }
    }

    fn reset(&mut self, node: &mut Node, ep: EpHandle, state: EpState, tally: &mut Tally) {
        match node.ep_reset(ep) {
            Ok(()) if state == EpState::Disconnected => self.forget(node, ep, tally),
            Ok(()) => assert_eq!(state, EpState::Unconnected),
            // Nothing has changed then.
            Err(error) if error.is(ReturnType::InternalError) && state == EpState::Disconnected => {
                self.expect_broken(error);
            }
            Err(error) => assert!(error.is(ReturnType::InvalidState), "{error} in {state:?}"),
        }
    }

    /// An EP was reset: what was not taken is lost, except the event that tells the end.
    fn forget(&mut self, node: &mut Node, ep: EpHandle, tally: &mut Tally) {
        let known = self.eps.get_mut(&ep).unwrap();
        known.requests.clear();
        known.receives.clear();
        let shared = known.shared;
        self.binds.retain(|_, of| *of != ep);
        self.lose_buffers(node, shared);
        self.drain(node, tally);
        assert!(!self.eps[&ep].open, "the end is told even then");
    }

    /// Ends everything that is under way.
    pub fn end(&mut self, node: &mut Node) {
        self.reject_all(node);
        for ep in self.eps.keys() {
            // Unconnected ones cannot be.
            let _ = node.ep_disconnect(*ep, CloseFlags::Abrupt);
        }
    }

    /// Rejects what has arrived; whether every end was told.
    pub fn has_ended(&mut self, node: &mut Node) -> bool {
        self.reject_all(node);
        self.eps.values().all(|known| !known.open)
    }

    fn reject_all(&mut self, node: &mut Node) {
        for cr in self.requests.drain(..) {
            node.cr_reject(cr).unwrap();
        }
    }

    /// Everything posted has been reported, except what waits in the shared queue.
    pub fn check_all_told(&self, node: &Node) {
        for (ep, known) in &self.eps {
            let state = node.ep_get_status(*ep).unwrap().state;
            // Receives of an EP without a connection wait for one.
            let waiting = if state == EpState::Unconnected { known.receives.len() } else { 0 };
            assert_eq!(known.receives.len(), waiting, "receives never completed: {known:?}");
            let left = known.requests.iter().filter(|posted| !posted.suppressed || posted.late).count();
            assert_eq!(left, 0, "requests never completed: {known:?}");
        }
        if !node.is_dead() {
            let found = node.srq_query(self.srq).unwrap();
            assert_eq!(found.available_dto_count, found.outstanding_dto_count, "all that was taken was told");
        }
    }

    /// Closes the IA with everything.
    pub fn leave(self, node: &mut Node) {
        node.ia_close(self.ia, CloseFlags::Abrupt).unwrap();
        node.dma_free(self.memory).unwrap();
    }
}

impl Tally {
    fn count(&mut self, status: DtoStatus) {
        *if status == DtoStatus::Success { &mut self.successes } else { &mut self.failures } += 1;
    }
}
