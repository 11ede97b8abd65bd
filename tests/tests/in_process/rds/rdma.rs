//! The RDS workload in one process: messages of all sizes, RDMA by cookie and congestion, without and
//! with faults of the fabric.

use apps::Role;
use apps::rds::{AppError, Node, Settings, Storage, Work};
use dat_nostd::Adapter;
use driver_mlx::Instant;
use harness::dat::due;
use harness::dat::{ModelAdapter, address, sleep};
use harness::rds::GENERATION;
use harness::{ModelPlatform, Next, Task, World, WorldConfig, dat};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use rds_nostd::{Counters, Rds};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;
use workload::rds::{Client, Flows, Report, Script, Server};

const MEMORY: usize = 32 << 20;
const SECOND: u64 = 1_000_000_000;
const BAD: &str = "loss=0.5%,dup=1%,reorder=1%";

fn world(seed: u64, faults: &str) -> Rc<World> {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config })
}

/// Result of a side, and its counters.
type Outcome = Result<(Report, Counters), AppError>;

/// A side on its adapter, and its result.
struct Side<W> {
    adapter: ModelAdapter,
    node: Option<Node<'static, W>>,
    ended: Option<Outcome>,
}

impl<W: Work> Side<W> {
    fn start(
        index: usize,
        mut adapter: ModelAdapter,
        start: impl FnOnce(&mut Adapter<'_, ModelPlatform>, &mut Rds<'_>) -> Result<W, AppError>,
    ) -> Self {
        let storage = Box::leak(Box::new(Storage::new()));
        let (random, stall_timeout) = (77 + index as u64, Duration::from_secs(60));
        let settings = Settings { random, generation: GENERATION, stall_timeout };
        let node = Node::with(&mut adapter, storage, settings, start).expect("starts");
        Self { adapter, node: Some(node), ended: None }
    }

    fn turn(&mut self, now: u64, report: fn(&W) -> Report) -> Next {
        let Self { adapter, node, ended } = self;
        let deadline = due(adapter.poll(Instant::from_nanos(now)));
        let Some(running) = node else { return Next::Done };
        *ended = Some(match running.poll(adapter, Instant::from_nanos(now)) {
            Ok(ControlFlow::Continue(wake)) => return sleep(adapter, now, [deadline, due(wake)]),
            Ok(ControlFlow::Break(())) => Ok((report(running.work()), *running.rds().counters())),
            Err(error) => Err(error),
        });
        node.take().expect("running").close(adapter).expect("closes");
        Next::Done
    }
}

/// Runs two sides to their ends, each from its start and its report.
fn meet<W: Work, V: Work>(
    (seed, faults): (u64, &str),
    (server, served): (
        impl FnOnce(&mut Adapter<'_, ModelPlatform>, &mut Rds<'_>) -> Result<W, AppError>,
        fn(&W) -> Report,
    ),
    (client, asked): (
        impl FnOnce(&mut Adapter<'_, ModelPlatform>, &mut Rds<'_>) -> Result<V, AppError>,
        fn(&V) -> Report,
    ),
) -> [Outcome; 2] {
    let world = world(seed, faults);
    let mut adapters = dat::open(&world, seed, 2, MEMORY).expect("adapters");
    let free = adapters.iter().map(|adapter| adapter.hca().free_bytes()).collect::<Vec<_>>();
    let other = adapters.remove(1);
    let mut server = Side::start(0, adapters.remove(0), server);
    let mut client = Side::start(1, other, client);
    world
        .run(
            &mut [Task::new(0, |now| server.turn(now, served)), Task::new(1, |now| client.turn(now, asked))],
            3600 * SECOND,
        )
        .unwrap_or_else(|stalled| panic!("{stalled}"));
    let left = [server.adapter.hca().free_bytes(), client.adapter.hca().free_bytes()];
    assert_eq!(free, left, "all memory was freed");
    [server.ended, client.ended].map(|ended| ended.expect("ended"))
}

/// Runs a script to its end. Returns the reports and counters, the server's first.
fn run(seed: u64, faults: &str, script: Script, rounds: u32) -> [(Report, Counters); 2] {
    let [server, client] = meet(
        (seed, faults),
        (Server::start, Server::report),
        (|adapter, rds| Client::start(adapter, rds, address(0), script, rounds), Client::report),
    );
    // The client reports wrong bytes.
    let client = client.unwrap_or_else(|error| panic!("{error}; server: {server:?}"));
    [server.unwrap_or_else(|error| panic!("server: {error}")), client]
}

/// Runs flows with a count and a seed on each side.
fn flows(seed: u64, faults: &str, [server, client]: [(u64, u64); 2]) -> [Outcome; 2] {
    meet(
        (seed, faults),
        (|adapter, rds| Flows::start(adapter, rds, Role::Server, address(1), server), Flows::report),
        (|adapter, rds| Flows::start(adapter, rds, Role::Client, address(0), client), Flows::report),
    )
}

#[test]
fn messages_of_all_sizes_arrive_once_and_in_order() {
    for (seed, faults) in [(4, "none"), (5, "loss=1%,dup=1%,reorder=1%")] {
        let [server, client] =
            flows(seed, faults, [(1500, seed); 2]).map(|end| end.expect("success").0.result);
        assert!(server.bytes > 8 << 20, "{server}");
        for side in [server, client] {
            assert_eq!((side.messages, side.verified, side.bytes), (1500, 1500, server.bytes), "{side}");
        }
    }
}

#[test]
fn another_seed_is_a_wrong_message_and_another_count_stalls() {
    let stalled = |end: &Outcome| matches!(end, Err(AppError::Stalled { moved: 64, .. }));
    let [server, client] = flows(6, "none", [(64, 1), (64, 2)]);
    assert!(matches!(server, Err(AppError::Wrong { at: 0, .. })), "{server:?}");
    assert!(stalled(&client), "{client:?}");
    let ends = flows(7, "none", [(65, 1), (64, 1)]);
    assert!(ends.iter().all(stalled), "{ends:?}");
}

#[test]
fn every_length_with_every_flag_and_each_failure() {
    for (seed, faults) in [(51, "none"), (52, BAD)] {
        let [(served, _), (report, counters)] = run(seed, faults, Script::Rdma, 1);
        // 12 lengths, 4 kinds of offers, 4 kinds of operations, 2 directions; 2 more regions are used
        // before they are freed, in 2 directions, and 2 have atomics.
        assert_eq!(
            (report.result.messages, report.failed, report.atomics),
            (12 * 4 * 4 * 2 + 4 + 2, 5 * 2, 2),
            "{report}"
        );
        assert!(report.result.bytes > 30 << 20, "{report}");
        assert_eq!(served.wrong, 0, "{served}");
        // Without faults each denial arrives, and no other event breaks a connection.
        let again = served.result.messages - (12 * 4 * 4 * 2 + 6 * 2);
        assert!(again <= report.dropped && (faults != "none" || report.dropped == 0), "{report}");
        assert!(counters.conn_reset >= report.failed + report.dropped, "{counters:?}");
    }
}

#[test]
fn a_port_that_is_not_read_closes_alone_and_opens_again() {
    const ROUNDS: u64 = 4;
    for (seed, faults) in [(53, "none"), (54, BAD)] {
        let [(served, server), (report, client)] = run(seed, faults, Script::Congestion, ROUNDS as u32);
        assert_eq!((report.updates, report.refused), (2 * ROUNDS, ROUNDS * (1 + 2 + 2 + 1)), "{report}");
        assert!(served.result.messages >= ROUNDS * (7 + 20 + 5) && served.wrong == 0, "{served}");
        assert_eq!(client.cong_send_error, report.refused);
        // The server drops the messages to the closed socket, and no other.
        assert_eq!(server.recv_drop_no_sock, ROUNDS);
        assert_eq!(client.conn_reset, 0);
    }
}
