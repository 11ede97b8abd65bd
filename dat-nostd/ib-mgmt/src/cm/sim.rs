//! Two nodes that connect to each other (and to themselves) thousands of times over a wire that
//! loses, duplicates and reorders, all from a seed. Owners accept, reject, defer, abandon and
//! disconnect at random. Afterwards every attempt has exactly one end on each side, and no slot is
//! taken. Private data arrived unchanged, and both sides agree on QPs and PSNs.

use std::collections::{BTreeMap, HashMap};

use super::tests::due;
use super::*;
use crate::mad::{Mad, MadAddress};
use crate::sa::PathRecord;
use ib_types::mix;
use ib_types::{Duration, Gid, Guid, Instant, Lid, PKey, Psn, QpNumber, ServiceLevel};

const SERVICE: u64 = 0x0106_48ca;
const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn time_below(&mut self, end: Duration) -> Duration {
        Duration::from_nanos(self.below(end.as_nanos() as u64))
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Faults of the wire, percent, and what the run looks like.
#[derive(Clone, Copy)]
struct Faults {
    loss: u64,
    duplicate: u64,
    max_delay: Duration,
    slots: usize,
    connects: u32,
    /// Nanoseconds between attempts of a node.
    pace: Duration,
}

/// A pattern that depends on the attempt, the kind of message, and the position.
fn pattern(token: u32, kind: u8, len: usize) -> Vec<u8> {
    let mut data = token.to_be_bytes().to_vec();
    data.push(kind);
    while data.len() < len {
        let i = data.len() as u64;
        data.push(mix(u64::from(token) << 16 | u64::from(kind) << 8 ^ i) as u8);
    }
    data
}

fn token_of(data: &[u8], kind: u8) -> u32 {
    let token = u32::from_be_bytes(data[..4].try_into().unwrap());
    assert_eq!(data, pattern(token, kind, data.len()), "private data of kind {kind} damaged");
    token
}

/// End of an attempt on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Rejected(RejReason),
    TimedOut,
    Disconnected,
    Abandoned,
    RejectedByUs,
}

#[derive(Debug)]
struct Side {
    token: u32,
    reply_seen: bool,
    established: bool,
    end: Option<End>,
    qp: Option<QpAttributes>,
    own: (QpNumber, Psn),
}

#[derive(Clone, Copy, Debug)]
enum Todo {
    Connect,
    Rtu(ConnId),
    Decide(ConnId),
    Accept(ConnId),
    Disconnect(ConnId),
    Abandon(ConnId),
}

struct Node<'s> {
    lid: u16,
    cm: Cm<'s>,
    sides: HashMap<ConnId, Side>,
    exited: u32,
    /// QP numbers are taken in turn from a small pool, so they come back.
    next_qpn: u32,
}

struct World<'s> {
    now: Instant,
    rng: Rng,
    faults: Faults,
    nodes: Vec<Node<'s>>,
    /// By time and sequence.
    todo: BTreeMap<(Instant, u64), (usize, Todo)>,
    wire: BTreeMap<(Instant, u64), (u16, MadAddress, Mad)>,
    seq: u64,
    next_token: u32,
    left: Vec<u32>,
}

fn path(from: u16, to: u16) -> PathRecord {
    *PathRecord::zeroed()
        .set_sgid(Gid::new(Gid::DEFAULT_PREFIX, from.into()))
        .set_dgid(Gid::new(Gid::DEFAULT_PREFIX, to.into()))
        .set_slid(Lid::new(from))
        .set_dlid(Lid::new(to))
        .set_pkey(PKey::DEFAULT)
        .set_sl(ServiceLevel::new(0))
        .set_mtu(4)
        .set_rate(16)
        .set_packet_life_time(10)
}

impl World<'_> {
    fn plan(&mut self, node: usize, after: Duration, todo: Todo) {
        self.seq += 1;
        self.todo.insert((self.now + after, self.seq), (node, todo));
    }

    fn transmit(&mut self, from: u16, out: Outgoing) {
        if self.rng.chance(self.faults.loss) {
            return;
        }
        let copies = if self.rng.chance(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = 10 * US + self.rng.time_below(self.faults.max_delay);
            self.seq += 1;
            let src = MadAddress { sl: out.dest.sl, ..MadAddress::local(Lid::new(from)) };
            self.wire.insert((self.now + delay, self.seq), (out.dest.lid.get(), src, out.mad));
        }
    }

    fn act(&mut self, index: usize, todo: Todo) {
        let now = self.now;
        let roll = self.rng.below(100);
        let delay = self.rng.time_below(5 * MS);
        let node = &mut self.nodes[index];
        match todo {
            Todo::Connect => {
                if self.left[index] == 0 {
                    return;
                }
                let to = if roll < 5 { node.lid } else { 3 - node.lid };
                let service = if roll >= 97 { SERVICE + 1 } else { SERVICE };
                let own = (QpNumber::new(node.next_qpn), Psn::new(mix(u64::from(self.next_token)) as u32));
                let deadline = (self.faults.loss > 0 && roll.is_multiple_of(10)).then_some(now + 30 * MS);
                let params = ConnectParams {
                    response_timeout: 12,
                    max_cm_retries: 6,
                    deadline,
                    ..ConnectParams::new(path(node.lid, to), service, own.0, own.1)
                };
                let token = self.next_token;
                match node.cm.connect(now, &params, &pattern(token, 1, 92), token) {
                    Ok(id) => {
                        self.next_token += 1;
                        self.left[index] -= 1;
                        node.next_qpn = 0x100 + (node.next_qpn - 0x100 + 1) % 4096;
                        let side =
                            Side { token, reply_seen: false, established: false, end: None, qp: None, own };
                        assert!(node.sides.insert(id, side).is_none(), "id used twice");
                        if roll % 20 == 1 {
                            self.plan(index, delay, Todo::Abandon(id));
                        }
                    }
                    Err(error) => assert_eq!(error, CmError::NoResources),
                }
                let pace = self.faults.pace;
                self.plan(
                    index,
                    pace / 2 + Duration::from_nanos((delay.as_nanos() % pace.as_nanos()) as u64),
                    Todo::Connect,
                );
            }
            Todo::Rtu(id) => {
                let side = node.sides.get_mut(&id).unwrap();
                match node.cm.rtu(id, &pattern(side.token, 3, 224)) {
                    Ok(()) => {
                        side.established = true;
                        side.qp = node.cm.qp_attributes(id);
                        self.plan(index, 10 * delay, Todo::Disconnect(id));
                    }
                    Err(_) => assert!(side.end.is_some()),
                }
            }
            Todo::Decide(id) if roll < 15 => {
                let side = node.sides.get_mut(&id).unwrap();
                let token = side.token;
                let reason = RejReason::CONSUMER_DEFINED;
                let (info, data) = (pattern(token, 5, 72), pattern(token, 4, 148));
                match node.cm.reject(now, id, reason, &info, &data) {
                    Ok(()) => side.end = Some(End::RejectedByUs),
                    Err(_) => assert!(side.end.is_some()),
                }
            }
            Todo::Decide(id) if roll < 25 => {
                let side = &node.sides[&id];
                match node.cm.defer(id, 14) {
                    Ok(()) => self.plan(index, 30 * MS + delay, Todo::Accept(id)),
                    Err(_) => assert!(side.end.is_some()),
                }
            }
            Todo::Decide(id) if roll < 28 => self.act(index, Todo::Abandon(id)),
            Todo::Decide(id) | Todo::Accept(id) => {
                let side = node.sides.get_mut(&id).unwrap();
                let own = (QpNumber::new(node.next_qpn), Psn::new(mix(u64::from(side.token) ^ 77) as u32));
                node.next_qpn = 0x100 + (node.next_qpn - 0x100 + 1) % 4096;
                side.own = own;
                let params = AcceptParams { target_ack_delay: 8, ..AcceptParams::new(own.0, own.1) };
                match node.cm.accept(now, id, &params, &pattern(side.token, 2, 196), side.token) {
                    Ok(()) => {
                        side.qp = node.cm.qp_attributes(id);
                        if roll.is_multiple_of(10) {
                            self.plan(index, 4 * delay, Todo::Abandon(id));
                        }
                    }
                    Err(_) => assert!(side.end.is_some()),
                }
            }
            Todo::Disconnect(id) => {
                let side = &node.sides[&id];
                match node.cm.disconnect(now, id, &[]) {
                    Ok(()) => {}
                    Err(_) => assert!(side.end.is_some() || node.cm.info(id).is_some()),
                }
            }
            Todo::Abandon(id) => {
                let side = node.sides.get_mut(&id).unwrap();
                match node.cm.abandon(now, id, &[]) {
                    Ok(()) => {
                        // Keep an end that was reported before.
                        side.end.get_or_insert(End::Abandoned);
                    }
                    Err(error) => {
                        assert_eq!(error, CmError::InvalidId);
                        assert!(side.end.is_some());
                    }
                }
            }
        }
    }

    fn hear(&mut self, index: usize, event: CmEvent) {
        let delay = self.rng.time_below(4 * MS);
        let roll = self.rng.below(100);
        let node = &mut self.nodes[index];
        let finish = |sides: &mut HashMap<ConnId, Side>, id, end| {
            let side: &mut Side = sides.get_mut(&id).unwrap();
            assert_eq!(side.end, None, "two ends: {end:?}");
            side.end = Some(end);
        };
        match event {
            CmEvent::ConnectRequest { id, listener } => {
                assert_eq!(listener, 4711);
                let token = token_of(node.cm.private_data(id), 1);
                let side = Side {
                    token,
                    reply_seen: false,
                    established: false,
                    end: None,
                    qp: None,
                    own: Default::default(),
                };
                assert!(node.sides.insert(id, side).is_none(), "id used twice");
                self.plan(index, delay, Todo::Decide(id));
            }
            CmEvent::Reply { id, owner } => {
                let side = node.sides.get_mut(&id).unwrap();
                assert_eq!((owner, side.reply_seen, side.end), (side.token, false, None));
                side.reply_seen = true;
                assert_eq!(token_of(node.cm.private_data(id), 2), owner);
                if roll < 5 {
                    self.plan(index, delay, Todo::Abandon(id));
                } else {
                    if roll < 10 {
                        node.cm.defer(id, 13).unwrap();
                    }
                    self.plan(index, delay, Todo::Rtu(id));
                }
            }
            CmEvent::Established { id, owner } => {
                let side = node.sides.get_mut(&id).unwrap();
                assert_eq!((owner, side.established, side.end), (side.token, false, None));
                side.established = true;
                if roll < 50 {
                    self.plan(index, 5 * delay, Todo::Disconnect(id));
                } else if roll < 55 {
                    self.plan(index, 5 * delay, Todo::Abandon(id));
                }
            }
            CmEvent::Rejected { id, owner, reason } => {
                if owner != 4711 {
                    assert_eq!(owner, node.sides[&id].token);
                }
                if reason == RejReason::CONSUMER_DEFINED && node.cm.private_data(id)[..5] != [0; 5] {
                    assert_eq!(token_of(node.cm.private_data(id), 4), owner);
                    assert_eq!(token_of(node.cm.reject_info(id), 5), owner);
                }
                finish(&mut node.sides, id, End::Rejected(reason));
            }
            CmEvent::TimedOut { id, .. } => finish(&mut node.sides, id, End::TimedOut),
            CmEvent::Disconnected { id, .. } => {
                assert!(node.sides[&id].established || node.sides[&id].reply_seen, "never connected");
                finish(&mut node.sides, id, End::Disconnected);
            }
            CmEvent::TimeWaitExit { id, .. } => {
                assert!(node.sides[&id].end.is_some());
                node.exited += 1;
            }
            CmEvent::DatagramRequest { .. } | CmEvent::DatagramReply { .. } => panic!("{event:?}"),
        }
    }

    /// Everything due now; then time moves on. False when nothing will ever happen again.
    fn step(&mut self) -> bool {
        for index in 0..self.nodes.len() {
            while let Some(out) = self.nodes[index].cm.dispatch(self.now) {
                let lid = self.nodes[index].lid;
                self.transmit(lid, out);
            }
            while let Some(event) = self.nodes[index].cm.poll_event() {
                self.hear(index, event);
            }
        }
        let timers = self.nodes.iter().filter_map(|n| due(&n.cm));
        let planned = self.todo.first_key_value().map(|((at, _), _)| *at);
        let flying = self.wire.first_key_value().map(|((at, _), _)| *at);
        let Some(next) = timers.chain(planned).chain(flying).min() else { return false };
        self.now = self.now.max(Instant::from_nanos(next.as_nanos()));
        while let Some(entry) =
            self.wire.first_entry().filter(|e| e.key().0 <= Instant::from_nanos(self.now.as_nanos()))
        {
            let (lid, src, mad) = entry.remove();
            let node = self.nodes.iter_mut().find(|n| n.lid == lid).expect("a node with this LID");
            node.cm.process(self.now, &src, &mad);
        }
        while let Some(entry) =
            self.todo.first_entry().filter(|e| e.key().0 <= Instant::from_nanos(self.now.as_nanos()))
        {
            let (index, todo) = entry.remove();
            // Fetch all events before the next decision.
            while let Some(event) = self.nodes[index].cm.poll_event() {
                self.hear(index, event);
            }
            self.act(index, todo);
        }
        true
    }
}

#[derive(Default, Debug)]
struct Summary {
    attempts: usize,
    connected_both: usize,
    rejected: usize,
    timed_out: usize,
    counters: Vec<CmCounters>,
}

fn run(seed: u64, faults: Faults) -> Summary {
    let mut slots = [vec![CmSlot::EMPTY; faults.slots], vec![CmSlot::EMPTY; faults.slots]];
    let mut histories = [vec![EndedSet::EMPTY; faults.slots], vec![EndedSet::EMPTY; faults.slots]];
    let mut listeners = [[Listener::EMPTY; 2]; 2];
    let mut nodes = vec![];
    let tables = slots.iter_mut().zip(&mut histories).zip(&mut listeners);
    for (index, ((slots, history), listeners)) in tables.enumerate() {
        let lid = index as u16 + 1;
        let mut config = CmConfig::new(Guid::new(u64::from(lid) << 32), seed ^ u64::from(lid));
        config.ca_ack_delay = 8;
        let mut cm = Cm::new(slots, history, listeners, config);
        cm.listen(SERVICE, 4711, 0).unwrap();
        nodes.push(Node { lid, cm, sides: HashMap::new(), exited: 0, next_qpn: 0x100 });
    }
    let mut world = World {
        now: Instant::ORIGIN,
        rng: Rng(mix(seed)),
        faults,
        nodes,
        todo: BTreeMap::new(),
        wire: BTreeMap::new(),
        seq: 0,
        next_token: 1,
        left: vec![faults.connects; 2],
    };
    world.plan(0, Duration::ZERO, Todo::Connect);
    world.plan(1, Duration::ZERO, Todo::Connect);
    let mut steps = 0u64;
    while world.step() {
        steps += 1;
        assert!(steps < 10_000_000, "endless");
        // Remaining connections must end too: disconnect all once no action is planned.
        if world.todo.is_empty() && world.left == [0, 0] {
            for index in 0..world.nodes.len() {
                let node = &mut world.nodes[index];
                let mut open: Vec<ConnId> = node.sides.keys().copied().collect();
                open.sort_by_key(|id| (id.slot, id.generation));
                for id in open {
                    if node.cm.info(id).is_some_and(|info| info.state == State::Established) {
                        node.cm.disconnect(world.now, id, &[]).unwrap();
                    }
                }
            }
        }
    }
    check(world)
}

fn check(world: World<'_>) -> Summary {
    let mut summary = Summary::default();
    let mut active: HashMap<u32, &Side> = HashMap::new();
    let mut passive: HashMap<u32, Vec<&Side>> = HashMap::new();
    for node in &world.nodes {
        assert_eq!(node.cm.slots_in_use(), 0, "slots leaked");
        assert_eq!(due(&node.cm), None);
        for side in node.sides.values() {
            assert!(side.end.is_some(), "no end: {side:?}");
        }
        summary.counters.push(node.cm.counters());
    }
    for node in &world.nodes {
        for side in node.sides.values() {
            // Active sides set their own numbers before anything else, and tokens are unique among
            // them.
            let is_active =
                side.own != Default::default() && side.own.1 == Psn::new(mix(u64::from(side.token)) as u32);
            if is_active {
                assert!(active.insert(side.token, side).is_none());
            } else {
                passive.entry(side.token).or_default().push(side);
            }
        }
    }
    assert_eq!(active.len() as u32, world.next_token - 1);
    for (token, side) in &active {
        summary.attempts += 1;
        match side.end {
            Some(End::TimedOut) => summary.timed_out += 1,
            Some(End::Rejected(_)) => summary.rejected += 1,
            _ => {}
        }
        let peers = passive.get(token).map(Vec::as_slice).unwrap_or_default();
        let up: Vec<&&Side> = peers.iter().filter(|p| p.established).collect();
        // A connection has one passive side, and only if the active one said it was ready.
        assert!(up.len() <= 1, "two passive sides for one attempt");
        if let [peer] = up[..] {
            assert!(side.established, "passive side up without RTU");
            let (qa, qp) = (side.qp.unwrap(), peer.qp.unwrap());
            assert_eq!((qa.remote_qpn, qa.sq_psn), peer.own);
            assert_eq!((qp.remote_qpn, qp.sq_psn), side.own);
            assert_eq!((qa.rq_psn, qp.rq_psn), (side.own.1, peer.own.1));
            summary.connected_both += 1;
        }
        if side.established {
            assert!(!peers.is_empty() && side.reply_seen);
        }
    }
    summary
}

#[test]
fn a_good_wire_connects_everything_that_is_wanted() {
    let faults = Faults { loss: 0, duplicate: 0, max_delay: 100 * US, slots: 512, connects: 1000, pace: MS };
    let summary = run(1, faults);
    assert_eq!((summary.attempts, summary.timed_out), (2000, 0));
    assert!(summary.connected_both > 1000, "{summary:?}");
    assert!(summary.counters.iter().all(|c| c.retries == 0), "{summary:?}");
    assert!(summary.counters.iter().all(|c| c.malformed + c.foreign + c.replies_dropped == 0), "{summary:?}");
}

#[test]
fn a_bad_wire_leaves_nothing_undecided() {
    for seed in 0..6 {
        let faults =
            Faults { loss: 10, duplicate: 10, max_delay: 3 * MS, slots: 1024, connects: 1000, pace: 2 * MS };
        let summary = run(seed, faults);
        assert_eq!(summary.attempts, 2000);
        assert!(summary.connected_both > 800, "seed {seed}: {summary:?}");
        assert!(summary.rejected > 100 && summary.timed_out > 0, "seed {seed}: {summary:?}");
        assert!(summary.counters.iter().all(|c| c.retries > 50 && c.duplicates > 50), "{summary:?}");
    }
}

#[test]
fn a_terrible_wire_and_small_tables_leak_nothing() {
    for seed in 100..106 {
        let faults =
            Faults { loss: 35, duplicate: 25, max_delay: 12 * MS, slots: 24, connects: 400, pace: 3 * MS };
        let summary = run(seed, faults);
        assert_eq!(summary.attempts, 800);
        assert!(summary.timed_out > 0 && summary.connected_both > 0, "seed {seed}: {summary:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let faults =
        Faults { loss: 10, duplicate: 10, max_delay: 2 * MS, slots: 256, connects: 100, pace: 2 * MS };
    let (a, b) = (run(42, faults), run(42, faults));
    assert_eq!((a.connected_both, a.counters), (b.connected_both, b.counters));
}
