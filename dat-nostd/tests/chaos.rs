//! Random calls on a bad fabric: every operation posted completes exactly once and in order, every attempt to connect ends in
//! exactly one event, behind everything that it ends.

mod common;

use common::{Net, Node, address};
use dat_nostd::*;
use std::collections::{HashMap, VecDeque};
use tests::WorldConfig;

const EPS: usize = 4;
const QUALIFIER: u64 = 7;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }
}

/// An operation posted and not yet reported.
#[derive(Debug)]
struct Posted {
    cookie: u64,
    suppressed: bool,
    /// Posted to a disconnected EP.
    late: bool,
}

/// What the test knows of an EP.
#[derive(Debug, Default)]
struct Known {
    requests: VecDeque<Posted>,
    receives: VecDeque<Posted>,
    /// An attempt is under way or a connection stands, and its end has not been told.
    open: bool,
    established: bool,
}

struct Player {
    ia: IaHandle,
    pz: PzHandle,
    memory: DmaSlice,
    lmr: LmrCreated,
    evd: EvdHandle,
    eps: HashMap<EpHandle, Known>,
    requests: Vec<CrHandle>,
}

#[derive(Debug, Default)]
struct Tally {
    completions: u64,
    flushes: u64,
    established: u64,
    ends: u64,
}

fn attributes() -> EpAttributes {
    EpAttributes { max_request_dtos: 8, max_recv_dtos: 8, retry_count: 7, ..EpAttributes::DEFAULT }
}

impl Player {
    fn new(node: &mut Node) -> Self {
        let (ia, _) = node.ia_open("ib0", 8, None).unwrap();
        let pz = node.pz_create(ia).unwrap();
        let memory = node.dma_alloc(1 << 16, 4096).unwrap();
        let lmr = node.lmr_create(ia, memory, pz, MemPriv::ALL).unwrap();
        let streams = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let evd = node.evd_create(ia, 256, None, streams).unwrap();
        node.psp_create(ia, QUALIFIER, evd, PspFlags::Consumer).unwrap();
        let mut player = Self { ia, pz, memory, lmr, evd, eps: HashMap::new(), requests: Vec::new() };
        for _ in 0..EPS {
            player.make(node);
        }
        player
    }

    fn make(&mut self, node: &mut Node) {
        let evd = Some(self.evd);
        let ep = node.ep_create(self.ia, Some(self.pz), evd, evd, evd, Some(&attributes())).unwrap();
        self.eps.insert(ep, Known::default());
    }

    /// Takes everything that has happened.
    fn drain(&mut self, node: &mut Node, tally: &mut Tally) {
        while let Ok(event) = node.evd_dequeue(self.evd) {
            match event.data {
                EventData::ConnectionRequest { cr, .. } => self.requests.push(cr),
                EventData::Dto(done) => self.completed(&done, tally),
                EventData::Connection { event, ep, .. } => {
                    let known = self.eps.get_mut(&ep).expect("an event of an EP that lives");
                    assert!(known.open, "{event:?} of an EP whose end was told");
                    if event == ConnectionEvent::Established {
                        assert!(!known.established);
                        known.established = true;
                        tally.established += 1;
                        continue;
                    }
                    tally.ends += 1;
                    (known.open, known.established) = (false, false);
                    let state = node.ep_get_status(ep).unwrap().state;
                    // Reset at once, perhaps, while the event waited.
                    assert!(
                        matches!(state, EpState::Disconnected | EpState::Unconnected),
                        "{state:?} after {event:?}"
                    );
                    let left = known.requests.iter().filter(|posted| !posted.late && !posted.suppressed);
                    assert_eq!(left.count(), 0, "requests behind {event:?}: {:?}", known.requests);
                    let left = known.receives.iter().filter(|posted| !posted.late);
                    assert_eq!(left.count(), 0, "receives behind {event:?}: {:?}", known.receives);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn completed(&mut self, done: &DtoCompletion, tally: &mut Tally) {
        let known = self.eps.get_mut(&done.ep).expect("a completion of an EP that lives");
        let success = done.status == DtoStatus::Success;
        if success {
            tally.completions += 1;
        } else {
            tally.flushes += 1;
        }
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

    #[allow(clippy::too_many_arguments)]
    fn act(
        &mut self,
        node: &mut Node,
        index: usize,
        peer: (u32, u64),
        random: &mut Random,
        cookie: u64,
        tally: &mut Tally,
    ) {
        if let Some(cr) = self.requests.pop() {
            let free = self
                .eps
                .keys()
                .copied()
                .find(|ep| node.ep_get_status(*ep).unwrap().state == EpState::Unconnected);
            match free {
                Some(ep) if random.below(4) > 0 => {
                    node.cr_accept(cr, Some(ep), b"yes").unwrap();
                    let known = self.eps.get_mut(&ep).unwrap();
                    known.open = true;
                    known.receives.iter().for_each(|posted| assert!(!posted.late));
                }
                _ => node.cr_reject_with(cr, b"no").unwrap(),
            }
            return;
        }
        let mut eps: Vec<EpHandle> = self.eps.keys().copied().collect();
        eps.sort_unstable();
        let ep = eps[random.below(eps.len() as u64) as usize];
        let state = node.ep_get_status(ep).unwrap().state;
        let late = state == EpState::Disconnected;
        let known = self.eps.get_mut(&ep).unwrap();
        let at = self.lmr.registered_address + random.below(1 << 15);
        let len = [0, 1, 64, 4095, 5000][random.below(5) as usize];
        let iov = [LmrTriplet::new(self.lmr.lmr_context, at, len)];
        let remote = RmrTriplet::new(peer.0, peer.1 + random.below(1 << 15), len);
        let suppressed = random.below(3) == 0;
        let flags = if suppressed { CompletionFlags::SUPPRESS } else { CompletionFlags::empty() };
        let full = |error: DatReturn| error.is(ReturnType::InsufficientResources);
        match random.below(24) {
            0..8 => match node.ep_post_recv(
                ep,
                &[LmrTriplet { segment_length: 5000, ..iov[0] }],
                cookie,
                CompletionFlags::empty(),
            ) {
                Ok(()) => known.receives.push_back(Posted { cookie, suppressed: false, late }),
                Err(error) => assert!(full(error), "{error} in {state:?}"),
            },
            choice @ 8..18 => {
                let result = match choice {
                    8..14 => node.ep_post_send(ep, &iov, cookie, flags),
                    14..16 => node.ep_post_rdma_write(ep, &iov, cookie, &remote, flags),
                    _ => node.ep_post_rdma_read(ep, &iov, cookie, &remote, flags),
                };
                match (state, result) {
                    (EpState::Connected | EpState::Disconnected, Ok(())) => {
                        known.requests.push_back(Posted { cookie, suppressed, late });
                    }
                    (EpState::Connected | EpState::Disconnected, Err(error)) => {
                        assert!(full(error), "{error}")
                    }
                    (_, result) => assert!(result.is_err_and(|error| error.is(ReturnType::InvalidState))),
                }
            }
            18..20 if state == EpState::Unconnected => {
                let timeout = if random.below(2) == 0 { TIMEOUT_INFINITE } else { 50_000 };
                let to = address(1 - index);
                node.ep_connect(ep, &to, QUALIFIER, timeout, b"hi", Qos::BestEffort, ConnectFlags::Default)
                    .unwrap();
                known.open = true;
            }
            20 => {
                let how = if random.below(2) == 0 { CloseFlags::Abrupt } else { CloseFlags::Graceful };
                match node.ep_disconnect(ep, how) {
                    Ok(()) => assert_ne!(state, EpState::Unconnected),
                    Err(error) => {
                        assert!(error.is(ReturnType::InvalidState) && state == EpState::Unconnected)
                    }
                }
            }
            21..23 => match node.ep_reset(ep) {
                Ok(()) if state == EpState::Disconnected => {
                    // What was not taken is lost, except the event that tells the end.
                    known.requests.clear();
                    known.receives.clear();
                    self.drain(node, tally);
                    assert!(!self.eps[&ep].open, "the end is told even then");
                }
                Ok(()) => assert_eq!(state, EpState::Unconnected),
                Err(error) => assert!(error.is(ReturnType::InvalidState), "{error}"),
            },
            23 if random.below(4) == 0 => {
                node.ep_free(ep).unwrap();
                self.eps.remove(&ep);
                self.make(node);
            }
            _ => {}
        }
    }
}

fn play(seed: u64, steps: u64) -> Tally {
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = "loss=0.5%,dup=1%,reorder=1%,delay=1us..20us".parse().unwrap();
    let mut net = Net::with(&config, 2);
    let mut random = Random(seed);
    let mut tally = Tally::default();
    let mut players: Vec<Player> = net.nodes.iter_mut().map(Player::new).collect();
    let keys: Vec<(u32, u64)> =
        players.iter().map(|player| (player.lmr.rmr_context, player.lmr.registered_address)).collect();
    for step in 0..steps {
        for _ in 0..random.below(12) {
            net.step();
        }
        if random.below(40) == 0 {
            net.pass(20_000_000);
        }
        let index = random.below(2) as usize;
        players[index].drain(&mut net.nodes[index], &mut tally);
        players[index].act(&mut net.nodes[index], index, keys[1 - index], &mut random, step, &mut tally);
    }
    // The end: everything is told, without anybody being reset or freed.
    for (player, node) in players.iter_mut().zip(&mut net.nodes) {
        for cr in player.requests.drain(..) {
            node.cr_reject(cr).unwrap();
        }
        for ep in player.eps.keys() {
            let _ = node.ep_disconnect(*ep, CloseFlags::Abrupt);
        }
    }
    net.until("all ends", |net| {
        for (player, node) in players.iter_mut().zip(&mut net.nodes) {
            player.drain(node, &mut tally);
            for cr in player.requests.drain(..) {
                node.cr_reject(cr).unwrap();
            }
        }
        players.iter().all(|player| player.eps.values().all(|known| !known.open)).then_some(())
    });
    net.pass(1_000_000_000);
    for (player, node) in players.iter_mut().zip(&mut net.nodes) {
        player.drain(node, &mut tally);
        for (ep, known) in &player.eps {
            let state = node.ep_get_status(*ep).unwrap().state;
            let waiting = if state == EpState::Unconnected { known.receives.len() } else { 0 };
            assert_eq!(known.receives.len(), waiting, "receives never completed: {known:?}");
            let left = known.requests.iter().filter(|posted| !posted.suppressed || posted.late);
            assert_eq!(left.count(), 0, "requests never completed: {known:?}");
        }
        node.ia_close(player.ia, CloseFlags::Abrupt).unwrap();
        node.dma_free(player.memory).unwrap();
    }
    net.assert_no_refusals();
    let world = net.world.clone();
    for (node, adapter) in net.nodes.drain(..).enumerate() {
        assert_eq!(adapter.counters(), AdapterCounters::default());
        adapter.close().unwrap();
        assert_eq!(world.census(node).total(), 0, "{}", world.census(node));
    }
    tally
}

#[test]
fn everything_completes_exactly_once() {
    let mut all = Tally::default();
    for seed in 1..9 {
        let tally = play(seed, 4000);
        all.completions += tally.completions;
        all.flushes += tally.flushes;
        all.established += tally.established;
        all.ends += tally.ends;
    }
    assert!(all.completions > 500 && all.flushes > 500 && all.established > 50 && all.ends > 100, "{all:?}");
}
