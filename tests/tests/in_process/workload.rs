//! The workload of verbs in one process: both sides on the model, under the seeded scheduler.

use apps::Role;
use driver_mlx::{Instant, Psn};
use harness::dat::due;
use harness::{ModelPlatform, Next, Node, Task, World, WorldConfig};
use hca_model::{Census, Profile};
use rdma_fabric::infiniband::FabricConfig;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;
use workload::report::StepResult;
use workload::verbs::{Address, Config, PROGRAM, Step, Verbs};

const MEMORY: usize = 16 << 20;
const SECOND: u64 = 1_000_000_000;

fn world(seed: u64, faults: &str) -> Rc<World> {
    let config = WorldConfig::new(seed);
    let faults = faults.parse().expect("faults");
    World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config })
}

struct Side {
    node: Node,
    verbs: Option<Verbs<ModelPlatform>>,
    results: Vec<StepResult>,
    /// Objects of the HCA before.
    census: Census,
}

fn side(world: &Rc<World>, role: Role) -> Side {
    let index = if role == Role::Server { 0 } else { 1 };
    let mut node =
        Node::bring_up(world, Profile::node(index), MEMORY, &driver_mlx::Config::DEFAULT).expect("up");
    node.wait_active().expect("active");
    let config = Config {
        role,
        psn: Psn::new(0xff_fff0),
        connect_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(60),
    };
    let census = world.census(index as usize);
    let verbs = Verbs::new(&mut node.hca, config).expect("objects");
    Side { node, verbs: Some(verbs), results: Vec::new(), census }
}

impl Side {
    fn turn(&mut self, now: u64) -> Next {
        let Self { node, verbs, results, .. } = self;
        let Some(running) = verbs else { return Next::Done };
        let hca_deadline = due(node.hca.poll(Instant::from_nanos(now)));
        let status =
            running.poll(&mut node.hca, Instant::from_nanos(now)).unwrap_or_else(|error| panic!("{error}"));
        results.extend(running.take_result());
        match status {
            ControlFlow::Break(()) => {
                verbs.take().expect("running").close(&mut node.hca).expect("closed");
                Next::Done
            }
            ControlFlow::Continue(wake) => {
                let at = due(wake).into_iter().chain(hca_deadline).min().unwrap_or(u64::MAX);
                if at > now && running.prepare_idle(&mut node.hca) { Next::At(at) } else { Next::Again }
            }
        }
    }
}

/// Runs both roles to the end. Their addresses travel as text.
fn run(seed: u64, faults: &str) -> (Rc<World>, [Side; 2]) {
    let world = world(seed, faults);
    let mut sides = [Role::Server, Role::Client].map(|role| side(&world, role));
    let lines = sides.each_mut().map(|side| {
        let verbs = side.verbs.as_ref().expect("running");
        verbs.address(&mut side.node.hca).expect("address").to_string()
    });
    for (side, line) in sides.iter_mut().zip([&lines[1], &lines[0]]) {
        let peer = Address::parse(line).expect("the peer's line");
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
        assert_eq!(world.census(node), side.census, "objects of node {node}");
    }
    (world, sides)
}

fn check(side: &Side) {
    let done: Vec<_> = side.results.iter().map(|r| (r.op, r.messages, r.bytes, r.verified)).collect();
    let expected = PROGRAM.map(|Step { op, count }| {
        let bytes: usize = (0..count).map(|number| op.len(number)).sum();
        (op.name(), count.into(), bytes as u64, count.into())
    });
    assert_eq!(done, expected);
}

#[test]
fn every_operation_moves_data_in_both_directions() {
    for seed in 1..4 {
        let (world, sides) = run(seed, "none");
        sides.iter().for_each(check);
        assert_eq!(world.retransmissions(), 0);
    }
}

#[test]
fn every_operation_moves_data_on_a_fabric_with_faults() {
    let (world, sides) = run(5, "loss=1%,dup=1%,reorder=1%");
    sides.iter().for_each(check);
    assert!(world.retransmissions() > 0);
}
