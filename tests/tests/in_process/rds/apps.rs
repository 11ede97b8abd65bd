//! `app=rds` in one process: each mode on two nodes, on a good fabric and on a bad one.

use apps::rds::{AppError, Config, Mode, Outcome, PingReport, RdsApp, Report, Settings, Storage};
use driver_mlx::Instant;
use harness::dat::due;
use harness::dat::{ModelAdapter, address, sleep};
use harness::rds::GENERATION;
use harness::{Next, Task, World, WorldConfig, dat};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

const MEMORY: usize = 32 << 20;
const SECOND: u64 = 1_000_000_000;
/// How often a side that waits looks whether the other has ended.
const LOOK: u64 = SECOND / 100;

fn world(seed: u64, faults: &str) -> Rc<World> {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config })
}

/// What node `node` is told.
fn config(node: usize, mode: Mode) -> Config {
    let stall_timeout = Duration::from_secs(60);
    let settings = Settings { random: 77 + node as u64, generation: GENERATION, stall_timeout };
    Config { mode, peer: address(1 - node), settings }
}

/// A side on its adapter, and how it ended.
struct Side {
    adapter: ModelAdapter,
    app: Option<RdsApp<'static>>,
    ended: Option<Result<Outcome, AppError>>,
    /// It does not end on its own.
    endless: bool,
}

impl Side {
    fn start(mut adapter: ModelAdapter, config: Config) -> Self {
        let storage = Box::leak(Box::new(Storage::new()));
        let app = RdsApp::start(&mut adapter, storage, config).expect("starts");
        Self { adapter, app: Some(app), ended: None, endless: config.mode == Mode::Echo }
    }

    /// `last`: the other side has ended; the first to end goes on answering until then.
    fn turn(&mut self, now: u64, last: bool) -> Next {
        let Self { adapter, app, ended, endless } = self;
        let deadline = due(adapter.poll(Instant::from_nanos(now)));
        let Some(running) = app else { return Next::Done };
        let at = match running.poll(adapter, Instant::from_nanos(now)) {
            Ok(ControlFlow::Continue(wake)) => due(wake).unwrap_or(u64::MAX).min(now + LOOK),
            Ok(ControlFlow::Break(())) => {
                *ended = Some(Ok(running.outcome()));
                now + LOOK
            }
            Err(error) => {
                *ended = Some(Err(error));
                now
            }
        };
        if last && (*endless || ended.is_some()) || matches!(ended, Some(Err(_))) {
            ended.get_or_insert(Ok(running.outcome()));
            app.take().expect("running").close(adapter).expect("closes");
            return Next::Done;
        }
        sleep(adapter, now, [deadline, Some(at)])
    }
}

/// Both sides to their ends; one that has none of its own ends with the other.
fn run(seed: u64, faults: &str, modes: [Mode; 2]) -> [Result<Outcome, AppError>; 2] {
    let world = world(seed, faults);
    let adapters = dat::open(&world, seed, 2, MEMORY).expect("adapters");
    let free: Vec<usize> = adapters.iter().map(|adapter| adapter.hca().free_bytes()).collect();
    let sides: Vec<RefCell<Side>> = adapters
        .into_iter()
        .zip(modes)
        .enumerate()
        .map(|(node, (adapter, mode))| RefCell::new(Side::start(adapter, config(node, mode))))
        .collect();
    {
        let other_ended = |node: usize| sides[1 - node].try_borrow().is_ok_and(|side| side.ended.is_some());
        let mut tasks: Vec<Task<'_>> = sides
            .iter()
            .enumerate()
            .map(|(node, side)| Task::new(node, move |now| side.borrow_mut().turn(now, other_ended(node))))
            .collect();
        world.run(&mut tasks, 3600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    for (side, free) in sides.iter().zip(free) {
        assert_eq!(side.borrow().adapter.hca().free_bytes(), free, "all memory was given back");
    }
    let mut ends = sides.into_iter().map(|side| side.into_inner().ended.expect("ended"));
    [ends.next().expect("two"), ends.next().expect("two")]
}

fn ping(outcome: &Result<Outcome, AppError>) -> PingReport {
    match outcome {
        Ok(Outcome { report: Report::Ping(report), .. }) => *report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_ping_is_lost_whatever_the_fabric_does() {
    for (seed, faults) in [(1, "none"), (2, "loss=1%,dup=1%,reorder=1%")] {
        let pings = Mode::Ping { count: 200, interval: Duration::from_millis(1) };
        let ends = run(seed, faults, [Mode::Echo, pings]);
        let report = ping(&ends[1]);
        assert_eq!((report.sent, report.received), (200, 200), "{report:?}");
        assert!(0 < report.min && report.min <= report.max && report.max <= report.sum, "{report:?}");
        let server = ends[0].expect("success");
        assert_eq!((server.counters.recv_ping, server.counters.send_pong), (200, 200));
    }
}

#[test]
fn both_sides_ping_each_other_at_once() {
    let pings = Mode::Ping { count: 100, interval: Duration::ZERO };
    for end in run(3, "none", [pings, pings]) {
        assert_eq!(ping(&end).received, 100);
    }
}

#[test]
fn a_peer_that_is_not_there_is_told() {
    let pings = Mode::Ping { count: 1, interval: Duration::ZERO };
    let world = world(8, "none");
    let mut adapters = dat::open(&world, 8, 2, MEMORY).expect("adapters");
    let mut side = Side::start(adapters.remove(1), config(1, pings));
    drop(adapters);
    world.run(&mut [Task::new(1, |now| side.turn(now, true))], 600 * SECOND).expect("it ends");
    let ended = side.ended.expect("ended");
    assert!(matches!(ended, Err(AppError::Stalled { moved: 1, waited_ms: 60_000.. })), "{ended:?}");
}
