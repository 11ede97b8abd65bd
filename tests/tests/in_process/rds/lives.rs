//! RDS over HCAs with many lives, each from a seed: they fail, refuse, are reset by others and lost at any moment, that of their recovery
//! included, while messages of all sizes go from one node to the other. Each comes once, in its order, and right; and it ends in bounded time.
//! In some an owner crashes without a word to its HCA and boots again: what both sides begin anew then is whole, with nothing of before.
//!
//! Besides, Ethernet HCAs are lost again and again, 8 times or 100.
//!
//! 50 seeds, 1000 with `MLX5_TESTS_LONG=1`; `MLX5_TESTS_SEED=n` replays one.

use apps::Role;
use apps::rds::{AppError, Node, Settings, Storage};
use dat_nostd::{Duration, Gid, OpenError};
use driver_mlx::{DmaRegion, Error, Instant};
use harness::dat::{self, ModelAdapter, address, due, sleep};
use harness::lives::{profile, strike};
use harness::net::gid;
use harness::rds::{GENERATION, boot};
use harness::seeds::{self, Random};
use harness::{ModelPlatform, Next, Task, World, WorldConfig};
use hca_model::card::CONNECTX_5_EN;
use hca_model::recorder::PeerAddress;
use hca_model::{Hca, Profile};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use workload::rds::Flows;
use workload::report::StepResult;

/// Twice what the messages take, and more for firmware, which takes what is free while an application begins anew.
const MEMORY: usize = 64 << 20;
const SECOND: u64 = 1_000_000_000;
const COUNT: u64 = 600;
/// How often a side that waits looks whether the other has ended.
const LOOK: u64 = SECOND / 100;

/// The one crash of a run.
#[derive(Default)]
struct Crash {
    happened: Cell<bool>,
    /// The other side has begun anew.
    answered: Cell<bool>,
}

struct Side {
    world: Rc<World>,
    node: usize,
    adapter: ModelAdapter,
    settings: Settings,
    seed: u64,
    crash: Rc<Crash>,
    /// After so many messages this side's owner crashes.
    crash_at: Option<u64>,
    /// It has begun anew since.
    again: bool,
    /// When the next recovery may be tried.
    retry_at: u64,
    app: Option<Node<'static, Flows>>,
    report: Option<StepResult>,
    /// After so many messages the next strike, in descending order.
    strikes: Vec<u64>,
    /// The HCA is only ever lost for a while, and the next time when messages have come again.
    only_lost: bool,
    losses: u32,
    /// Messages at the last recovery.
    recovered_at: u64,
    /// State of the port at the beginning.
    begin: Settled,
    random: Random,
    recoveries: u32,
}

/// State of an Ethernet port that a reset erases and its driver restores.
#[derive(Debug, PartialEq, Eq)]
struct Settled {
    /// RoCE addresses: of the MAC address, and of the IP address.
    addresses: [bool; 2],
    /// Objects that lead frames to the port's queue.
    frames: [usize; 5],
    /// Payload of the largest packet, bytes.
    mtu: u32,
}

impl Settled {
    fn of(world: &World, node: usize, adapter: &ModelAdapter) -> Self {
        let IpAddr::V4(ip) = address(node) else { unreachable!("addresses are IPv4") };
        world.with_hca(node, |hca| {
            let gids = [gid(hca.profile().card, node), Gid::from_ipv4(ip.octets())];
            let census = hca.census();
            Self {
                addresses: gids.map(|gid| hca.has_address(PeerAddress::Gid(gid))),
                frames: [census.flow_tables, census.tirs, census.rqs, census.sqs, census.tises],
                mtu: adapter.mtu(),
            }
        })
    }
}

impl Side {
    /// A side whose HCA nothing befalls.
    fn new(
        world: &Rc<World>,
        node: usize,
        (platform, region): (ModelPlatform, DmaRegion),
        (count, seed): (u64, u64),
        crash: &Rc<Crash>,
    ) -> Self {
        let mut adapter = dat::open_one(platform, region, seed, 2).expect("opens");
        let settings = Settings {
            random: seed ^ node as u64,
            generation: GENERATION,
            stall_timeout: Duration::from_secs(900),
        };
        let begin = Settled::of(world, node, &adapter);
        let app = start(node, &mut adapter, settings, (count, seed)).expect("starts");
        Self {
            world: Rc::clone(world),
            node,
            adapter,
            settings,
            seed,
            crash: Rc::clone(crash),
            crash_at: None,
            again: false,
            retry_at: 0,
            app: Some(app),
            report: None,
            strikes: Vec::new(),
            only_lost: false,
            losses: 0,
            recovered_at: 0,
            begin,
            random: Random::new(seed << 1 | node as u64),
            recoveries: 0,
        }
    }

    fn messages(&self) -> u64 {
        self.app.as_ref().map_or(0, |app| app.work().report().result.messages)
    }

    /// The owner is gone without a word, and boots again: it finds its HCA at work, and resets it before it gives it memory.
    fn crash(&mut self) {
        let node = self.node;
        let platform = self.world.platform(node);
        self.crash.happened.set(true);
        self.app = None;
        let booted = (0..100).find_map(|_| {
            self.world.reset(node);
            self.world.enable(node);
            let region = self.world.memory(node).region_again();
            let booted = dat::boot(platform.clone(), region, self.random.next(), 2, 2).ok();
            // Whatever strikes it is over some time later.
            let later = self.world.now() + SECOND;
            while booted.is_none() && self.world.now() < later {
                self.world.idle(later);
            }
            booted
        });
        std::mem::forget(std::mem::replace(&mut self.adapter, booted.expect("boots again, in the end")));
    }

    /// What both sides did before the crash is void. The other side begins anew first, so that nothing goes to what it did before.
    fn begin_anew(&mut self, now: u64, deadline: Option<u64>) -> Next {
        if self.adapter.is_dead() {
            return self.recover();
        }
        let crashed = self.crash_at.is_some();
        if crashed && !self.crash.answered.get() {
            return sleep(&mut self.adapter, now, [deadline, Some(now + LOOK)]);
        }
        if let Some(app) = self.app.take() {
            // It fails with an HCA that has failed, whose objects go with its recovery.
            if let Err(error) = app.close(&mut self.adapter) {
                println!("node {}: {error}", self.node);
            }
        }
        let settings = Settings { generation: boot(2), ..self.settings };
        match start(self.node, &mut self.adapter, settings, (COUNT, self.seed)) {
            Ok(app) => {
                (self.app, self.report, self.again) = (Some(app), None, true);
                self.crash.answered.set(true);
                Next::Again
            }
            Err(error) => {
                println!("node {}: {error}", self.node);
                Next::At(now + SECOND)
            }
        }
    }

    fn turn(&mut self, now: u64, last: bool) -> Next {
        let deadline = due(self.adapter.poll(Instant::from_nanos(now)));
        if self.crash.happened.get() && !self.again {
            return self.begin_anew(now, deadline);
        }
        let Some(app) = &mut self.app else { return Next::Done };
        let at = match app.poll(&mut self.adapter, Instant::from_nanos(now)) {
            Ok(ControlFlow::Continue(wake)) => due(wake).unwrap_or(u64::MAX).min(now + LOOK),
            Ok(ControlFlow::Break(())) => {
                self.report = Some(app.work().report().result);
                now + LOOK
            }
            Err(error) => panic!("{error}"),
        };
        if self.adapter.is_dead() {
            return self.recover();
        }
        if last && self.report.is_some() {
            self.app.take().expect("running").close(&mut self.adapter).expect("closes");
            return Next::Done;
        }
        let done = self.messages();
        if self.report.is_none() && !self.again && self.crash_at.is_some_and(|at| done >= at) {
            self.crash();
            return Next::Again;
        }
        let is_well = self.recoveries >= self.losses && done > self.recovered_at;
        if self.strikes.last().is_some_and(|at| done >= *at) && (is_well || !self.only_lost) {
            self.strikes.pop();
            self.losses += 1;
            let node = self.node;
            let most = self.random.below(32);
            let delay = self.random.below(1 << most);
            if self.only_lost {
                // Messages come again, so the port has been restored.
                assert_eq!(Settled::of(&self.world, self.node, &self.adapter), self.begin);
                let (delay, away) = (self.random.below(100_000), self.random.below(40 * SECOND));
                self.world.later(node, delay, Hca::kill);
                self.world.later(node, delay + away, Hca::revive);
                return sleep(&mut self.adapter, now, [deadline, Some(at)]);
            }
            strike(&self.world, node, delay, &mut self.random);
            if self.random.one_in(3) {
                // Once more, perhaps into the recovery.
                strike(&self.world, node, delay + self.random.below(8 * SECOND), &mut self.random);
            }
        }
        sleep(&mut self.adapter, now, [deadline, Some(at)])
    }

    /// What is polled again at once has recovered, or will try later.
    fn recover(&mut self) -> Next {
        if self.world.now() < self.retry_at {
            return Next::At(self.retry_at);
        }
        let wait = match self.adapter.recover(Duration::from_secs(30)) {
            Ok(()) | Err(OpenError::PortNotActive { .. }) => {
                // It may have failed again: then the next turn finds it dead.
                if let Some(app) = &mut self.app
                    && let Err(error) = app.adapter_recovered(&mut self.adapter)
                {
                    assert!(self.adapter.hca().fatal().is_some(), "{error}");
                }
                self.recoveries += 1;
                self.recovered_at = self.messages();
                0
            }
            Err(OpenError::Hca(Error::RecoveryTooSoon { wait_ms })) => (wait_ms + 1) * 1_000_000,
            Err(OpenError::Hca(error @ Error::RecoveryGivenUp { .. })) => panic!("{error}"),
            Err(error) => {
                println!("node {}: {error}", self.node);
                // Longer than firmware refuses, whatever strikes once more.
                30 * SECOND
            }
        };
        self.retry_at = self.world.now() + wait;
        Next::At(self.retry_at)
    }
}

/// Starts the sender or the receiver of a life's messages.
fn start(
    node: usize,
    adapter: &mut ModelAdapter,
    settings: Settings,
    (count, seed): (u64, u64),
) -> Result<Node<'static, Flows>, AppError> {
    let role = if node == 0 { Role::Server } else { Role::Client };
    let storage = Box::leak(Box::new(Storage::new()));
    Node::with(adapter, storage, settings, |adapter, rds| {
        Flows::start(adapter, rds, role, address(1 - node), (count, seed))
    })
}

/// Lives until all messages have come; the recoveries of both sides.
fn live(seed: u64) -> u32 {
    let mut random = Random::new(seed);
    let bad = random.pick(&["none", "none", "loss=1%,dup=1%,reorder=1%"]);
    let faults: Faults = bad.parse().expect("faults");
    let config = WorldConfig::new(seed);
    let world =
        World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config });
    let attached: Vec<_> = (0..2).map(|node| world.attach(profile(node, &mut random), MEMORY)).collect();
    let crash = Rc::new(Crash::default());
    let crasher = if random.one_in(3) { random.below(2) as usize } else { usize::MAX };
    let crash_at = random.below(COUNT * 3 / 4);
    let sides: Vec<RefCell<Side>> = attached
        .into_iter()
        .enumerate()
        .map(|(node, attached)| {
            let side = Side::new(&world, node, attached, (COUNT, seed), &crash);
            let mut strikes: Vec<u64> = (0..1 + random.below(4)).map(|_| random.below(COUNT)).collect();
            strikes.sort_unstable_by(|a, b| b.cmp(a));
            let crash_at = (node == crasher).then_some(crash_at);
            RefCell::new(Side { strikes, crash_at, random: Random::new(random.next()), ..side })
        })
        .collect();
    run(&world, &sides, COUNT)
}

/// Runs both sides to their end, and returns their recoveries.
fn run(world: &World, sides: &[RefCell<Side>], count: u64) -> u32 {
    {
        let other_ended = |node: usize| sides[1 - node].try_borrow().is_ok_and(|side| side.report.is_some());
        let mut tasks: Vec<Task<'_>> = sides
            .iter()
            .enumerate()
            .map(|(node, side)| Task::new(node, move |now| side.borrow_mut().turn(now, other_ended(node))))
            .collect();
        world.run(&mut tasks, 36_000 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    let reports: Vec<_> = sides.iter().map(|side| side.borrow().report.expect("ended")).collect();
    assert!(reports.iter().all(|report| (report.messages, report.verified) == (count, count)), "{reports:?}");
    for side in sides {
        let census = side.borrow().adapter.census();
        assert_eq!((census.ias, census.eps, census.lmrs, census.evds, census.pzs), (0, 0, 0, 0, 0));
    }
    sides.iter().map(|side| side.borrow().recoveries).sum()
}

/// Nothing is lost, nothing comes twice, and the port's addresses, frame size and flow rules are as
/// they were, after each loss of an HCA.
#[test]
fn an_ethernet_hca_that_is_lost_again_and_again_resumes_its_messages() {
    let rounds = if seeds::long() { 100 } else { 8 };
    // About a hundred come from one loss to the next.
    let count = 160 * rounds;
    let world = World::new(&WorldConfig::new(31));
    let attached = [0, 1].map(|node| world.attach(Profile::of(&CONNECTX_5_EN, node), MEMORY));
    let crash = Rc::new(Crash::default());
    let sides: Vec<RefCell<Side>> = attached
        .into_iter()
        .enumerate()
        .map(|(node, attached)| RefCell::new(Side::new(&world, node, attached, (count, 31), &crash)))
        .collect();
    {
        let mut side = sides[1].borrow_mut();
        assert_eq!((side.begin.addresses, side.begin.mtu), ([true; 2], 4096));
        assert!(side.begin.frames.iter().all(|objects| *objects > 0), "{:?}", side.begin);
        side.only_lost = true;
        side.strikes = (0..rounds).rev().map(|round| 25 * round + 5).collect();
    }
    let recoveries = run(&world, &sides, count);
    println!("{rounds} losses, {recoveries} recoveries, {count} messages each way");
    assert_eq!(u64::from(recoveries), rounds);
}

#[test]
fn messages_come_once_through_all_lives_of_their_hcas() {
    if let Some(seed) = seeds::only_seed() {
        println!("recoveries={}", live(seed));
        return;
    }
    let path = concat!(module_path!(), "::messages_come_once_through_all_lives_of_their_hcas");
    let count = if seeds::long() { 1000 } else { 50 };
    let recoveries: u32 = (0..count)
        .map(|seed| {
            let text = seeds::in_process(path, seed);
            let said = text.lines().find_map(|line| line.strip_prefix("recoveries="));
            said.and_then(|said| said.parse::<u32>().ok()).expect("said")
        })
        .sum();
    println!("{count} seeds, {recoveries} recoveries");
    assert!(u64::from(recoveries) > 3 * count, "there was something to survive: {recoveries}");
}
