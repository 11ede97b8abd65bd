//! The same traffic as packets and without them: completions, memory, sequence numbers and counters are the same. Every run is a
//! function of a seed, which a failure prints.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI` | 50 seeds instead of 10 |
//! | `MLX5_TESTS_LONG=1` | 1000 seeds |
//! | `MLX5_TESTS_SEED=n` | this seed alone |

use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, FmCeSe, SendOpcode};
use mlx5_prm::value::QpState;

use super::bed::{Bed, Completion, Handle, Options, pattern};
use super::requests::Request;
use crate::object::table::Table;
use crate::port::FrameCounters;
use crate::transport::TransportCounters;
use crate::transport::state::QpProgress;
use rdma_fabric::counters::FabricCounters;
use rdma_fabric::ethernet::SwitchCounters;
use rdma_fabric::infiniband::PortCounters;
use rdma_fabric::medium::LinkLayer;
use rdma_fabric::random::Random;

const NODES: usize = 3;
/// Bytes of each node's buffer, of which each end has three parts.
const BUFFER: usize = 24 * PART;
/// Bytes of a part.
const PART: usize = 256 << 10;
const ROUNDS: u64 = 24;

/// One end of a connection.
struct End {
    handle: Handle,
    peer: usize,
    /// Offset of what it sends and the peer reads; of what it reads itself; of what the peer writes and sends.
    source: usize,
    sink: usize,
    target: usize,
    completions: Vec<Completion>,
    outstanding: u32,
}

/// All that a run leaves behind.
#[derive(Debug, PartialEq)]
struct Outcome {
    frames: Vec<Option<(FrameCounters, FrameCounters)>>,
    switch: (FabricCounters, SwitchCounters),
    completions: Vec<Vec<Completion>>,
    progress: Vec<(QpState, QpProgress)>,
    memory: Vec<Vec<u8>>,
    transport: Vec<TransportCounters>,
    ports: Vec<PortCounters>,
    q_counters: Vec<Vec<u8>>,
    fabric: FabricCounters,
}

struct Scene {
    bed: Bed,
    random: Random,
    ends: Vec<End>,
    buffers: Vec<(u64, u32)>,
}

impl Scene {
    fn new(seed: u64, packets_only: bool, layer: LinkLayer) -> Self {
        let mut random = Random::new(seed);
        let mut bed = match layer {
            LinkLayer::InfiniBand => Bed::without_latency(NODES as u16),
            LinkLayer::Ethernet => Bed::on_ethernet(NODES as u16, 0),
        };
        bed.world.set_packets_only(packets_only);
        if layer == LinkLayer::Ethernet {
            bed.announce();
        }
        let buffers: Vec<(u64, u32)> = (0..NODES).map(|node| bed.buffer(node, BUFFER)).collect();
        for (node, (at, _)) in buffers.iter().enumerate() {
            bed.guests[node].write(*at, &pattern(node as u32, seed as u32, BUFFER));
            assert_eq!(bed.hca(node).device.objects.q_counters.allocate(), Some(1));
        }
        let mut ends: Vec<End> = Vec::new();
        for (a, b) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
            let options = Options {
                mtu: 1 + random.below(5) as u8,
                psn: random.next_u64() as u32 & 0xff_ffff,
                min_rnr_nak: 1,
                address: random.below(4) as u8,
                ..Options::default()
            };
            let log_ack_req_freq = random.below(9) as u8;
            let pair = bed.pair_on(a, b, &options);
            for (handle, peer) in [(pair.0, ends.len() + 1), (pair.1, ends.len())] {
                bed.set(&handle, qpc::counter_set_id, 1);
                bed.set(&handle, qpc::log_ack_req_freq, log_ack_req_freq.into());
                bed.set(&handle, qpc::cs_res, u32::from(a == 2));
                let [source, sink, target] = [0, 1, 2].map(|part| (3 * ends.len() + part) * PART);
                ends.push(End {
                    handle,
                    peer,
                    source,
                    sink,
                    target,
                    completions: Vec::new(),
                    outstanding: 0,
                });
            }
        }
        Self { bed, random, ends, buffers }
    }

    fn settle(&mut self) {
        self.bed.run_for(2_000);
        let ends = &mut self.ends;
        self.bed.run_until("all is done", |bed| {
            for end in ends.iter_mut() {
                while let Some(completion) = bed.poll_cq(end.handle.node, end.handle.cqn) {
                    // Requests of both kinds are completed in order; receives are not counted.
                    end.outstanding -=
                        u32::from(matches!(completion.opcode, CqeOpcode::REQ | CqeOpcode::REQ_ERR));
                    end.completions.push(completion);
                }
            }
            ends.iter().all(|end| end.outstanding == 0)
        });
        self.bed.run_for(2_000);
    }

    /// Posts a request of any kind, with a receive for it where it takes one and `ready`.
    fn post(&mut self, at: usize, ready: bool) {
        let peer = self.ends[at].peer;
        let (node, far) = (self.ends[at].handle.node, self.ends[peer].handle.node);
        let opcode = [
            SendOpcode::RDMA_WRITE,
            SendOpcode::RDMA_WRITE,
            SendOpcode::RDMA_WRITE_IMM,
            SendOpcode::SEND,
            SendOpcode::SEND_IMM,
            SendOpcode::SEND_INVAL,
            SendOpcode::RDMA_READ,
            SendOpcode::RDMA_READ,
            SendOpcode::ATOMIC_FA,
            SendOpcode::NOP,
        ][self.random.below(10) as usize];
        let len = match self.random.below(5) {
            0 => self.random.below(40),
            1 => self.random.below(5000),
            2 => self.random.below(4) * 4096,
            _ => self.random.below(PART as u64 / 2),
        };
        let len = if opcode == SendOpcode::ATOMIC_FA { 8 } else { len as usize };
        // What is read is never written meanwhile: both orders of a READ and what follows it are right.
        let reads = opcode == SendOpcode::RDMA_READ;
        let answered = reads || opcode == SendOpcode::ATOMIC_FA;
        let own = if answered { self.ends[at].sink } else { self.ends[at].source };
        let other = if reads { self.ends[peer].source } else { self.ends[peer].target };
        let local = self.buffers[node].0 + own as u64 + self.random.below(PART as u64 / 4);
        let target = self.buffers[far].0 + other as u64 + self.random.below(0x2000) * 8;
        let lkey = self.buffers[node].1;
        let mut data = Vec::new();
        if len != 0 {
            let cut = self.random.below(len as u64) as u32;
            if cut != 0 && opcode != SendOpcode::ATOMIC_FA {
                data.push((local, cut, lkey));
            } else {
                data.push((local, len as u32, lkey));
            }
            if cut != 0 && opcode != SendOpcode::ATOMIC_FA {
                data.push((local + u64::from(cut), len as u32 - cut, lkey));
            }
        }
        let mut request = Request::new(opcode, &data).to(target, self.buffers[far].1);
        request.atomic = (3, 0);
        request.immediate = self.random.next_u64() as u32;
        let mut flags = FmCeSe::CQ_UPDATE;
        if self.random.below(3) == 0 {
            flags |= FmCeSe::SOLICITED;
        }
        request.flags = flags;
        if opcode == SendOpcode::NOP {
            request.data.clear();
        }
        if opcode == SendOpcode::SEND_INVAL {
            // A key for this alone.
            let key = self.bed.make_key(
                far,
                target & !0xfff,
                0x1000,
                target & !0xfff,
                mlx5_prm::value::AccessFlags::REMOTE_READ,
            );
            request.immediate = key;
        }
        if matches!(opcode, SendOpcode::SEND | SendOpcode::RDMA_WRITE)
            && len <= 32
            && self.random.below(2) == 0
        {
            request.data.clear();
            request.inline = Some(self.bed.guests[node].read(local, len));
        }
        let takes = matches!(
            opcode,
            SendOpcode::SEND | SendOpcode::SEND_IMM | SendOpcode::SEND_INVAL | SendOpcode::RDMA_WRITE_IMM
        );
        if takes && ready {
            self.receive(peer);
        }
        let end = &mut self.ends[at];
        self.bed.post(&mut end.handle, &request);
        end.outstanding += 1;
    }

    fn receive(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let (base, lkey) = self.buffers[end.handle.node];
        let place = base + end.target as u64;
        let half = (PART / 2) as u32;
        self.bed.receive(&mut end.handle, &[(place, 100, lkey), (place + 4096, half, lkey)]);
    }

    fn ring(&mut self) {
        for end in &self.ends {
            self.bed.ring(&end.handle);
        }
    }

    fn run(mut self) -> Outcome {
        for _ in 0..ROUNDS {
            for _ in 0..1 + self.random.below(8) {
                let at = self.random.below(self.ends.len() as u64) as usize;
                for _ in 0..1 + self.random.below(3) {
                    self.post(at, true);
                }
            }
            self.ring();
            self.settle();
        }
        // Receivers that are not ready at first. How many packets follow one that is refused is chance.
        self.late_receives(100);
        let mut outcome = self.outcome();
        self.late_receives(50_000);
        // Requests that fail.
        for at in (0..self.ends.len()).step_by(2) {
            let handle = &mut self.ends[at].handle;
            let (local, lkey) = self.buffers[handle.node];
            let wrong = self.random.below(3);
            let (lkey, rkey) = if wrong == 0 { (lkey ^ 1, 0) } else { (lkey, 0xdead_0000) };
            let opcode = if wrong == 2 { SendOpcode::RDMA_READ } else { SendOpcode::RDMA_WRITE };
            self.bed.post(handle, &Request::new(opcode, &[(local, 9_000, lkey)]).to(local, rkey));
            self.ends[at].outstanding += 1;
            self.ring();
            self.settle();
        }
        let end = self.outcome();
        outcome.memory = end.memory;
        outcome.progress = end.progress;
        outcome.completions = self.ends.into_iter().map(|end| end.completions).collect();
        outcome
    }

    fn late_receives(&mut self, len: u32) {
        for at in 0..self.ends.len() {
            let peer = self.ends[at].peer;
            let handle = &mut self.ends[at].handle;
            let (local, lkey) = self.buffers[handle.node];
            self.bed.post(handle, &Request::new(SendOpcode::SEND, &[(local, len, lkey)]));
            self.ends[at].outstanding += 1;
            self.ring();
            self.bed.run_for(3_000);
            self.receive(peer);
            self.settle();
        }
    }

    fn outcome(&mut self) -> Outcome {
        let (bed, ends) = (&mut self.bed, &self.ends);
        let states = |bed: &mut Bed, end: &End| {
            let qp = bed.qp(&end.handle);
            (qp.state(), qp.transport.progress())
        };
        let sets = |sets: &Table<Vec<u8>>| sets.get(1).cloned().unwrap_or_default();
        Outcome {
            progress: ends.iter().map(|end| states(bed, end)).collect(),
            memory: (0..NODES).map(|node| bed.guests[node].read(self.buffers[node].0, BUFFER)).collect(),
            transport: (0..NODES).map(|node| bed.counters(node)).collect(),
            ports: (0..NODES).map(|node| bed.hca(node).device.port.counters).collect(),
            q_counters: (0..NODES).map(|node| sets(&bed.hca(node).device.objects.q_counters.sets)).collect(),
            fabric: bed.world.medium.fabric().counters(),
            frames: (0..NODES)
                .map(|node| {
                    bed.hca(node).device.port.ethernet.as_ref().map(|port| (port.sent, port.received))
                })
                .collect(),
            switch: {
                let switch = bed.world.medium.switch();
                (switch.counters(), switch.switch_counters())
            },
            completions: Vec::new(),
        }
    }
}

fn compare(seed: u64, layer: LinkLayer) {
    let packets = Scene::new(seed, true, layer).run();
    let copies = Scene::new(seed, false, layer).run();
    for (end, (as_packets, copied)) in packets.completions.iter().zip(&copies.completions).enumerate() {
        // Receives and requests of one QP share a CQ, where their order among each other is chance.
        let of = |completions: &[Completion], requests: bool| -> Vec<Completion> {
            let is = |c: &&Completion| requests == matches!(c.opcode, CqeOpcode::REQ | CqeOpcode::REQ_ERR);
            completions.iter().filter(is).copied().collect()
        };
        for requests in [true, false] {
            assert_eq!(of(as_packets, requests), of(copied, requests), "seed {seed}, end {end}");
        }
    }
    for (node, (as_packets, copied)) in packets.memory.iter().zip(&copies.memory).enumerate() {
        assert!(as_packets == copied, "seed {seed}: the memory of node {node}");
    }
    assert_eq!(packets.progress, copies.progress, "seed {seed}");
    assert_eq!(packets.transport, copies.transport, "seed {seed}");
    assert_eq!(packets.ports, copies.ports, "seed {seed}");
    assert_eq!(packets.q_counters, copies.q_counters, "seed {seed}");
    assert_eq!(packets.fabric, copies.fabric, "seed {seed}");
    assert_eq!(packets.frames, copies.frames, "seed {seed}");
    assert_eq!(packets.switch, copies.switch, "seed {seed}");
}

#[test]
fn copies_are_as_packets() {
    compare_seeds(LinkLayer::InfiniBand);
}

#[test]
fn copies_on_ethernet_are_as_frames() {
    compare_seeds(LinkLayer::Ethernet);
}

fn compare_seeds(layer: LinkLayer) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| value != "0");
    let only = std::env::var("MLX5_TESTS_SEED").ok().map(|text| text.parse().expect("a number"));
    let seeds = match (is_set("MLX5_TESTS_LONG"), std::env::var_os("CI").is_some()) {
        (true, _) => 1000,
        (false, true) => 50,
        (false, false) => 10,
    };
    only.map_or(0..seeds, |seed| seed..seed + 1).for_each(|seed| compare(seed, layer));
}

impl Scene {
    /// Sends one RDMA WRITE from the first end. Returns the packets that were never made.
    fn write(mut self) -> u64 {
        let handle = &mut self.ends[0].handle;
        let request =
            Request::new(SendOpcode::RDMA_WRITE, &[(self.buffers[0].0, 100_000, self.buffers[0].1)])
                .to(self.buffers[1].0, self.buffers[1].1);
        self.bed.post(handle, &request);
        self.ends[0].outstanding += 1;
        self.ring();
        self.settle();
        let medium = &self.bed.world.medium;
        medium.fabric().copied() + medium.switch().copied()
    }
}

/// What the comparison would be worth nothing without: one of the two does go without packets.
#[test]
fn no_packet_goes_where_nobody_watches() {
    for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        for (packets_only, private) in [(false, false), (true, false), (false, true)] {
            let mut scene = Scene::new(1, packets_only, layer);
            scene.bed.guests[1].private = private;
            let copied = scene.write();
            assert_eq!(copied == 0, packets_only || private, "{layer:?}: {copied} packets were never made");
        }
    }
}

/// The packets of a requester with a longer path MTU than its responder's are refused.
#[test]
fn path_mtus_that_differ_fail_with_copies_as_with_packets() {
    for opcode in [SendOpcode::SEND, SendOpcode::RDMA_WRITE, SendOpcode::RDMA_READ] {
        let [packets, copies] = [true, false].map(|packets_only| {
            let mut bed = Bed::without_latency(2);
            bed.world.set_packets_only(packets_only);
            let (mut sender, mut receiver) = bed.pair(&Options { mtu: 4, ..Options::default() });
            bed.set(&receiver, qpc::mtu, 3);
            let (from, lkey) = bed.buffer(sender.node, 0x4000);
            let (to, rkey) = bed.buffer(receiver.node, 0x4000);
            bed.receive(&mut receiver, &[(to, 0x4000, rkey)]);
            bed.post(&mut sender, &Request::new(opcode, &[(from, 0x2800, lkey)]).to(to, rkey));
            bed.ring(&sender);
            let completion = bed.wait(&sender);
            (completion.opcode, completion.syndrome, bed.qp(&receiver).state())
        });
        assert_eq!(packets, copies, "{opcode:?}");
        assert_eq!(packets.0, CqeOpcode::REQ_ERR, "{opcode:?}");
    }
}

#[test]
fn a_queue_that_fails_at_the_neighbour_is_seen_to_at_once() {
    let mut bed = Bed::without_latency(2);
    // The neighbour has its turn before the sender: what the sender does to it is for a turn that nobody asked for.
    let (mut sender, mut receiver) = bed.pair_on(1, 0, &Options::default());
    let cqn = bed.make_cq(0, 1);
    bed.set(&receiver, qpc::cqn_rcv, cqn);
    let (from, lkey) = bed.buffer(1, 0x1000);
    let (to, key) = bed.buffer(0, 0x1000);
    for _ in 0..4 {
        bed.receive(&mut receiver, &[(to, 64, key)]);
        bed.post(&mut sender, &Request::new(SendOpcode::SEND, &[(from, 64, lkey)]));
    }
    bed.ring(&sender);
    let began = bed.now;
    bed.run_until("the receiver's CQ failed", |bed| bed.qp(&receiver).state() == QpState::ERR);
    assert!(bed.now - began < 10_000, "after {} ns", bed.now - began);
}

#[test]
fn panic_at_the_neighbour_leaves_the_requester_intact() {
    let mut scene = Scene::new(1, false, LinkLayer::InfiniBand);
    scene.bed.guests[1].panics = true;
    let handle = &mut scene.ends[0].handle;
    let request = Request::new(SendOpcode::RDMA_WRITE, &[(scene.buffers[0].0, 1_000, scene.buffers[0].1)])
        .to(scene.buffers[1].0, scene.buffers[1].1);
    scene.bed.post(handle, &request);
    scene.ends[0].outstanding += 1;
    scene.ring();
    scene.settle();
    assert_eq!(scene.bed.world.medium.fabric().copied(), 0, "the request went as packets");
}
