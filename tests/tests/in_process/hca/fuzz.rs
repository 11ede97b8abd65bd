//! A guest that knows its device and wishes it ill, beside two that move data: whatever it does, no call of its device takes more
//! than its steps and one bounded operation, the device holds no more than its budget, and the others' data arrives in bounded time.
//! Every run is a function of a seed, which a failure prints.
//!
//! | variable | meaning |
//! |---|---|
//! | `CI` | 20 seconds instead of 5 |
//! | `MLX5_TESTS_LONG=1` | 10 minutes |
//! | `MLX5_TESTS_SEED=n` | this seed alone |

use super::guest::{Guest, MEMORY, RawQp, input};
use driver_mlx::{Completion, Config, SendFlags, SendOp};
use harness::seeds::{Random, ci, in_process, long, only_seed, with_seed};
use harness::verbs::{Endpoint, Options, connect};
use harness::{Node, World, WorldConfig};
use hca_model::Profile;
use mlx5_prm::datapath::{SendOpcode, wqe_ctrl_seg, wqe_data_seg, wqe_raddr_seg};
use mlx5_prm::opcode::{COMMANDS, Opcode};
use mlx5_prm::{Field, Kind};
use rdma_fabric::work::STEPS_PER_CALL;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Steps of one operation beyond its call's: a list of 65,536 entries that is checked, replaced and counted.
const MOST_AT_ONCE: u64 = 1 << 19;
/// Bytes that the hostile device may hold.
const BUDGET: u64 = 24 << 20;
/// Acts of the hostile guest in one seed.
const ACTS: usize = 400;
/// Bytes of a message of the others.
const MESSAGE: usize = 4096;
/// Turns of all devices until eight such messages have arrived, however the hostile one is busy.
const MOST_TURNS: u64 = 4_000;

fn duration() -> Duration {
    Duration::from_secs(match (long(), ci()) {
        (true, _) => 600,
        (false, true) => 10,
        (false, false) => 5,
    })
}

/// What happened, in all.
#[derive(Debug, Default)]
struct Tally {
    commands: u64,
    made: u64,
    no_resources: u64,
    posted: u64,
    restarts: u64,
    most_steps: u64,
    most_bytes: u64,
}

struct Hostile {
    guest: Guest,
    random: Random,
    keys: Vec<u32>,
    qps: Vec<RawQp>,
    cqs: Vec<u32>,
    tally: Tally,
}

impl Hostile {
    fn new(world: &Rc<World>, seed: u64) -> Self {
        let mut profile = Profile::node(2);
        profile.memory = BUDGET;
        if seed.is_multiple_of(2) {
            profile.strictness = hca_model::profile::Strictness::Lenient;
        }
        let guest = Guest::up(world, 2, profile);
        Self {
            guest,
            random: Random::new(seed),
            keys: Vec::new(),
            qps: Vec::new(),
            cqs: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn restart(&mut self) {
        self.guest.restart();
        self.keys.clear();
        self.qps.clear();
        self.cqs.clear();
        self.tally.restarts += 1;
    }

    /// A key that exists, or hardly.
    fn key(&mut self) -> u32 {
        match self.random.below(8) {
            0 => self.guest.key,
            1 => self.random.next() as u32,
            _ if self.keys.is_empty() => self.guest.key,
            _ => self.random.pick(&self.keys),
        }
    }

    fn address(&mut self) -> u64 {
        match self.random.below(12) {
            0 => self.random.next(),
            1..=5 => self.random.below(8192),
            _ => self.guest.address(self.random.below(MEMORY as u64) as usize),
        }
    }

    /// A number that may mean something.
    fn number(&mut self) -> u64 {
        match self.random.below(12) {
            0..=3 => self.random.below(8),
            4 => u64::from(self.guest.uar),
            5 => u64::from(self.guest.pd),
            6 => u64::from(self.guest.cqn),
            7 => u64::from(self.key()),
            8 if !self.qps.is_empty() => {
                u64::from(self.qps[self.random.below(self.qps.len() as u64) as usize].qpn)
            }
            9 => self.address(),
            10 => self.random.next() >> self.random.below(64),
            _ => u64::MAX,
        }
    }

    fn note<T>(&mut self, answer: &Result<T, Option<mlx5_prm::status::CmdStatus>>) {
        self.tally.commands += 1;
        match answer {
            Ok(_) => self.tally.made += 1,
            Err(Some(mlx5_prm::status::CmdStatus::NO_RES)) => self.tally.no_resources += 1,
            Err(_) => {}
        }
    }

    /// A command with some of its fields filled in.
    fn any_command(&mut self) {
        let known: Vec<Opcode> = COMMANDS.iter().filter(|c| c.layouts.is_some()).map(|c| c.opcode).collect();
        let opcode = self.random.pick(&known);
        if matches!(opcode, Opcode::TEARDOWN_HCA | Opcode::DISABLE_HCA) && !self.random.one_in(20) {
            return;
        }
        let mut bytes = input(opcode);
        let density = 1 + self.random.below(6);
        let mut fields = Vec::new();
        if let Some(layout) = opcode.input_layout() {
            layout.visit(&mut |leaf| {
                if matches!(leaf.kind, Kind::Field(_))
                    && leaf.path.name != "opcode"
                    && leaf.path.name != "uid"
                {
                    fields.push(Field { bit_offset: leaf.bit_offset, bit_width: leaf.bit_width });
                }
            });
        }
        for field in fields {
            if self.random.one_in(density) {
                let value = self.number();
                field.set(&mut bytes, value & field.max());
            }
        }
        for _ in 0..self.random.pick(&[0, 0, 1, 4, 600]) {
            bytes.extend(self.guest.address(self.random.below(4096) as usize * 4096).to_be_bytes());
        }
        let len = opcode.output_layout().map_or(16, |layout| layout.size);
        let answer = self.guest.command_len(&bytes, len + 8 * self.random.below(40) as usize);
        self.note(&answer);
    }

    /// An indirect key of few or many parts: empty, of single bytes, of other such keys.
    fn nested_key(&mut self) {
        let count = self.random.pick(&[1, 4, 100, 4096, 60_000]);
        let shape = self.random.below(4);
        let behind = self.key();
        let parts: Vec<(u32, u32, u64)> = (0..count)
            .map(|i| match shape {
                0 => (u32::from(i + 64 >= count) * 64, behind, i),
                1 => (1, behind, i),
                2 => (self.random.below(3) as u32, behind, self.random.below(4096)),
                _ => (self.random.next() as u32, self.key(), self.address()),
            })
            .collect();
        let len = parts.iter().map(|part| u64::from(part.0)).sum();
        let answer = self.guest.make_key(len, &parts);
        self.note(&answer);
        if let Ok(key) = answer {
            self.keys.push(key);
        }
    }

    fn destroy_key(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let at = self.random.below(self.keys.len() as u64) as usize;
        let mut destroy = input(Opcode::DESTROY_MKEY);
        mlx5_prm::commands::destroy_mkey_in::mkey_index.set(&mut destroy, self.keys[at] >> 8);
        let answer = self.guest.command(&destroy);
        self.note(&answer);
        if answer.is_ok() {
            self.keys.swap_remove(at);
        }
    }

    /// Requests of a QP's, from sensible to nonsense.
    fn posts(&mut self) {
        if self.qps.is_empty() {
            return;
        }
        let at = self.random.below(self.qps.len() as u64) as usize;
        let mut qp = self.qps[at].clone();
        for _ in 0..1 + self.random.below(40) {
            let opcode = self.random.pick(&[
                SendOpcode::RDMA_WRITE,
                SendOpcode::RDMA_WRITE,
                SendOpcode::RDMA_READ,
                SendOpcode::SEND_INVAL,
                SendOpcode::NOP,
                SendOpcode::UMR,
            ]);
            let mut wqe = vec![0; 16];
            if opcode == SendOpcode::UMR {
                wqe.resize(16 + 48 + 64, 0);
                for _ in 0..self.random.below(6) {
                    let place = 16 + self.random.below(112) as usize;
                    wqe[place] = self.random.next() as u8;
                }
            } else if opcode != SendOpcode::NOP {
                let mut remote = [0; 16];
                wqe_raddr_seg::raddr.set(&mut remote, self.address());
                wqe_raddr_seg::rkey.set(&mut remote, self.key());
                wqe.extend(remote);
                for _ in 0..1 + self.random.below(4) {
                    let mut segment = [0; 16];
                    let len: u32 = self.random.pick(&[1, 64, 4096, 5000, 1 << 20]);
                    wqe_data_seg::byte_count.set(&mut segment, len);
                    wqe_data_seg::lkey.set(&mut segment, self.key());
                    wqe_data_seg::addr.set(&mut segment, self.address());
                    wqe.extend(segment);
                }
            }
            wqe_ctrl_seg::imm.set(&mut wqe, self.key());
            wqe[11] = 8;
            wqe[..4].copy_from_slice(&(u32::from(qp.posted) << 8 | u32::from(opcode.0)).to_be_bytes());
            let ds = wqe.len() as u32 / 16;
            wqe[4..8].copy_from_slice(&(qp.qpn << 8 | ds).to_be_bytes());
            if self.random.one_in(50) {
                let place = self.random.below(wqe.len() as u64) as usize;
                wqe[place] ^= 1 << self.random.below(8);
            }
            self.guest.post(&mut qp, &wqe);
            self.tally.posted += 1;
        }
        self.guest.ring(&qp);
        self.qps[at] = qp;
    }

    fn act(&mut self) {
        match self.random.weighted(&[4, 3, 1, 2, 12, 2, 2, 1, 1]) {
            0 => self.any_command(),
            1 => self.nested_key(),
            2 => self.destroy_key(),
            3 => {
                let answer = self.guest.make_qp();
                self.note(&answer);
                self.qps.extend(answer);
            }
            4 => self.posts(),
            5 => {
                let log_size = self.random.pick(&[4, 10, 16, 20]);
                let answer = self.guest.make_cq(log_size);
                self.note(&answer);
                self.cqs.extend(answer);
            }
            6 => {
                let unit = self.random.pick(&[0x20, 0x40, 0x48, 0x800, 0x808, 0x900]);
                let value = self.number();
                for _ in 0..self.random.below(200) {
                    self.guest.bar.poke64(self.guest.uar as usize * 4096 + unit, value);
                }
            }
            7 => {
                let offset = (0x18 + self.random.below(0x3000) as usize) & !3;
                let value = self.number();
                self.guest.bar.poke32(offset, value as u32);
            }
            _ => {
                let bytes: Vec<u8> = (0..64).map(|_| self.random.next() as u8).collect();
                let place = self.random.below((MEMORY - 64) as u64) as usize;
                self.guest.write(place, &bytes);
                if !self.qps.is_empty() {
                    // A doorbell record that lies, or a ring full of anything.
                    let qp = self.qps[self.random.below(self.qps.len() as u64) as usize].clone();
                    let place = if self.random.one_in(2) { qp.record } else { qp.ring };
                    self.guest.write(place, &bytes[..8]);
                }
            }
        }
    }

    /// Whether the device answers a good command; if not, it is its own guest's loss.
    fn is_alive(&mut self) -> bool {
        self.guest.command(&input(Opcode::NOP)).is_ok()
            && self.guest.command(&input(Opcode::QUERY_SPECIAL_CONTEXTS)).is_ok()
    }
}

/// The other two.
struct Bystanders {
    nodes: [Node; 2],
    ends: [Endpoint; 2],
    round: u64,
}

impl Bystanders {
    fn new(world: &Rc<World>) -> Self {
        let mut nodes = [0, 1].map(|i| {
            let mut node =
                Node::bring_up(world, Profile::node(i), 24 << 20, &Config::DEFAULT).expect("comes up");
            node.wait_active().expect("active");
            node
        });
        let mut ends = nodes.each_mut().map(|node| {
            Endpoint::new(&mut node.hca, 16 * MESSAGE, 32, |config| config).expect("an endpoint")
        });
        let ([a, b], [at, to]) = (&mut nodes, &mut ends);
        connect((a, at), (b, to), &Options::default()).expect("connects");
        Self { nodes, ends, round: 0 }
    }

    /// Moves eight messages while the hostile device is busy.
    fn round(&mut self, world: &World) {
        self.round += 1;
        let began = world.turns();
        let [near, far] = &mut self.ends;
        for i in 0..8 {
            near.memory.store_be64(i * MESSAGE, self.round << 8 | i as u64).expect("inside");
            let op = SendOp::Write { raddr: far.address(i * MESSAGE), rkey: far.key.rkey() };
            let sge = near.sge(i * MESSAGE, MESSAGE);
            let doorbell = near.qp.post_send(op, &[sge], i as u64, SendFlags::SIGNALED).expect("room");
            near.qp.ring(doorbell);
        }
        let mut done = 0;
        while done < 8 {
            while let Some(retired) = near.cq.poll(|cqe| near.qp.retire(cqe)).expect("valid") {
                assert!(matches!(retired, Some(Completion::Sent(_))), "{retired:?}");
                done += 1;
            }
            let turns = world.turns() - began;
            assert!(turns < MOST_TURNS, "round {}: {done} of 8 messages in {turns} turns", self.round);
            world.idle(world.now() + 1_000);
        }
        for i in 0..8 {
            assert_eq!(far.memory.load_be64(i * MESSAGE), Ok(self.round << 8 | i as u64));
        }
    }
}

fn run(seed: u64) -> Tally {
    let world = World::new(&WorldConfig::new(seed));
    let mut others = Bystanders::new(&world);
    let mut hostile = Hostile::new(&world, seed);
    while world.with_hca(2, |hca| hca.port().lid) == 0 {
        world.idle(world.now() + 1_000_000);
    }
    for act in 0..ACTS {
        hostile.act();
        if act % 4 == 0 {
            others.round(&world);
        }
        if act % 50 == 49 && !hostile.is_alive() {
            hostile.restart();
        }
        let (steps, held, limit) =
            world.with_hca(2, |hca| (hca.meter().most_in_call(), hca.budget().held(), hca.budget().limit()));
        assert!(steps <= STEPS_PER_CALL + MOST_AT_ONCE, "act {act}: {steps} steps in one call");
        assert!(held <= limit, "act {act}: {held} bytes of {limit}");
        hostile.tally.most_steps = hostile.tally.most_steps.max(steps);
        hostile.tally.most_bytes = hostile.tally.most_bytes.max(held);
    }
    for node in &others.nodes {
        assert_eq!(node.hca.fatal(), None);
    }
    hostile.tally
}

#[test]
fn a_hostile_guest_costs_others_little() {
    if let Some(seed) = only_seed() {
        println!("{:?}", with_seed("a hostile guest", seed, || run(seed)));
        return;
    }
    let end = Instant::now() + duration();
    let mut seed = 0;
    while seed < 2 || Instant::now() < end {
        let said = in_process(concat!(module_path!(), "::a_hostile_guest_costs_others_little"), seed);
        if seed < 4 {
            println!("{said}");
        }
        seed += 1;
    }
    println!("{seed} seeds");
}
