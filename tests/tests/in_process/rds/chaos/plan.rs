//! What a seed makes of a run: who sends what to whom and when, and what breaks when.

use crate::rds::chaos::ledger::Kind;
use harness::rds::at;
use harness::seeds::Random;
use std::collections::VecDeque;
use std::net::SocketAddr;

const MS: u64 = 1_000_000;
/// The first port of every node's sockets.
pub const FIRST_PORT: u16 = 4000;
/// A port that nobody is bound to.
pub const NOBODYS_PORT: u16 = 9;

/// A message to send. Times are nanoseconds from the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub at: u64,
    pub to: SocketAddr,
    pub len: usize,
}

/// Memory to offer to a peer.
#[derive(Clone, Copy, Debug)]
pub struct RdmaJob {
    pub at: u64,
    pub to: usize,
    /// Where in a page it begins, and its bytes.
    pub offset: usize,
    pub len: usize,
    pub kind: Kind,
    /// Registered by the message that offers it.
    pub map: bool,
    /// Freed before the peer can use it.
    pub withheld: bool,
}

/// A node's end, and its next boot.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub at: u64,
    /// Everything is freed and closed; otherwise the HCA is reset from under a driver that knows nothing of it.
    pub orderly: bool,
    /// The link stays up: nobody hears of it.
    pub silent: bool,
    pub boot_at: u64,
}

/// What a program does to one of its sockets.
#[derive(Clone, Copy, Debug)]
pub struct Whim {
    pub at: u64,
    pub socket: usize,
    /// It is closed, and another is bound in its place; otherwise what was sent to one destination is cancelled.
    pub closes: bool,
}

/// What happens to the fabric.
#[derive(Clone, Debug)]
pub enum Break {
    Faults(String),
    Cable { node: usize, plugged: bool },
}

/// What the sockets of one port send.
#[derive(Clone, Debug)]
pub struct Sender {
    pub jobs: VecDeque<Job>,
    /// All go to one destination, so that the bytes outstanding are known.
    pub pinned: bool,
}

/// Settings of all nodes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub frames: usize,
    pub receive_depth: u16,
    pub retry_count: u8,
    pub send_buffer: usize,
    pub receive_buffer: usize,
    /// Types of service: sockets have one after the other, and so there are so many connections between two nodes.
    pub services: usize,
}

#[derive(Debug)]
pub struct NodePlan {
    pub senders: Vec<Sender>,
    pub rdma: VecDeque<RdmaJob>,
    pub deaths: VecDeque<Death>,
    pub whims: VecDeque<Whim>,
    /// Times in which nothing is read.
    pub pauses: Vec<(u64, u64)>,
    /// Times in which it does nothing at all.
    pub stalls: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub struct Plan {
    pub settings: Settings,
    pub nodes: Vec<NodePlan>,
    pub breaks: VecDeque<(u64, Break)>,
}

/// Returns whether a node's port is Ethernet. A third of the seeds has one medium, a third the other,
/// a third both.
pub fn is_ethernet(seed: u64, count: usize, node: usize) -> bool {
    match seed % 3 {
        1 => true,
        // A node needs a peer.
        2 if count >= 4 => !node.is_multiple_of(2),
        _ => false,
    }
}

/// Returns the nodes that `node` reaches: those on its medium.
pub fn peers(seed: u64, count: usize, node: usize) -> impl Iterator<Item = usize> {
    let medium = move |node| is_ethernet(seed, count, node);
    (0..count).filter(move |&other| other != node && medium(other) == medium(node))
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = 3 + random.below(6) as usize;
        let span = random.pick(&[30 * MS, 300 * MS, 3000 * MS]);
        let settings = Settings {
            frames: random.pick(&[128, 256, 512]),
            receive_depth: random.pick(&[4, 8, 32]),
            retry_count: random.pick(&[0, 1, 7]),
            send_buffer: random.pick(&[8 << 10, 32 << 10, 106_496]),
            receive_buffer: random.pick(&[4 << 10, 32 << 10, 106_496]),
            services: if seed.is_multiple_of(3) { 2 } else { 1 },
        };
        let sockets = 1 + random.below(3) as usize;
        let mortal = 1 + random.below(count as u64);
        let reached = |node| peers(seed, count, node).collect::<Vec<_>>();
        let nodes = (0..count)
            .map(|node| NodePlan {
                senders: (0..sockets)
                    .map(|_| sender(&mut random, &settings, (&reached(node), sockets), span))
                    .collect(),
                rdma: rdma(&mut random, &reached(node), span),
                deaths: if (node as u64) < mortal {
                    deaths(&mut random, !seed.is_multiple_of(4), span)
                } else {
                    VecDeque::new()
                },
                whims: whims(&mut Random::new(seed << 8 | node as u64), sockets, span),
                stalls: stalls(&mut Random::new(seed << 8 | 0x80 | node as u64), span),
                pauses: (0..random.below(3))
                    .map(|_| {
                        let from = random.below(span);
                        (from, from + random.below(span / 2))
                    })
                    .collect(),
            })
            .collect();
        Self { settings, nodes, breaks: breaks(&mut random, count, span) }
    }
}

fn sender(
    random: &mut Random,
    settings: &Settings,
    (peers, sockets): (&[usize], usize),
    span: u64,
) -> Sender {
    let other = |random: &mut Random| {
        let other = random.pick(peers);
        at(other, FIRST_PORT + random.below(sockets as u64) as u16)
    };
    let pinned = random.one_in(3).then(|| other(random));
    let mut times: Vec<u64> = (0..20 + random.below(100)).map(|_| random.below(span)).collect();
    // Bursts fill buffers.
    let burst = random.below(span);
    times.extend((0..random.below(60)).map(|_| burst));
    times.sort_unstable();
    let job = |at| {
        let mut to = pinned.unwrap_or_else(|| other(random));
        let mut len = len(random).min(settings.send_buffer);
        if pinned.is_none() {
            match random.below(40) {
                0 => (to, len) = (SocketAddr::new(to.ip(), 0), 0),
                1 => to.set_port(NOBODYS_PORT),
                _ => {}
            }
        }
        Job { at, to, len }
    };
    Sender { jobs: times.into_iter().map(job).collect(), pinned: pinned.is_some() }
}

fn rdma(random: &mut Random, peers: &[usize], span: u64) -> VecDeque<RdmaJob> {
    let mut times: Vec<u64> = (0..random.below(24)).map(|_| random.below(span)).collect();
    times.sort_unstable();
    let job = |at| {
        let to = random.pick(peers);
        RdmaJob {
            at,
            to,
            offset: random.below(400) as usize * 8,
            len: 1 + random.below(4900) as usize,
            kind: random.pick(&[Kind::Read, Kind::Write, Kind::Add]),
            map: random.one_in(2),
            withheld: random.one_in(25),
        }
    };
    times.into_iter().map(job).collect()
}

/// Mostly a few fragments, now and then many.
fn len(random: &mut Random) -> usize {
    match random.below(100) {
        0..10 => 0,
        10..40 => random.below(200) as usize,
        40..55 => random.pick(&[4095, 4096, 4097, 8191, 8192, 8193]),
        55..98 => random.below(13_000) as usize,
        _ => 30_000 + random.below(70_000) as usize,
    }
}

/// Rarely, and then for longer than packets are sent again.
fn stalls(random: &mut Random, span: u64) -> Vec<(u64, u64)> {
    let stall = |random: &mut Random| {
        let from = random.below(span);
        (from, from + random.pick(&[1, 30, 800, 4000]) * MS)
    };
    (0..random.below(3) / 2).map(|_| stall(random)).collect()
}

fn deaths(random: &mut Random, heard_of: bool, span: u64) -> VecDeque<Death> {
    let mut deaths = VecDeque::new();
    let mut from = random.below(span);
    for _ in 0..random.below(3) {
        let down = random.pick(&[0, 1, 20, 700, 5000]) * MS;
        let silent = !heard_of && down.is_multiple_of(2 * MS);
        deaths.push_back(Death { at: from, orderly: random.one_in(3), silent, boot_at: from + down });
        from += down + 1 + random.below(span);
    }
    deaths
}

fn whims(random: &mut Random, sockets: usize, span: u64) -> VecDeque<Whim> {
    let mut times: Vec<u64> = (0..random.below(5)).map(|_| random.below(span)).collect();
    times.sort_unstable();
    let socket = |random: &mut Random| random.below(sockets as u64) as usize;
    times.into_iter().map(|at| Whim { at, socket: socket(random), closes: random.one_in(2) }).collect()
}

fn breaks(random: &mut Random, count: usize, span: u64) -> VecDeque<(u64, Break)> {
    let mut all = Vec::new();
    let mut last = span;
    let kinds = [
        "none",
        "loss=0.2%,dup=1%,reorder=0.2%",
        "loss=2%",
        "dup=5%,reorder=5%",
        "delay=1us..40us,reorder=1%",
        "loss=5%,dup=2%,reorder=2%,delay=1us..10us",
        "loss=0.5%,corrupt=0.5%",
    ];
    all.push((0, Break::Faults(random.pick(&kinds).to_owned())));
    for _ in 0..random.below(4) {
        all.push((random.below(span), Break::Faults(random.pick(&kinds).to_owned())));
    }
    for _ in 0..random.below(4) {
        let node = random.below(count as u64) as usize;
        let from = random.below(span);
        let to = from + random.pick(&[1, 30, 400, 3000]) * MS + random.below(MS);
        last = last.max(to);
        all.push((from, Break::Cable { node, plugged: false }));
        all.push((to, Break::Cable { node, plugged: true }));
    }
    // Then there is peace, though not everywhere perfection.
    all.push((last, Break::Faults(random.pick(&["none", "loss=0.1%,dup=1%,reorder=1%"]).to_owned())));
    all.sort_by_key(|(at, _)| *at);
    all.into()
}
