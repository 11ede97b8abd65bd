//! The connection machine: a node with a hostile peer and honest ones. Whatever the hostile one does, the others lose nothing, and
//! nothing stays behind.

use crate::rds::fuzz::honest::{Honest, OTHER_PORT, PORT};
use crate::rds::fuzz::hostile::Hostile;
use dat_nostd::CloseFlags;
use harness::dat;
use harness::dat::due;
use harness::rds::at;
use harness::seeds::{Random, in_processes, long, only_seed, with_seed};
use harness::{World, WorldConfig};
use rds_nostd::wire::fragments;
use rds_nostd::{Arrival, DownReason, Msg, MsgFlags, RdmaFlags, RdsError, SocketHandle};
use std::rc::Rc;
use std::time::Instant;

const MS: u64 = 1_000_000;
/// Acts of the hostile node in one seed.
const ACTS: u64 = 1500;
/// Honest nodes; the first is the victim. The hostile one comes after them.
const HONEST: usize = 3;
const VICTIM: usize = 0;
/// Virtual time in which things must settle, nanoseconds.
const LIMIT: u64 = 120_000 * MS;

struct Ground {
    world: Rc<World>,
    nodes: Vec<Honest>,
    hostile: Hostile,
    /// The victim's socket for the hostile node.
    other: SocketHandle,
}

/// What happened, in all.
#[derive(Debug, Default)]
struct Tally {
    frames: u64,
    established: u64,
    refused: u64,
    violations: u64,
    honest: usize,
}

impl Ground {
    fn new(seed: u64) -> Self {
        let world = World::new(&WorldConfig::new(seed));
        let mut adapters = dat::open(&world, seed, HONEST + 1, 8 << 20).expect("opens");
        let hostile = Hostile::new(HONEST, adapters.pop().expect("the last one"));
        let nodes = adapters.into_iter().enumerate();
        let mut nodes: Vec<Honest> =
            nodes.map(|(index, adapter)| Honest::new(seed, index, adapter, HONEST)).collect();
        let other = nodes[VICTIM].rds.bind(at(VICTIM, OTHER_PORT)).expect("binds");
        Self { world, nodes, hostile, other }
    }

    /// Everybody once, or time.
    fn step(&mut self) {
        let now = self.world.now();
        let mut next =
            due(self.hostile.raw.adapter.poll(driver_mlx::Instant::from_nanos(now))).unwrap_or(u64::MAX);
        self.hostile.drain();
        for node in &mut self.nodes {
            let deadlines = [
                due(node.adapter.poll(driver_mlx::Instant::from_nanos(now))),
                due(node.rds.poll(&mut node.adapter, driver_mlx::Instant::from_nanos(now))),
            ];
            next = deadlines.into_iter().flatten().fold(next, u64::min);
            node.read(at(HONEST, PORT));
        }
        let victim = &mut self.nodes[VICTIM];
        let mut buffer = [0; 64];
        while let Ok(Arrival::Message(received)) =
            victim.rds.recvmsg(&mut victim.adapter, self.other, &mut buffer, MsgFlags::empty())
        {
            assert_eq!(received.from.ip(), at(HONEST, 0).ip(), "nobody else sends there");
        }
        self.world.idle(next.max(now + 1).min(now + 10 * MS));
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.world.now() + LIMIT;
        while !done(self) {
            if self.world.now() >= end {
                self.nodes.iter().for_each(Honest::describe);
                panic!("in vain: {what}");
            }
            self.step();
        }
    }

    /// All that the honest nodes sent each other has arrived.
    fn settled(&mut self) -> bool {
        let nodes = &mut self.nodes;
        let pairs = || (0..HONEST).flat_map(|from| (0..HONEST).map(move |to| (from, to)));
        pairs().all(|(from, to)| nodes[from].sent[to] == nodes[to].received[from])
    }
}

fn run(seed: u64) -> Tally {
    let mut random = Random::new(seed);
    let mut ground = Ground::new(seed);
    // Memory that the victim offers, for the hostile node to reach for; what is in it must stay.
    let victim = &mut ground.nodes[VICTIM];
    let memory = victim.adapter.dma_alloc(4096, 4096).expect("memory");
    memory.fill(0, 4096, 0xa5).expect("inside");
    let mut keys = Vec::new();
    for part in 0..4 {
        let flags = if part % 2 == 0 { RdmaFlags::USE_ONCE } else { RdmaFlags::empty() };
        let region = memory.slice(part * 1024, 1000).expect("inside");
        let (rds, adapter, to) = (&mut victim.rds, &mut victim.adapter, at(HONEST, PORT));
        let flags = flags | RdmaFlags::PEER_READS;
        let cookie = rds.get_mr_for_dest(adapter, victim.socket, to, region, flags).expect("room");
        keys.push(cookie.rkey());
    }
    for _ in 0..ACTS {
        for _ in 0..random.below(6) {
            ground.step();
        }
        if random.one_in(50) {
            let end = ground.world.now() + random.below(30 * MS);
            while ground.world.now() < end {
                ground.step();
            }
        }
        let from = random.below(HONEST as u64) as usize;
        let to = (from + 1 + random.below(HONEST as u64 - 1) as usize) % HONEST;
        ground.nodes[from].send(to);
        if random.one_in(10) {
            let Ground { nodes, other, .. } = &mut ground;
            let Honest { adapter, rds, .. } = &mut nodes[VICTIM];
            let payload = vec![7; random.below(9000) as usize];
            match rds.sendmsg(adapter, *other, Msg::to(&at(HONEST, random.pick(&[0, 5000])), &payload)) {
                Ok(_) | Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
                Err(error) => panic!("{error}"),
            }
        }
        ground.hostile.act(VICTIM, &mut random, &keys);
    }
    finish(ground, memory)
}

/// The hostile node goes; the honest ones come to rest, and nothing is missing.
fn finish(mut ground: Ground, memory: driver_mlx::DmaBuffer) -> Tally {
    ground.hostile.leave();
    let Ground { nodes, other, .. } = &mut ground;
    let Honest { adapter, rds, .. } = &mut nodes[VICTIM];
    rds.close(adapter, *other).expect("open");
    *other = rds.bind(at(VICTIM, OTHER_PORT)).expect("free");
    ground.until("honest messages arrive", Ground::settled);
    let end = ground.world.now() + 2_000 * MS;
    while ground.world.now() < end {
        ground.hostile.leave();
        ground.step();
    }
    let mut found = [0; 4096];
    memory.read(0, &mut found).expect("inside");
    assert!(found.iter().all(|byte| *byte == 0xa5), "nobody had a key that allows this");
    for node in &ground.nodes {
        for connection in node.rds.connections_info().filter(|c| c.foreign != at(HONEST, 0).ip()) {
            let raced = connection.last_down.is_none_or(|reason| reason == DownReason::Raced);
            assert!(raced && connection.downs <= 1, "an honest connection broke: {connection:?}");
        }
        // Beside receives, frames are in messages that wait.
        let posted: usize = node
            .rds
            .ib_connections_info(&node.adapter)
            .map(|connection| connection.cache_allocs as usize)
            .sum();
        let waiting = node.rds.send_queue_info().chain(node.rds.retransmit_queue_info());
        let kept: usize = waiting.map(|message| fragments(message.len as usize)).sum();
        assert_eq!(node.rds.free_frames() + posted + kept, node.free_frames, "node {}", node.index);
    }
    let counters = *ground.nodes[VICTIM].rds.counters();
    let tally = Tally {
        frames: ground.hostile.frames,
        established: ground.hostile.established,
        refused: ground.hostile.refused,
        violations: counters.recv_protocol_errors,
        honest: ground.nodes.iter().flat_map(|node| &node.received).sum(),
    };
    for node in ground.nodes {
        let Honest { index, mut adapter, mut rds, .. } = node;
        assert_eq!(
            (index, rds.counters().recv_protocol_errors),
            (index, if index == VICTIM { counters.recv_protocol_errors } else { 0 })
        );
        rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
        adapter.close().expect("closes");
        let census = ground.world.census(index);
        assert_eq!(census.total(), 0, "node {index} left behind: {census}");
    }
    tally
}

#[test]
fn a_hostile_peer_harms_nobody_else() {
    const NAME: &str = concat!(module_path!(), "::a_hostile_peer_harms_nobody_else");
    if let Some(seed) = only_seed() {
        println!("seed {seed}: {:?}", with_seed(NAME, seed, || run(seed)));
        return;
    }
    let end = Instant::now() + super::duration();
    let (mut seed, mut all) = (1, Tally::default());
    while Instant::now() < end {
        if long() {
            in_processes(NAME, seed..seed + 1);
        } else {
            let tally = with_seed(NAME, seed, || run(seed));
            all.frames += tally.frames;
            all.established += tally.established;
            all.refused += tally.refused;
            all.violations += tally.violations;
            all.honest += tally.honest;
        }
        seed += 1;
    }
    println!("{} seeds: {all:?}", seed - 1);
    let much = all.frames > 500 && all.established > 20 && all.refused > 20 && all.violations > 10;
    assert!(long() || much && all.honest > 500, "{all:?}");
}
