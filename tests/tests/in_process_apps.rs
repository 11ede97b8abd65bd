//! The unikernel's applications in one process: what runs in the image, on the model, under the seeded scheduler.

use apps::verbs::{self, Operation, OperationResult, Verbs};
use apps::{Role, Status};
use driver_mlx::{Config, Psn};
use hca_model::Profile;
use hca_model::fabric::{FabricConfig, Faults};
use hca_model::hca::Census;
use std::cell::RefCell;
use std::rc::Rc;
use tests::{ModelPlatform, Next, Node, Task, World, WorldConfig};

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
