//! A node's consumer, which keeps account of everything it has posted.

use dat_nostd::*;
use std::collections::{BTreeMap, VecDeque};
use tests::net::{Node, address};
use tests::seeds::Random;

/// What everybody listens on.
pub const QUALIFIER: u64 = 7;
/// DMA memory of a node, bytes.
pub const NODE_MEMORY: usize = 6 << 20;
const EPS: usize = 3;
const MEMORY: usize = 1 << 17;
const NONE: CompletionFlags = CompletionFlags::empty();

/// How often a player does what.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub receive: u32,
    pub send: u32,
    pub write: u32,
    pub read: u32,
    pub connect: u32,
    pub disconnect: u32,
    pub graceful: u32,
    pub reset: u32,
    pub free: u32,
}

impl Habits {
    fn weights(&self) -> [u32; 9] {
        let Habits { receive, send, write, read, connect, disconnect, graceful, reset, free } = *self;
        [receive, send, write, read, connect, disconnect, graceful, reset, free]
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
    requests: VecDeque<Posted>,
    receives: VecDeque<Posted>,
    /// An attempt is under way or a connection stands, and its end has not been told.
    open: bool,
    established: bool,
    /// A reset failed half-way, its device being gone: what was posted before may be told or not.
    unsure: bool,
}

/// What happened in all.
#[derive(Debug, Default)]
pub struct Tally {
    pub successes: u64,
    pub failures: u64,
    pub established: u64,
    pub ends: u64,
}

pub struct Player {
    index: usize,
    ia: IaHandle,
    pz: PzHandle,
    memory: DmaSlice,
    lmr: LmrCreated,
    evd: EvdHandle,
    asynchronous: EvdHandle,
    eps: BTreeMap<EpHandle, Known>,
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
    pub fn new(index: usize, node: &mut Node) -> Self {
        let (ia, asynchronous) = node.ia_open("ib0", 8, None).unwrap();
        let pz = node.pz_create(ia).unwrap();
        let memory = node.dma_alloc(MEMORY, 4096).unwrap();
        let lmr = node.lmr_create(ia, memory, pz, MemPriv::ALL).unwrap();
        let streams = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let evd = node.evd_create(ia, 256, None, streams).unwrap();
        node.psp_create(ia, QUALIFIER, evd, PspFlags::Consumer).unwrap();
        let mut player = Self {
            index,
            ia,
            pz,
            memory,
            lmr,
            evd,
            asynchronous,
            eps: BTreeMap::new(),
            requests: Vec::new(),
            cookie: (index as u64) << 40,
            catastrophe: false,
            broken: false,
        };
        for _ in 0..EPS {
            player.make(node);
        }
        player
    }

    /// What a peer needs to reach this player's memory.
    pub fn key(&self) -> (u32, u64) {
        (self.lmr.rmr_context, self.lmr.registered_address)
    }

    fn make(&mut self, node: &mut Node) {
        let evd = Some(self.evd);
        match node.ep_create(self.ia, Some(self.pz), evd, evd, evd, Some(&attributes())) {
            Ok(ep) => {
                self.eps.insert(ep, Known::default());
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
                other => panic!("{other:?}"),
            }
        }
        while let Ok(event) = node.evd_dequeue(self.evd) {
            match event.data {
                EventData::ConnectionRequest { cr, .. } => self.requests.push(cr),
                EventData::Dto(done) => self.completed(&done, tally),
                EventData::Connection { event, ep, .. } => self.changed(node, event, ep, tally),
                other => panic!("{other:?}"),
            }
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
        if known.unsure {
            return;
        }
        // Reset at once, perhaps, while the event waited.
        assert!(matches!(state, EpState::Disconnected | EpState::Unconnected), "{state:?} after {event:?}");
        let left = known.requests.iter().filter(|posted| !posted.late && !posted.suppressed).count();
        assert_eq!(left, 0, "requests behind {event:?}: {:?}", known.requests);
        let left = known.receives.iter().filter(|posted| !posted.late).count();
        assert_eq!(left, 0, "receives behind {event:?}: {:?}", known.receives);
    }

    fn completed(&mut self, done: &DtoCompletion, tally: &mut Tally) {
        let known = self.eps.get_mut(&done.ep).expect("a completion of an EP that lives");
        if known.unsure {
            return;
        }
        let success = done.status == DtoStatus::Success;
        *if success { &mut tally.successes } else { &mut tally.failures } += 1;
        if done.operation == DtoOperation::Receive {
            let posted = known.receives.pop_front().expect("a receive was posted");
            assert_eq!(posted.cookie, done.user_cookie, "receives complete in order");
            return;
        }
        loop {
            let posted = known.requests.pop_front().expect("a request was posted");
            if posted.cookie == done.user_cookie {
                assert!(!(posted.suppressed && success), "a suppressed success is not told");
                return;
            }
            assert!(posted.suppressed && !posted.late, "{posted:?} was passed over by {done:?}");
        }
    }

    /// Answers a request, or does something to one of the EPs.
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
        match random.weighted(&habits.weights()) {
            0 => self.post(
                node,
                ep,
                state,
                random,
                |node, ep, iov, cookie, _| node.ep_post_recv(ep, iov, cookie, NONE),
                true,
                peer,
            ),
            1 => self.post(
                node,
                ep,
                state,
                random,
                |node, ep, iov, cookie, (_, flags)| node.ep_post_send(ep, iov, cookie, flags),
                false,
                peer,
            ),
            2 => self.post(
                node,
                ep,
                state,
                random,
                |node, ep, iov, cookie, (remote, flags)| {
                    node.ep_post_rdma_write(ep, iov, cookie, &remote, flags)
                },
                false,
                peer,
            ),
            3 => self.post(
                node,
                ep,
                state,
                random,
                |node, ep, iov, cookie, (remote, flags)| {
                    node.ep_post_rdma_read(ep, iov, cookie, &remote, flags)
                },
                false,
                peer,
            ),
            4 if state == EpState::Unconnected => self.connect(node, ep, random),
            5 => Self::disconnect(node, ep, state, CloseFlags::Abrupt),
            6 => Self::disconnect(node, ep, state, CloseFlags::Graceful),
            7 => self.reset(node, ep, state, tally),
            8 => {
                if let Err(error) = node.ep_free(ep) {
                    self.expect_broken(error);
                }
                self.eps.remove(&ep);
                self.make(node);
            }
            _ => {}
        }
    }

    fn answer(&mut self, node: &mut Node, cr: CrHandle, random: &mut Random) {
        let unconnected = |ep: &EpHandle| node.ep_get_status(*ep).unwrap().state == EpState::Unconnected;
        let free = self.eps.keys().copied().find(unconnected);
        match free {
            Some(ep) if !random.one_in(4) => match node.cr_accept(cr, Some(ep), b"yes") {
                Ok(()) => self.eps.get_mut(&ep).unwrap().open = true,
                Err(error) => {
                    self.expect_broken(error);
                    node.cr_reject(cr).unwrap();
                }
            },
            _ => node.cr_reject_with(cr, b"no").unwrap(),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn post(
        &mut self,
        node: &mut Node,
        ep: EpHandle,
        state: EpState,
        random: &mut Random,
        call: impl Fn(&mut Node, EpHandle, &[LmrTriplet], u64, (RmrTriplet, CompletionFlags)) -> DatResult<()>,
        receive: bool,
        peer: (u32, u64),
    ) {
        self.cookie += 1;
        let cookie = self.cookie;
        let half = MEMORY as u64 / 2;
        let len = if receive { 20_000 } else { random.pick(&[0, 1, 64, 4095, 5000, 20_000]) };
        let at = self.lmr.registered_address + random.below(half - 20_000);
        let iov = [LmrTriplet::new(self.lmr.lmr_context, at, len)];
        let remote = RmrTriplet::new(peer.0, peer.1 + half + random.below(half - 20_000), len);
        let suppressed = !receive && random.one_in(3);
        let flags = if suppressed { CompletionFlags::SUPPRESS } else { NONE };
        let result = call(node, ep, &iov, cookie, (remote, flags));
        let late = state == EpState::Disconnected;
        let known = self.eps.get_mut(&ep).unwrap();
        match result {
            Ok(()) if receive => known.receives.push_back(Posted { cookie, suppressed, late }),
            Ok(()) => {
                assert!(late || state == EpState::Connected, "posted in {state:?}");
                known.requests.push_back(Posted { cookie, suppressed, late });
            }
            // Full, or a poll for room has ended the connection.
            Err(error) if error.is(ReturnType::InsufficientResources) => {}
            Err(error) if error.is(ReturnType::InvalidState) && !receive => {
                let now = node.ep_get_status(ep).unwrap().state;
                assert!(!matches!(now, EpState::Connected | EpState::Disconnected), "{error} in {now:?}");
            }
            // A reset that failed half-way, its device being gone.
            Err(error) if known.unsure && error.subtype() == Some(Subtype::InvalidStateEpNotready) => {}
            Err(error) => panic!("{error} in {state:?}"),
        }
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
            Err(error) if error.is(ReturnType::InternalError) && state == EpState::Disconnected => {
                self.expect_broken(error);
                // A dead device resets nothing; before that is known, the old queues may be lost.
                self.eps.get_mut(&ep).unwrap().unsure |= !node.is_dead();
            }
            Err(error) => assert!(error.is(ReturnType::InvalidState), "{error} in {state:?}"),
        }
    }

    /// An EP was reset: what was not taken is lost, except the event that tells the end.
    fn forget(&mut self, node: &mut Node, ep: EpHandle, tally: &mut Tally) {
        let known = self.eps.get_mut(&ep).unwrap();
        known.requests.clear();
        known.receives.clear();
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

    /// Everything posted has been reported.
    pub fn check_all_told(&self, node: &Node) {
        for (ep, known) in self.eps.iter().filter(|(_, known)| !known.unsure) {
            let state = node.ep_get_status(*ep).unwrap().state;
            // Receives of an EP without a connection wait for one.
            let waiting = if state == EpState::Unconnected { known.receives.len() } else { 0 };
            assert_eq!(known.receives.len(), waiting, "receives never completed: {known:?}");
            let left = known.requests.iter().filter(|posted| !posted.suppressed || posted.late).count();
            assert_eq!(left, 0, "requests never completed: {known:?}");
        }
    }

    /// Closes the IA with everything.
    pub fn leave(self, node: &mut Node) {
        node.ia_close(self.ia, CloseFlags::Abrupt).unwrap();
        node.dma_free(self.memory).unwrap();
    }
}
