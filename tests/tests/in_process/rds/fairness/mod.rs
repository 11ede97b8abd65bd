//! Fairness: with a bad peer at one node, honest ones keep at least 80 % of the messages that they exchange in a virtual second without
//! it; and when it is gone nothing is taken any more.
//!
//! Three honest nodes send each other messages at fixed times of the virtual clock; one that is refused is not sent later. The bad peer is at
//! the first of them with all that it can do between two looks at the clock. Some honest messages are longer than a peer's share of frames.
//! Nothing is measured but counts.

mod bad;

use crate::rds::fuzz::honest::{Honest, OTHER_PORT, PORT};
use bad::{Bad, Misdeed};
use dat_nostd::{CloseFlags, DmaBuffer, Instant, Wake};
use harness::dat;
use harness::rds::at;
use harness::{World, WorldConfig};
use hca_model::Profile;
use rds_nostd::{DownReason, Msg, RdmaFlags, RdsError, SocketHandle};
use std::rc::Rc;

const MS: u64 = 1_000_000;
const HONEST: usize = 3;
const VICTIM: usize = 0;
/// Connections with one that hangs up, at most: of each type of service some, then fewer and fewer.
const MOST_HANG_UPS: u64 = 60;
/// The honest node whose address another one gives itself.
const FORGED: usize = 1;
/// Between two messages from an honest node to another.
const PERIOD: u64 = MS / 4;
/// For connections to stand, and for what is bad to show.
const WARM_UP: u64 = 100 * MS;
const DURATION: u64 = 400 * MS;
const LIMIT: u64 = 120_000 * MS;
/// Entries of an honest node's table of connections.
const ENTRIES: usize = 6;

struct Ground {
    world: Rc<World>,
    nodes: Vec<Honest>,
    bad: Bad,
    without_power: bool,
    /// The victim's socket for the bad peer: it sends there as much as is taken, and does not read.
    other: SocketHandle,
    /// Memory that the victim offers, for one use, to whoever uses it.
    memory: DmaBuffer,
    next: u64,
    refused: usize,
    /// No node's RDS waits for a time.
    is_idle: bool,
}

impl Ground {
    fn new(seed: u64, misdeed: Misdeed) -> Self {
        let world = World::new(&WorldConfig::new(seed));
        let attached: Vec<_> =
            (0..=HONEST).map(|node| world.attach(Profile::node(node as u16), 8 << 20)).collect();
        let mut adapters = attached
            .into_iter()
            .enumerate()
            .map(|(node, (platform, region))| {
                // In whose name it asks.
                let name = if (node, misdeed) == (HONEST, Misdeed::Forge) { FORGED } else { node };
                dat::open_as(platform, region, seed, HONEST + 1, 1, name).expect("opens")
            })
            .collect::<Vec<_>>();
        let adapter = adapters.pop().expect("the last one");
        let nodes = adapters.into_iter().enumerate();
        let mut nodes: Vec<Honest> =
            nodes.map(|(index, adapter)| Honest::new(seed, index, adapter, HONEST)).collect();
        nodes.iter_mut().for_each(|node| node.long = true);
        let Honest { rds, adapter: victims, .. } = &mut nodes[VICTIM];
        let other = rds.bind(at(VICTIM, OTHER_PORT)).expect("binds");
        let memory = victims.dma_alloc(4096, 4096).expect("memory");
        for part in 0..4 {
            let region = memory.slice(part * 1024, 1024).expect("inside");
            let bad = at(HONEST, PORT);
            rds.get_mr_for_dest(victims, other, bad, region, RdmaFlags::USE_ONCE).expect("room");
        }
        let at_first = if shows_at_once(misdeed) { Misdeed::None } else { misdeed };
        let bad = Bad::new(HONEST, adapter, at_first, rds.longest_message());
        let next = world.now();
        Self { world, nodes, bad, without_power: false, other, memory, next, refused: 0, is_idle: false }
    }

    /// Everybody once, or time, which does not pass `until`.
    fn step(&mut self, until: u64) {
        let now = self.world.now();
        let instant = Instant::from_nanos(now);
        let mut wake = if self.without_power { Wake::Idle } else { self.bad.raw.adapter.poll(instant) };
        let mut rds = Wake::Idle;
        for node in &mut self.nodes {
            wake = wake.earliest(node.adapter.poll(instant));
            rds = rds.earliest(node.rds.poll(&mut node.adapter, instant));
            node.read(at(HONEST, PORT));
        }
        self.is_idle = rds == Wake::Idle;
        self.world.idle_until(wake.earliest(rds).earliest(Wake::At(Instant::from_nanos(until))));
    }

    /// Goes on until a time, sending all the while.
    fn run(&mut self, end: u64) {
        while self.world.now() < end {
            if self.world.now() >= self.next {
                self.next += PERIOD;
                for (from, to) in pairs() {
                    let before = self.nodes[from].sent[to];
                    self.nodes[from].send(to);
                    self.refused += usize::from(self.nodes[from].sent[to] == before);
                }
            }
            if !self.without_power {
                self.bad.act(VICTIM);
            }
            if self.bad.is_connected() {
                self.send_to_bad();
            }
            self.step(self.next);
        }
    }

    /// The victim's application has much to say to the bad peer, too.
    fn send_to_bad(&mut self) {
        let Honest { adapter, rds, .. } = &mut self.nodes[VICTIM];
        loop {
            match rds.sendmsg(adapter, self.other, Msg::to(&at(HONEST, PORT), &[7; 64])) {
                Ok(_) => {}
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn delivered(&self) -> Vec<usize> {
        pairs().map(|(from, to)| self.nodes[to].received[from]).collect()
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = self.world.now() + LIMIT;
        while !done(self) {
            if self.world.now() >= end {
                self.nodes.iter().for_each(Honest::describe);
                panic!("in vain: {what}");
            }
            self.leave();
            self.step(end);
        }
    }

    fn pass(&mut self, duration: u64) {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            self.step(end);
        }
    }

    /// The bad peer goes, if it has not gone with its power.
    fn leave(&mut self) {
        if !self.without_power {
            self.bad.leave();
        }
    }

    fn settled(&self) -> bool {
        pairs().all(|(from, to)| self.nodes[from].sent[to] == self.nodes[to].received[from])
    }

    /// The bad peer is there and does not go on: what it began is given up.
    fn wait_for_deadlines(&mut self) {
        let end = self.world.now() + 10_000 * MS;
        while self.nodes[VICTIM].rds.counters().downs[DownReason::Stalled as usize] < 4 {
            assert!(self.world.now() < end, "what was begun stays");
            self.step(end);
        }
    }

    /// Whether an honest node has messages for another one that are not acknowledged.
    fn waits(&self, (from, to): (usize, usize)) -> bool {
        self.nodes[from].rds.retransmit_queue_info().any(|message| message.foreign == at(to, PORT))
    }

    /// The bad peer has gone, the victim's application has done with it: nothing is taken.
    fn end(mut self) {
        self.leave();
        let Honest { adapter, rds, .. } = &mut self.nodes[VICTIM];
        let before = *rds.counters();
        rds.cancel_sent_to(adapter, self.other, at(HONEST, PORT)).expect("bound");
        rds.close(adapter, self.other).expect("open");
        self.until("honest messages arrive", Self::settled);
        self.until("tails are acknowledged", |ground| !pairs().any(|pair| ground.waits(pair)));
        self.until("nobody looks whether anybody is there", |ground| ground.is_idle);
        for node in &self.nodes {
            let posted: usize = node
                .rds
                .ib_connections_info(&node.adapter)
                .map(|connection| connection.cache_allocs as usize)
                .sum();
            assert_eq!(node.rds.free_frames() + posted, node.free_frames, "node {}", node.index);
        }
        let after = self.nodes[VICTIM].rds.counters();
        assert_eq!((before.mr_8k_alloc, after.mr_8k_free), (4, 4), "keys");
        // All entries but those of honest nodes are anybody's, at the latest when nothing has moved there for a while.
        self.pass(11_000 * MS);
        let Honest { adapter, rds, .. } = &mut self.nodes[VICTIM];
        let socket = rds.bind(at(VICTIM, OTHER_PORT)).expect("free");
        for other in 0..ENTRIES - (HONEST - 1) {
            rds.sendmsg(adapter, socket, Msg::to(&at(200 + other, PORT), &[])).expect("an entry");
        }
        rds.close(adapter, socket).expect("open");
        let mut memory = Some(self.memory);
        for node in self.nodes {
            let Honest { index, mut adapter, mut rds, .. } = node;
            rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
            if let Some(memory) = memory.take() {
                adapter.dma_free(memory).expect("nothing leads there");
            }
            adapter.close().expect("closes");
            let census = self.world.census(index);
            assert_eq!(census.total(), 0, "node {index} left behind: {census}");
        }
    }
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..HONEST).flat_map(|from| (0..HONEST).map(move |to| (from, to))).filter(|(from, to)| from != to)
}

/// Whether it is looked at from its first moment on, for a second: it is worst before it is known for what it is.
fn shows_at_once(misdeed: Misdeed) -> bool {
    matches!(misdeed, Misdeed::Stall | Misdeed::Drip)
}

/// Messages that arrived at each honest node from each other one within a time, and what the bad peer had done by then.
fn exchanged(seed: u64, misdeed: Misdeed, duration: u64) -> (Vec<usize>, u64, u64) {
    let mut ground = Ground::new(seed, misdeed);
    let begin = ground.world.now() + WARM_UP;
    if shows_at_once(misdeed) {
        ground.run(begin);
        ground.bad.take_up(misdeed);
        while !ground.bad.is_connected() {
            ground.run(ground.world.now() + PERIOD);
        }
    }
    if misdeed == Misdeed::PowerOff {
        while !ground.bad.is_connected() {
            ground.run(ground.world.now() + MS);
        }
        ground.world.kill(HONEST);
        ground.without_power = true;
    }
    ground.run(begin.max(ground.world.now()));
    let before = ground.delivered();
    ground.run(ground.world.now() + duration);
    let delivered = ground.delivered().iter().zip(before).map(|(after, before)| after - before).collect();
    let done = (ground.bad.established, ground.bad.frames);
    if misdeed == Misdeed::Stall {
        ground.wait_for_deadlines();
    }
    let refused = ground.nodes[VICTIM].rds.counters().connect_refused;
    assert!(misdeed != Misdeed::Forge || refused > 100, "only {refused} requests were refused");
    assert!(misdeed != Misdeed::HangUp || done.0 < MOST_HANG_UPS, "{} connections", done.0);
    println!("{misdeed:?}: {delivered:?}, {} refused, {done:?} connections and frames", ground.refused);
    ground.end();
    (delivered, done.0, done.1)
}

/// Each pair of honest nodes keeps its messages.
fn is_fair(seed: u64, misdeed: Misdeed, least_connections: u64, least_frames: u64) {
    let duration = if shows_at_once(misdeed) { 1_000 * MS } else { DURATION };
    let (without, ..) = exchanged(seed, Misdeed::None, duration);
    let offered = (duration / PERIOD) as usize;
    assert!(without.iter().all(|delivered| *delivered > offered * 9 / 10), "{without:?} of {offered}");
    let (with, connections, frames) = exchanged(seed, misdeed, duration);
    assert!(
        connections >= least_connections && frames >= least_frames,
        "{connections}, {frames}: did it do anything?"
    );
    for ((pair, with), without) in pairs().zip(with).zip(without) {
        assert!(with * 100 >= without * 80, "{pair:?}: {with} instead of {without}");
    }
}

#[test]
fn a_peer_that_stalls_in_the_middle_of_a_message() {
    is_fair(1, Misdeed::Stall, 4, 60);
}

/// One fragment at a time, as slowly as it likes.
#[test]
fn a_peer_that_drips() {
    is_fair(6, Misdeed::Drip, 4, 60);
}

/// It is connected no more often than one that only asks, whoever asks.
#[test]
fn a_peer_that_hangs_up() {
    is_fair(7, Misdeed::HangUp, 4, 4);
}

#[test]
fn a_peer_that_never_acknowledges() {
    is_fair(2, Misdeed::Silence, 1, 0);
}

#[test]
fn a_peer_without_power() {
    is_fair(3, Misdeed::PowerOff, 1, 0);
}

#[test]
fn a_peer_that_forges_addresses() {
    is_fair(4, Misdeed::Forge, 0, 0);
}

#[test]
fn a_peer_that_floods() {
    is_fair(5, Misdeed::Flood, 4, 900);
}
