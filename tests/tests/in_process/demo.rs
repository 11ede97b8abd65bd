//! The demonstration's workload between two nodes in one process, on a fabric that loses, duplicates and reorders.
//!
//! `MLX5_TESTS_LONG=1` runs twenty seeds instead of two; `MLX5_TESTS_SEED=n` runs seed n alone.

use demo::{Config, Demo, DemoError, Operation, OperationResult, Reporter, Role, Storage, Volume};
use driver_mlx::Instant;
use harness::dat::due;
use harness::dat::{self, ModelAdapter, address};
use harness::rds::GENERATION;
use harness::{Next, Stalled, Task, World, WorldConfig};
use rdma_fabric::counters::FabricCounters;
use rdma_fabric::faults::Faults;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// Virtual time that the whole run may take.
const LIMIT: u64 = 600 * SECOND;
/// Virtual time in which nothing may move.
const STALL: Duration = Duration::from_secs(30);
/// How long a node goes on after its end, so that a peer whose last message was lost gets its answer.
const LINGER: u64 = 2 * SECOND;
const OPERATIONS: [Operation; 11] = [
    Operation::SendRecv,
    Operation::RdmaWrite,
    Operation::RdmaRead,
    Operation::Windows,
    Operation::SharedQueue,
    Operation::Watermarks,
    Operation::Handoff,
    Operation::Duplicate,
    Operation::Graceful,
    Operation::Completions,
    Operation::Rds,
];

#[derive(Default)]
struct Results(Vec<OperationResult>);

impl Reporter for Results {
    fn progress(&mut self, _: Operation, _: u64, _: u64) {}

    fn result(&mut self, result: &OperationResult) {
        self.0.push(*result);
    }
}

/// How a run of both nodes ended.
struct Run {
    world: Rc<World>,
    /// Server, client.
    outcomes: [Result<(), DemoError>; 2],
    results: [Vec<OperationResult>; 2],
    stalled: Option<Stalled>,
    adapters: Vec<ModelAdapter>,
}

fn config(role: Role, volume: Volume, seed: u64) -> Config {
    Config {
        role,
        peer: address(usize::from(role == Role::Server)),
        port: 7471,
        volume,
        seed,
        generation: GENERATION,
        connect_timeout: Duration::from_secs(60),
        stall_timeout: STALL,
    }
}

/// Runs the workload on two nodes; `meddle` is called with the time whenever it is the scheduler's will.
fn run(seed: u64, faults: &str, volume: Volume, meddle: impl FnMut(&World, u64) -> Next) -> Run {
    let mut configuration = WorldConfig::new(seed);
    configuration.fabric.faults = faults.parse::<Faults>().expect("a list of faults");
    let world = World::new(&configuration);
    let mut adapters = dat::open(&world, seed, 2, 64 << 20).expect("opens");
    let census: Vec<_> = (0..2).map(|node| world.census(node)).collect();
    let state = RefCell::new([None, None]);
    let results = [RefCell::new(Results::default()), RefCell::new(Results::default())];
    let mut meddle = meddle;
    let stalled = {
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (node, adapter) in adapters.iter_mut().enumerate() {
            let role = [Role::Server, Role::Client][node];
            let storage = Box::leak(Box::new(Storage::new()));
            let mut demo = Some(Demo::start(adapter, storage, config(role, volume, seed)).expect("starts"));
            let (world, state, results) = (&world, &state, &results[node]);
            let mut done_at = None;
            tasks.push(Task::new(node, move |now| {
                let deadline = due(adapter.poll(Instant::from_nanos(now)));
                if let Some(at) = done_at {
                    return if now < at {
                        dat::sleep(adapter, now, [deadline, Some(at)])
                    } else {
                        Next::Done
                    };
                }
                let Some(running) = &mut demo else { return Next::Done };
                match running.poll(adapter, Instant::from_nanos(now), &mut *results.borrow_mut()) {
                    Ok(ControlFlow::Continue(wake)) => dat::sleep(adapter, now, [deadline, due(wake)]),
                    Ok(ControlFlow::Break(())) => {
                        let closed = demo.take().map_or(Ok(()), |demo| demo.close(adapter));
                        state.borrow_mut()[node] = Some(closed);
                        done_at = Some(now + LINGER);
                        Next::Again
                    }
                    Err(error) => {
                        println!("node {node}: {error}; {:?}", running.rds_counters());
                        println!("node {node}: {:?} {:?}", adapter.counters(), adapter.port_counters());
                        println!("node {node}: refused by its HCA: {:#?}", world.refusals(node));
                        state.borrow_mut()[node] = Some(Err(error));
                        Next::Done
                    }
                }
            }));
        }
        tasks.push(Task::new(usize::MAX, |now| meddle(&world, now)));
        world.run(&mut tasks, LIMIT).err()
    };
    let outcomes = state.into_inner();
    if outcomes.iter().all(|outcome| matches!(outcome, Some(Ok(())))) {
        for (node, before) in census.iter().enumerate() {
            assert_eq!(world.census(node), *before, "node {node} freed all that the run made");
        }
    }
    Run {
        world,
        outcomes: outcomes.map(|outcome| outcome.unwrap_or(Ok(()))),
        results: results.map(|results| results.into_inner().0),
        stalled,
        adapters,
    }
}

/// Everything was moved and checked, and nothing was left behind or refused.
fn verify(run: Run, volume: Volume, seed: u64) {
    assert_eq!(run.stalled, None, "seed {seed}");
    for (side, outcome) in ["server", "client"].iter().zip(&run.outcomes) {
        assert!(outcome.is_ok(), "seed {seed}, {side}: {}", outcome.unwrap_err());
    }
    for (index, operation) in OPERATIONS.into_iter().enumerate() {
        let both = [0, 1].map(|side| run.results[side].get(index).copied().expect("a result"));
        assert!(both.iter().all(|result| result.operation == operation));
        let sum = |of: fn(&OperationResult) -> u64| both.iter().map(of).sum::<u64>();
        let (messages, bytes, verified) = (sum(|r| r.messages), sum(|r| r.bytes), sum(|r| r.verified));
        assert_eq!(messages, verified, "seed {seed}, {}: as many verified as sent", operation.name());
        match operation {
            Operation::SendRecv => assert_eq!(messages, volume.messages),
            Operation::Rds => assert_eq!(messages, volume.datagrams),
            Operation::RdmaWrite => assert!(bytes >= volume.write_bytes, "{bytes} bytes written"),
            Operation::RdmaRead => assert!(bytes >= volume.read_bytes, "{bytes} bytes read"),
            // Two accesses that are allowed and one that is not, and the owner's word on it; one of the five rounds only reads.
            Operation::Windows => assert_eq!(messages, 5 * 4 - 1),
            Operation::SharedQueue => assert_eq!(messages, 64 * (4 + volume.messages / 2000)),
            Operation::Watermarks => assert_eq!(messages, 9 + 3),
            Operation::Handoff => assert_eq!(messages, 2 + 1),
            Operation::Duplicate => assert_eq!(messages, 4),
            Operation::Graceful => assert_eq!(messages, 16),
            Operation::Completions => assert_eq!(messages, 3 * 4 + 3 * 3),
            Operation::Connection => unreachable!("moves nothing"),
        }
        assert!(bytes > 0);
    }
    for (node, adapter) in run.adapters.into_iter().enumerate() {
        let counters = adapter.counters();
        assert_eq!((counters.bad_completions, counters.overflows), (0, 0), "seed {seed}, node {node}");
        adapter.close().expect("closes");
        assert_eq!(run.world.census(node).total(), 0, "left behind: {}", run.world.census(node));
        // The server's HCA refuses one access to each window, for its key, its length or its rights.
        let refusals = run.world.refusals(node);
        assert_eq!(refusals.len(), [5, 0][node], "seed {seed}, node {node}: {refusals:#?}");
        assert!(refusals.iter().all(|refusal| refusal.contains("mkc.")), "{refusals:#?}");
    }
}

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("MLX5_TESTS_SEED") {
        return vec![seed.parse().expect("MLX5_TESTS_SEED is a number")];
    }
    let long = std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| value != "0");
    (1..=if long { 20 } else { 2 }).collect()
}

/// An eighth of the demonstration's volume with 1 % loss, duplication and reordering.
#[test]
fn an_eighth_of_the_volume_on_a_lossy_fabric() {
    let volume = Volume::FULL.divided_by(8);
    for seed in seeds() {
        let run = run(seed, "loss=1%,dup=1%,reorder=1%", volume, |_, _| Next::Done);
        let FabricCounters { dropped, duplicated, reordered, sent, delivered_bytes, .. } =
            run.world.fabric_counters();
        let retransmitted = run.world.retransmissions();
        println!(
            "seed {seed}: {sent} packets, {} MB delivered, {dropped} dropped, {duplicated} duplicated, {reordered} \
             reordered, {retransmitted} retransmitted, {} ms of virtual time, {} turns",
            delivered_bytes / 1_000_000,
            run.world.now() / 1_000_000,
            run.world.turns()
        );
        assert!(dropped > 0 && duplicated > 0 && reordered > 0 && retransmitted > 0);
        verify(run, volume, seed);
    }
}

/// On a fabric without faults nothing is lost, and nothing has to be sent again.
#[test]
fn a_small_volume_on_a_clean_fabric() {
    let volume = Volume::FULL.divided_by(200);
    let run = run(100, "none", volume, |_, _| Next::Done);
    let counters = run.world.fabric_counters();
    assert_eq!((counters.dropped, counters.duplicated, counters.overflow, counters.malformed), (0, 0, 0, 0));
    verify(run, volume, 100);
}

/// The same seed gives the same run, to the nanosecond.
#[test]
fn a_seed_replays() {
    let volume = Volume { messages: 40, write_bytes: 200_000, read_bytes: 200_000, datagrams: 40 };
    let once = |seed| {
        let run = run(seed, "loss=2%,dup=1%,reorder=1%", volume, |_, _| Next::Done);
        let figures = (run.world.now(), run.world.turns(), run.world.fabric_counters());
        verify(run, volume, seed);
        figures
    };
    let first = once(7);
    assert_eq!(first, once(7));
    assert_ne!(first.0, once(8).0);
}

/// A peer that dies in the middle of a transfer is reported in bounded time.
#[test]
fn a_killed_server_is_reported_by_the_client() {
    let mut killed_at = None;
    let run = run(9, "none", Volume::FULL.divided_by(8), |world, now| {
        if world.fabric_counters().delivered_bytes < 2_000_000 {
            return Next::At(now + 1_000_000);
        }
        killed_at = Some(now);
        world.kill(0);
        Next::Done
    });
    let killed_at = killed_at.expect("the transfer began");
    let error = run.outcomes[1].as_ref().expect_err("the client notices");
    let text = error.to_string();
    assert!(
        matches!(error, DemoError::Transfer { .. } | DemoError::ConnectionLost { .. }),
        "the client says: {text}"
    );
    assert!(text.contains("send_recv"), "it says during what: {text}");
    assert_eq!(run.stalled, None, "the dead node's software ends too: {:?}", run.outcomes[0]);
    let took = run.world.now() - killed_at;
    assert!(took < LIMIT / 2, "noticed after {} s", took / SECOND);
}

/// A client whose server never comes says so.
#[test]
fn a_peer_that_never_comes_up_is_reported() {
    let world = World::new(&WorldConfig::new(11));
    let mut adapters = dat::open(&world, 11, 2, 32 << 20).expect("opens");
    let adapter = &mut adapters[1];
    let settings =
        Config { connect_timeout: Duration::from_secs(5), ..config(Role::Client, Volume::FULL, 11) };
    let mut demo = Demo::start(adapter, Box::leak(Box::new(Storage::new())), settings).expect("starts");
    let mut outcome = None;
    let began = world.now();
    let mut tasks = [Task::new(1, |now| {
        let deadline = due(adapter.poll(Instant::from_nanos(now)));
        match demo.poll(adapter, Instant::from_nanos(now), &mut Results::default()) {
            Ok(ControlFlow::Continue(wake)) => dat::sleep(adapter, now, [deadline, due(wake)]),
            other => {
                outcome = Some(other.map(|_| ()));
                Next::Done
            }
        }
    })];
    world.run(&mut tasks, LIMIT).expect("ends");
    drop(tasks);
    let error = outcome.expect("an outcome").expect_err("nobody is there");
    assert!(matches!(error, DemoError::PeerNeverCameUp { .. }), "{error}");
    assert!(error.to_string().starts_with("the peer never came up"), "{error}");
    let took = world.now() - began;
    assert!((5 * SECOND..30 * SECOND).contains(&took), "after {} s", took / SECOND);
}
