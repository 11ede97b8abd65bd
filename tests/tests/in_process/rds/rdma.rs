//! RDMA by cookie and congestion between two nodes in one process, as the unikernel's applications do them against Linux: every
//! length with every switch, what has to fail, ports that are not read; on a good fabric and on a bad one.

use apps::Status;
use apps::rds::{AppError, Config, Mode, Outcome, RdsApp, Report, Storage};
use driver_mlx::Instant;
use harness::dat::due;
use harness::dat::{ModelAdapter, address, sleep};
use harness::rds::GENERATION;
use harness::{Next, Task, World, WorldConfig, dat};
use hca_model::fabric::{FabricConfig, Faults};
use std::cell::RefCell;
use std::rc::Rc;

const MEMORY: usize = 32 << 20;
const SECOND: u64 = 1_000_000_000;
const BAD: &str = "loss=0.5%,dup=1%,reorder=1%";

fn world(seed: u64, faults: &str) -> Rc<World> {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config })
}

/// A side on its adapter, and how it ended.
struct Side {
    adapter: ModelAdapter,
    app: Option<RdsApp<'static>>,
    ended: Option<Result<Outcome, AppError>>,
}

impl Side {
    fn start(node: usize, mut adapter: ModelAdapter, mode: Mode) -> Self {
        let storage = Box::leak(Box::new(Storage::new()));
        let config = Config {
            mode,
            peer: address(1 - node),
            random: 77 + node as u64,
            generation: GENERATION,
            stall_timeout: 60 * SECOND,
        };
        let app = RdsApp::start(&mut adapter, storage, config).expect("starts");
        Self { adapter, app: Some(app), ended: None }
    }

    fn turn(&mut self, now: u64) -> Next {
        let Self { adapter, app, ended } = self;
        let deadline = due(adapter.poll(Instant::from_nanos(now)));
        let Some(running) = app else { return Next::Done };
        *ended = Some(match running.poll(adapter, now) {
            Ok(Status::Working(at)) => return sleep(adapter, now, [deadline, Some(at)]),
            Ok(Status::Done) => Ok(running.outcome()),
            Err(error) => Err(error),
        });
        app.take().expect("running").close(adapter).expect("closes");
        Next::Done
    }
}

/// A server and its client to their ends; all memory is given back.
fn run(seed: u64, faults: &str, server: Mode, client: Mode) -> [Outcome; 2] {
    let world = world(seed, faults);
    let adapters = dat::open(&world, seed, 2, MEMORY).expect("adapters");
    let free: Vec<usize> = adapters.iter().map(|adapter| adapter.hca().free_bytes()).collect();
    let sides: Vec<RefCell<Side>> = adapters
        .into_iter()
        .zip([server, client])
        .enumerate()
        .map(|(node, (adapter, mode))| RefCell::new(Side::start(node, adapter, mode)))
        .collect();
    {
        let tasks = sides.iter().enumerate();
        let mut tasks: Vec<Task<'_>> =
            tasks.map(|(node, side)| Task::new(node, move |now| side.borrow_mut().turn(now))).collect();
        world.run(&mut tasks, 3600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    for (side, free) in sides.iter().zip(free) {
        assert_eq!(side.borrow().adapter.hca().free_bytes(), free, "all memory was given back");
    }
    let outcomes: Vec<_> = sides.into_iter().map(|side| side.into_inner().ended.expect("ended")).collect();
    // The client knows what was wrong.
    let client = outcomes[1].unwrap_or_else(|error| panic!("{error}; server: {:?}", outcomes[0]));
    [outcomes[0].unwrap_or_else(|error| panic!("server: {error}")), client]
}

#[test]
fn every_length_with_every_switch_and_what_must_fail() {
    for (seed, faults) in [(51, "none"), (52, BAD)] {
        let [server, client] = run(seed, faults, Mode::Serve, Mode::Rdma { rounds: 1 });
        let Report::Rdma(report) = client.report else { panic!("{client:?}") };
        // 12 lengths, 4 kinds of offers, 4 kinds of operations, both ways; two more regions are used before they are gone.
        assert_eq!(
            (report.done, report.failed, report.atomics),
            (12 * 4 * 4 * 2 + 4, 5 * 2, 2),
            "{report:?}"
        );
        assert!(report.bytes > 30 << 20, "{report:?}");
        let Report::Serve(served) = server.report else { panic!("{server:?}") };
        assert_eq!(served.wrong, 0, "{served:?}");
        // Where no packet is lost or doubled, each denial is heard and nothing else breaks a connection.
        let again = served.regions - (12 * 4 * 4 * 2 + 6 * 2);
        assert!(again <= report.dropped && (faults != "none" || report.dropped == 0), "{report:?}");
        // Each of what failed cost the connection.
        assert!(client.counters.conn_reset >= report.failed + report.dropped, "{:?}", client.counters);
    }
}

#[test]
fn a_port_that_is_not_read_closes_alone_and_opens_again() {
    for (seed, faults) in [(53, "none"), (54, BAD)] {
        let [server, client] = run(seed, faults, Mode::Serve, Mode::Congestion { rounds: 4 });
        let Report::Congestion(report) = client.report else { panic!("{client:?}") };
        assert_eq!((report.times, report.updates), (4, 8), "{report:?}");
        assert_eq!(report.refused, 4 * (1 + 2 + 2 + 1), "{report:?}");
        let Report::Serve(served) = server.report else { panic!("{server:?}") };
        assert!(served.messages >= 4 * (7 + 20 + 5) && served.wrong == 0, "{served:?}");
        assert_eq!(client.counters.cong_send_error, report.refused);
        // What came for the socket that had closed, and only that.
        assert_eq!(server.counters.recv_drop_no_sock, 4);
        assert_eq!(client.counters.conn_reset, 0);
    }
}
