//! RC under seeded loss, duplication, reordering, corruption and delay: every byte arrives once and in order.

use std::collections::VecDeque;

use mlx5_prm::datapath::{CqeOpcode, SendOpcode};

use super::bed::{Bed, Options, pattern};
use super::requests::Request;
use rdma_fabric::random::Random;

const FAULTS: &str = "loss=1%,dup=1%,reorder=1%";

/// Sends, writes, reads and atomics mixed, both ways at once. Answers with what the two devices and the fabric counted.
fn mixed(seed: u64, faults: &str, messages: u32) -> (u64, u64, u64, u64) {
    let mut bed = Bed::new(2);
    let options = Options { mtu: 3, ack_timeout: 8, log_sra_max: 3, log_rra_max: 3, ..Options::default() };
    let (a, b) = bed.pair(&options);
    let mut qps = [a, b];
    bed.faults(faults, seed);
    let mut random = Random::new(seed);
    const SLOT: usize = 0x4000;
    const SLOTS: usize = 16;
    // Per node: a source, a sink for reads, a target for remote writes, receive buffers, a counter.
    let regions: Vec<Vec<(u64, u32)>> =
        (0..2).map(|node| (0..5).map(|_| bed.buffer(node, SLOT * SLOTS)).collect()).collect();
    for (node, regions) in regions.iter().enumerate() {
        bed.guests[node].write(regions[2].0, &pattern(node as u32 + 20, 0, SLOT * SLOTS));
    }
    #[derive(Debug)]
    enum Sent {
        Send,
        Write(usize, u32, usize),
        Read(usize, usize, usize),
        Add(u64),
    }
    let mut sent: [VecDeque<(u16, Sent)>; 2] = Default::default();
    let mut expected: [VecDeque<(u32, usize)>; 2] = Default::default();
    let mut posted = [0u32; 2];
    let mut added = [0u64; 2];
    let mut done = [0u32; 2];
    let mut receives: [VecDeque<usize>; 2] = Default::default();
    for node in 0..2 {
        for slot in 0..SLOTS {
            let (at, key) = regions[node][3];
            bed.receive(&mut qps[node], &[(at + (slot * SLOT) as u64, SLOT as u32, key)]);
            receives[node].push_back(slot);
        }
    }
    let limit = bed.now + 600_000_000_000;
    while done != [messages; 2] || !expected.iter().all(VecDeque::is_empty) {
        assert!(bed.now < limit, "seed {seed}: {done:?} of {messages} done");
        for node in 0..2 {
            let peer = 1 - node;
            while posted[node] < messages && sent[node].len() < 8 {
                let n = posted[node];
                let slot = n as usize % 8;
                let offset = (slot * SLOT) as u64;
                let len = match random.below(4) {
                    0 => random.below(8) as usize,
                    1 => 1023 + random.below(3) as usize,
                    _ => random.below(SLOT as u64 + 1) as usize,
                };
                let (source, lkey) = (regions[node][0].0 + offset, regions[node][0].1);
                let data = pattern(node as u32, n, len);
                let segments = |at| if len == 0 { vec![] } else { vec![(at, len as u32, lkey)] };
                let (request, what) = match random.below(4) {
                    0 => {
                        bed.guests[node].write(source, &data);
                        expected[peer].push_back((n, len));
                        (Request::new(SendOpcode::SEND, &segments(source)), Sent::Send)
                    }
                    1 => {
                        bed.guests[node].write(source, &data);
                        // The upper half of the peer's target is written, the lower half read.
                        let at = regions[peer][2].0 + ((slot + 8) * SLOT) as u64;
                        let request = Request::new(SendOpcode::RDMA_WRITE, &segments(source));
                        (request.to(at, regions[peer][2].1), Sent::Write(slot + 8, n, len))
                    }
                    2 => {
                        let (sink, key) = regions[node][1];
                        let segments = if len == 0 { vec![] } else { vec![(sink + offset, len as u32, key)] };
                        let from = random.below(8 * SLOT as u64 - len as u64 + 1) as usize;
                        let request = Request::new(SendOpcode::RDMA_READ, &segments);
                        let at = regions[peer][2].0 + from as u64;
                        (request.to(at, regions[peer][2].1), Sent::Read(slot, from, len))
                    }
                    _ => {
                        let (sink, key) = regions[node][1];
                        let mut request = Request::new(SendOpcode::ATOMIC_FA, &[(sink + offset, 8, key)]);
                        request.atomic = (u64::from(n) + 1, 0);
                        let before = added[node];
                        added[node] += u64::from(n) + 1;
                        (request.to(regions[peer][4].0, regions[peer][4].1), Sent::Add(before))
                    }
                };
                let index = bed.send(&mut qps[node], &request);
                sent[node].push_back((index, what));
                posted[node] += 1;
            }
        }
        bed.step();
        for node in 0..2 {
            let peer = 1 - node;
            while let Some(completion) = bed.poll_cq(node, qps[node].cqn) {
                assert_eq!(completion.syndrome, 0, "seed {seed}: {completion:?}");
                if completion.opcode == CqeOpcode::REQ {
                    let (index, what) = sent[node].pop_front().unwrap();
                    assert_eq!(completion.counter, index, "seed {seed}: completions in order");
                    done[node] += 1;
                    match what {
                        Sent::Send => {}
                        Sent::Write(slot, n, len) => {
                            let at = regions[peer][2].0 + (slot * SLOT) as u64;
                            let data = bed.guests[peer].read(at, len);
                            assert!(data == pattern(node as u32, n, len), "seed {seed}: write {n} of {len}");
                        }
                        Sent::Read(slot, from, len) => {
                            let data = bed.guests[node].read(regions[node][1].0 + (slot * SLOT) as u64, len);
                            let all = pattern(peer as u32 + 20, 0, SLOT * SLOTS);
                            assert!(data == all[from..from + len], "seed {seed}: read at {from} of {len}");
                        }
                        Sent::Add(before) => {
                            let slot = (done[node] - 1) as usize % 8;
                            let data = bed.guests[node].read(regions[node][1].0 + (slot * SLOT) as u64, 8);
                            assert_eq!(data, before.to_be_bytes(), "seed {seed}: added once each");
                        }
                    }
                } else {
                    let (n, len) = expected[node].pop_front().expect("a message nobody sent");
                    assert_eq!(completion.bytes as usize, len, "seed {seed}: send {n}");
                    let slot = receives[node].pop_front().unwrap();
                    let (at, key) = regions[node][3];
                    let at = at + (slot * SLOT) as u64;
                    let data = bed.guests[node].read(at, len);
                    assert!(data == pattern(peer as u32, n, len), "seed {seed}: send {n} of {len}");
                    bed.receive(&mut qps[node], &[(at, SLOT as u32, key)]);
                    receives[node].push_back(slot);
                }
            }
        }
    }
    for node in 0..2 {
        let data = bed.guests[1 - node].read(regions[1 - node][4].0, 8);
        assert_eq!(data, added[node].to_be_bytes(), "seed {seed}: the sum");
    }
    let fabric = bed.world.medium.fabric().counters();
    let retransmitted = bed.counters(0).retransmitted + bed.counters(1).retransmitted;
    (fabric.dropped, fabric.duplicated, fabric.reordered, retransmitted)
}

#[test]
fn everything_mixed_under_loss_duplication_and_reordering() {
    for seed in 1..=6 {
        let (dropped, duplicated, reordered, retransmitted) = mixed(seed, FAULTS, 600);
        assert!(dropped > 0 && duplicated > 0 && reordered > 0 && retransmitted > 0);
    }
}

#[test]
fn corruption_and_delay() {
    for seed in 1..=2 {
        mixed(seed, "loss=0.5%,corrupt=1%,delay=1us..40us", 400);
    }
}

#[test]
fn a_bad_link_is_slow_but_right() {
    mixed(9, "loss=10%,dup=10%,reorder=10%", 150);
}

#[test]
fn without_faults_nothing_is_repeated() {
    let (.., retransmitted) = mixed(3, "", 400);
    assert_eq!(retransmitted, 0);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    assert_eq!(mixed(4, FAULTS, 200), mixed(4, FAULTS, 200));
}

#[test]
fn a_long_write_and_read_on_a_lossy_link() {
    let mut bed = Bed::with_ram(2, 20 << 20);
    let (mut a, _) = bed.pair(&Options { ack_timeout: 8, ..Options::default() });
    let len = 8 << 20;
    let (local, lkey) = bed.buffer(0, len);
    let (remote, rkey) = bed.buffer(1, len);
    bed.faults("loss=2%,dup=1%,reorder=1%", 77);
    let data = pattern(30, 1, len);
    bed.guests[0].write(local, &data);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(local, len as u32, lkey)]).to(remote, rkey));
    assert_eq!(bed.wait(&a).syndrome, 0);
    assert!(bed.guests[1].read(remote, len) == data);
    bed.guests[0].write(local, &vec![0; len]);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_READ, &[(local, len as u32, lkey)]).to(remote, rkey));
    assert_eq!(bed.wait(&a).bytes as usize, len);
    assert!(bed.guests[0].read(local, len) == data);
}
