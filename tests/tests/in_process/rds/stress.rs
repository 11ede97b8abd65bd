//! `app=rds mode=stress` against itself in one process: messages and RDMA with the switches of rds-stress, both sides' bytes compared.

use apps::Role;
use apps::stress::{Config, Options, Row, Say, Stress, StressError, StressStorage};
use dat_nostd::net::smoltcp::iface::SocketStorage;
use dat_nostd::net::{Host, PacketBuffers};
use dat_nostd::{AdapterConfig, IpConfig, adapter_storage};
use driver_mlx::{DmaRegion, Instant};
use harness::dat::{HCA, ModelAdapter, address, due, register, sleep};
use harness::rds::GENERATION;
use harness::{ModelBar, ModelPlatform, Next, Task, World, WorldConfig};
use hca_model::Profile;
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::time::Duration;

const MEMORY: usize = 48 << 20;
const SECOND: u64 = 1_000_000_000;
/// Of the fabric, so that what is under way bounds what is exchanged; nanoseconds.
const LATENCY: u64 = 3_000_000;

adapter_storage! {
    struct Tables {
        bar: ModelBar, dma_bytes: 64 << 20, eps: 16, evds: 16, lmrs: 160, events: 256,
        connections: 32,
    }
}

fn ip_of(node: usize) -> Ipv4Addr {
    match address(node) {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!("the world's addresses are IPv4"),
    }
}

/// An adapter with IP, which knows nobody.
fn open(platform: ModelPlatform, region: DmaRegion) -> ModelAdapter {
    let node = platform.node();
    let storage = Box::leak(Box::new(Tables::new()));
    let config = AdapterConfig {
        generation: 1,
        hca: HCA,
        ip: Some(IpConfig { prefix_len: 16, ..IpConfig::DEFAULT }),
        ..AdapterConfig::new("ib0", address(node), &[], 0x57_0000 + node as u128)
    };
    let mut adapter = ModelAdapter::open(platform, region, harness::host_region(), storage.parts(), &config)
        .expect("opens");
    register(&mut adapter, 0);
    adapter
}

/// A side: its run from when IP is up, and what it said.
struct Side {
    node: usize,
    adapter: ModelAdapter,
    config: Config,
    running: Option<(Host<'static>, Stress<'static>)>,
    /// Bytes of memory that were free before it began.
    free: usize,
    said: Vec<Say>,
    ended: Option<Result<(), StressError>>,
}

impl Side {
    fn start(&mut self, now: u64) {
        let node = self.node;
        let packets = Box::leak(Box::new(PacketBuffers::new()));
        let host =
            Host::new(&mut self.adapter, packets, node as u64, Instant::from_nanos(now)).expect("IP is up");
        self.free = self.adapter.hca().free_bytes();
        let storage = Box::leak(Box::new(StressStorage::new()));
        let slot = Box::leak(Box::new(SocketStorage::EMPTY));
        let Self { adapter, config, said, .. } = self;
        let app = Stress::start(adapter, storage, slot, *config, &mut |say| said.push(say));
        self.running = Some((host, app.expect("starts")));
    }

    fn turn(&mut self, now: u64) -> Next {
        let deadline = due(self.adapter.poll(Instant::from_nanos(now)));
        if self.running.is_none() {
            if !self.adapter.ip().is_some_and(|ip| ip.is_up()) {
                return sleep(&mut self.adapter, now, [deadline, Some(now + SECOND / 100)]);
            }
            self.start(now);
        }
        let Self { adapter, running: Some((host, app)), said, .. } = self else { return Next::Done };
        let end = match app.poll(adapter, host, Instant::from_nanos(now), &mut |say| said.push(say)) {
            Ok(ControlFlow::Continue(wake)) => return sleep(adapter, now, [deadline, due(wake)]),
            Ok(ControlFlow::Break(())) => Ok(()),
            Err(error) => Err(error),
        };
        self.ended = Some(end);
        let (_, app) = self.running.take().expect("running");
        app.close(&mut self.adapter).expect("closes");
        assert_eq!(self.adapter.hca().free_bytes(), self.free, "all memory was given back");
        Next::Done
    }

    fn average(&self) -> Row {
        let rows = self.said.iter().rev();
        let mut averages = rows.filter_map(|say| match say {
            Say::Row(row) if row.is_average => Some(*row),
            _ => None,
        });
        averages.next().expect("an average")
    }
}

/// A passive and an active side with these switches, to their ends.
fn run(seed: u64, faults: &str, switches: &str) -> [Side; 2] {
    let (options, cpu) = Options::from_switches(switches).expect("switches");
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    let world = World::new(&WorldConfig {
        fabric: FabricConfig { faults, latency: LATENCY, ..config.fabric.clone() },
        ..config
    });
    let attached: Vec<_> = (0..2).map(|node| world.attach(Profile::node(node), MEMORY)).collect();
    let adapters: Vec<_> = attached.into_iter().map(|(platform, region)| open(platform, region)).collect();
    let sides: Vec<RefCell<Side>> = adapters
        .into_iter()
        .zip([Role::Server, Role::Client])
        .enumerate()
        .map(|(node, (adapter, role))| {
            let config = Config {
                peer: (role == Role::Client).then(|| ip_of(0)),
                options,
                cpu,
                random: seed,
                generation: GENERATION,
                connect_timeout: Duration::from_secs(60),
            };
            RefCell::new(Side { node, adapter, config, running: None, free: 0, said: vec![], ended: None })
        })
        .collect();
    {
        let tasks = sides.iter().enumerate();
        let mut tasks: Vec<Task<'_>> =
            tasks.map(|(node, side)| Task::new(node, move |now| side.borrow_mut().turn(now))).collect();
        world.run(&mut tasks, 3600 * SECOND).unwrap_or_else(|stalled| panic!("{switches}: {stalled}"));
    }
    let mut sides = sides.into_iter().map(RefCell::into_inner);
    [sides.next().expect("two"), sides.next().expect("two")]
}

/// The tables of a side are made on the stack, which has to be large for them.
fn with_room(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(test).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Both ended well.
fn well(seed: u64, faults: &str, switches: &str) -> [Row; 2] {
    run(seed, faults, switches).map(|side| {
        assert_eq!(side.ended, Some(Ok(())), "{switches}: {:#?}", side.said);
        let row = side.average();
        println!("{switches}: {row}");
        row
    })
}

#[test]
fn messages_go_both_ways_and_are_answered() {
    with_room(|| {
        for (seed, faults) in [(1, "none"), (2, "loss=1%,dup=1%,reorder=1%")] {
            let [passive, active] = well(seed, faults, "-q4000,-a200,-t2,-d4,-T2,-v,-c");
            for row in [passive, active] {
                assert!(row.tasks == 2 && row.sent > 100 && row.received > 100 && row.answer_us > 0, "{row}");
                assert_eq!((row.rdma_in, row.rdma_out), (0, 0));
                assert!(row.cpu.is_some_and(|share| share <= 10_000));
            }
        }
        let [passive, active] = well(3, "none", "-q64,-a63,-d8,-o,-T1,-Q2,-v");
        assert!(active.sent > 100 && passive.received > 100);
        assert_eq!((active.received, passive.sent), (0, 0), "one way only");
    });
}

#[test]
fn memory_is_read_and_written() {
    with_room(|| {
        let all = [
            "-D8192,-t2,-d2,-T2,-v",
            "-D4096,-I3,-d2,-T1,-v,--rdma-alignment=8",
            "-D512,-I20,-T1,-v,--rdma-use-once=1",
            "-D65536,-d2,-T1,-v,--rdma-use-get-mr=1",
            "-D4096,-d2,-T1,-v,--rdma-cache-mrs=1,--rdma-use-fence=0",
        ];
        for (seed, switches) in (10..).zip(all) {
            for row in well(seed, "none", switches) {
                assert!(row.rdma_in > 0 && row.rdma_out > 0 && row.sent > 10, "{switches}: {row}");
            }
        }
        // The longest operations, several in flight, each into memory that is offered once.
        for (seed, faults) in [(15, "none"), (16, "loss=0.5%,dup=1%,reorder=1%")] {
            for row in well(seed, faults, "-D1048576,-d4,-T2,-v,--rdma-use-once=1") {
                assert!(row.rdma_in > 100 * (8 << 10) && row.rdma_out > 100 * (8 << 10), "{faults}: {row}");
            }
        }
        let [passive, active] = well(20, "none", "-D4096,-M1,-o,-T1,-v");
        assert!(passive.rdma_in > 0 && active.rdma_out > 0, "{active}");
        assert_eq!((passive.rdma_out, active.rdma_in), (0, 0), "what the active side offers is read");
        let [passive, active] = well(21, "none", "-D4096,-M2,-o,-T1,-v");
        assert!(passive.rdma_out > 0 && active.rdma_in > 0, "{active}");
        assert_eq!((passive.rdma_in, active.rdma_out), (0, 0), "what the active side offers is written");
    });
}

#[test]
fn a_row_each_second_and_an_average() {
    with_room(|| {
        let [passive, active] = run(30, "none", "-T3");
        let text: Vec<String> = active.said.iter().map(ToString::to_string).collect();
        assert_eq!(text[0], format!("connecting to {}:4000", ip_of(0)));
        assert_eq!(text[1], "negotiated options, tasks will start in 2 seconds");
        assert!(text[2].starts_with("tsks   tx/s   rx/s"), "{text:?}");
        assert!(
            (5..=8).contains(&text.len()) && text.last().is_some_and(|line| line.ends_with("  (average)"))
        );
        let [waiting, accepted, ..] = passive.said.as_slice() else { panic!("{:?}", passive.said) };
        assert_eq!((*waiting, *accepted), (Say::Waiting(4000), Say::Accepted(ip_of(1))));
        let quiet = run(31, "none", "-T2,-z").map(|side| side.said.len());
        assert_eq!(quiet, [5, 4], "the average alone");
    });
}
