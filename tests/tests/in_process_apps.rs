//! The unikernel's applications in one process: what runs in the image, on the model, under the seeded scheduler.

use apps::rping::{self, Rping, RpingError};
use apps::verbs::{self, Operation, OperationResult, Verbs};
use apps::{Role, Status};
use driver_mlx::{Config, Psn};
use hca_model::Profile;
use hca_model::fabric::{FabricConfig, Faults};
use hca_model::hca::Census;
use std::cell::RefCell;
use std::rc::Rc;
use tests::dat::{ModelAdapter, address, sleep};
use tests::{ModelPlatform, Next, Node, Task, World, WorldConfig, dat};

const MEMORY: usize = 16 << 20;
const SECOND: u64 = 1_000_000_000;

struct Side {
    node: Node,
    verbs: Option<Verbs<ModelPlatform>>,
    results: Vec<OperationResult>,
    /// What the HCA held before.
    census: Census,
}

fn side(world: &Rc<World>, role: Role) -> Side {
    let index = if role == Role::Server { 0 } else { 1 };
    let mut node = Node::bring_up(world, Profile::node(index), MEMORY, &Config::DEFAULT).expect("up");
    node.wait_active().expect("active");
    let config = verbs::Config {
        role,
        psn: Psn::new(0xff_fff0),
        connect_timeout: 60 * SECOND,
        stall_timeout: 60 * SECOND,
    };
    let census = world.census(index as usize);
    let verbs = Verbs::new(&mut node.hca, config).expect("objects");
    Side { node, verbs: Some(verbs), results: Vec::new(), census }
}

impl Side {
    fn turn(&mut self, now: u64) -> Next {
        let Self { node, verbs, results, .. } = self;
        let Some(running) = verbs else { return Next::Done };
        let hca_deadline = node.hca.poll(now);
        let status = running.poll(&mut node.hca, now).unwrap_or_else(|error| panic!("{error}"));
        results.extend(running.take_result());
        match status {
            Status::Done => {
                verbs.take().expect("running").close(&mut node.hca).expect("closed");
                Next::Done
            }
            Status::Working(at) if at > now && running.prepare_idle(&mut node.hca) => {
                Next::At(at.min(hca_deadline))
            }
            Status::Working(_) => Next::Again,
        }
    }
}

/// Both roles from their addresses' exchange, by text, to the end.
fn run_verbs(seed: u64, faults: &str) -> (Rc<World>, [Side; 2]) {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    let world =
        World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config });
    let mut sides = [Role::Server, Role::Client].map(|role| side(&world, role));
    let lines = sides.each_mut().map(|side| {
        let verbs = side.verbs.as_ref().expect("running");
        verbs.address(&mut side.node.hca).expect("address").to_string()
    });
    for (side, line) in sides.iter_mut().zip([&lines[1], &lines[0]]) {
        let peer = verbs::Address::parse(line).expect("the peer's line");
        side.verbs.as_mut().expect("running").connect(&mut side.node.hca, &peer).expect("connected");
    }
    let cells = sides.map(RefCell::new);
    {
        let mut tasks: Vec<Task<'_>> = cells
            .iter()
            .enumerate()
            .map(|(index, cell)| Task::new(index, move |now| cell.borrow_mut().turn(now)))
            .collect();
        world.run(&mut tasks, 600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    let sides = cells.map(RefCell::into_inner);
    for (node, side) in sides.iter().enumerate() {
        assert_eq!(world.census(node), side.census, "nothing is left of node {node}");
    }
    (world, sides)
}

fn check(side: &Side) {
    let counted: Vec<_> = side.results.iter().map(|r| (r.operation, r.messages, r.verified)).collect();
    let expected = Operation::ALL.map(|operation| {
        let count = if (operation as u32) < 3 { 100 } else { 50 };
        (operation, count, count)
    });
    assert_eq!(counted, expected);
    let moved: usize = (0..100).map(verbs::size).sum();
    assert!(side.results[..3].iter().all(|result| result.bytes == moved as u64), "{:?}", side.results);
}

#[test]
fn verbs_moves_data_by_every_operation_both_ways() {
    for seed in 1..4 {
        let (world, sides) = run_verbs(seed, "none");
        sides.iter().for_each(check);
        assert_eq!(world.retransmissions(), 0);
    }
}

#[test]
fn verbs_moves_data_on_a_fabric_that_loses_duplicates_and_reorders() {
    let (world, sides) = run_verbs(5, "loss=1%,dup=1%,reorder=1%");
    sides.iter().for_each(check);
    assert!(world.retransmissions() > 0);
}

fn rping_config(role: Role, size: u32, count: u32) -> rping::Config {
    rping::Config {
        role,
        ia: "ib0",
        peer: address(0),
        port: rping::DEFAULT_PORT,
        size,
        count,
        verify: true,
        connect_timeout: 60 * SECOND,
        stall_timeout: 60 * SECOND,
    }
}

/// A side of rping on its adapter, and how it ended.
struct Pinger {
    adapter: ModelAdapter,
    rping: Option<Rping>,
    outcome: Option<Result<rping::Report, RpingError>>,
}

impl Pinger {
    fn start(mut adapter: ModelAdapter, config: rping::Config) -> Self {
        let rping = Rping::start(&mut adapter, config).expect("objects");
        Self { adapter, rping: Some(rping), outcome: None }
    }

    fn turn(&mut self, now: u64) -> Next {
        let Self { adapter, rping, outcome } = self;
        let deadline = adapter.poll(now);
        let Some(running) = rping else { return Next::Done };
        let ended = match running.poll(adapter, now) {
            Ok(Status::Working(at)) => return sleep(adapter, now, [deadline, Some(at)]),
            Ok(Status::Done) => Ok(running.report()),
            Err(error) => Err(error),
        };
        *outcome = Some(ended);
        rping.take().expect("running").close(adapter).expect("closed");
        Next::Done
    }
}

fn run_rping(seed: u64, faults: &str, server: rping::Config, client: rping::Config) -> [Pinger; 2] {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    let world =
        World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config });
    let mut adapters = dat::open(&world, seed, 2, MEMORY).expect("adapters");
    let free = adapters.iter().map(|adapter| adapter.hca().free_bytes()).collect::<Vec<_>>();
    let other = adapters.remove(1);
    let cells = [Pinger::start(adapters.remove(0), server), Pinger::start(other, client)].map(RefCell::new);
    {
        let mut tasks: Vec<Task<'_>> = cells
            .iter()
            .enumerate()
            .map(|(index, cell)| Task::new(index, move |now| cell.borrow_mut().turn(now)))
            .collect();
        world.run(&mut tasks, 600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    let pingers = cells.map(RefCell::into_inner);
    for (pinger, free) in pingers.iter().zip(free) {
        assert_eq!(pinger.adapter.hca().free_bytes(), free, "all memory was given back");
    }
    pingers
}

#[test]
fn rping_goes_round_at_all_sizes_also_on_a_bad_fabric() {
    for (seed, size, faults) in
        [(1, 26, "none"), (2, 64, "none"), (3, 65_535, "none"), (4, 5000, "loss=1%,dup=1%,reorder=1%")]
    {
        let config = |role| rping_config(role, size, 100);
        // The server is told another size: it takes what the client says.
        let server = rping::Config { size: 64, ..config(Role::Server) };
        for pinger in run_rping(seed, faults, server, config(Role::Client)) {
            let report = pinger.outcome.expect("ended").expect("success");
            assert_eq!((report.iterations, report.bytes), (100, 100 * u64::from(size)));
        }
    }
}

#[test]
fn rping_without_a_server_says_so() {
    let elsewhere = rping::Config { port: 7175, ..rping_config(Role::Server, 64, 1) };
    let elsewhere = rping::Config { connect_timeout: 3 * SECOND, ..elsewhere };
    let client = rping::Config { connect_timeout: 3 * SECOND, ..rping_config(Role::Client, 64, 1) };
    let [server, client] = run_rping(6, "none", elsewhere, client);
    assert!(matches!(server.outcome, Some(Err(RpingError::NotConnected { last: None, .. }))));
    let Some(Err(RpingError::NotConnected { last: Some(last), .. })) = client.outcome else {
        panic!("{:?}", client.outcome)
    };
    assert_eq!(last, dat_nostd::ConnectionEvent::NonPeerRejected);
}
