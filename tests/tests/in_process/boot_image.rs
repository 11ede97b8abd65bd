//! Boot images over RDS and RDMA: server and client of `apps::boot` on two nodes.

use apps::boot::{Client, FetchError, Image, Name, Progress, Server, Settings, Store};
use apps::rds::{Node, Settings as NodeSettings, Storage};
use driver_mlx::Instant;
use harness::dat::{ModelAdapter, address, due, sleep};
use harness::rds::GENERATION;
use harness::{Next, Task, World, WorldConfig, dat, keep};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::time::Duration;

const MEMORY: usize = 32 << 20;
const SECOND: u64 = 1_000_000_000;
const MIB: usize = 1 << 20;
const INITRD: &[u8] = &[0x07; 5000];

/// Memory of the client.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Store for Memory {
    fn reserve(&mut self, bytes: usize) -> bool {
        assert!(self.0.is_empty(), "once");
        self.0 = vec![0xee; bytes];
        true
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Event at the server when the client has this many bytes.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// The server was never started.
    Absent,
    /// Its HCA leaves the bus.
    Dies(u64),
    /// It ends, and starts again with the same image or with another one.
    Restarts(u64, bool),
}

fn image(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

fn settings(node: usize) -> NodeSettings {
    NodeSettings { random: 5 + node as u64, generation: GENERATION, stall_timeout: Duration::MAX }
}

struct ServerSide {
    adapter: ModelAdapter,
    node: Option<Node<'static, Server<'static>>>,
}

impl ServerSide {
    fn start(&mut self, bytes: &[u8]) {
        let name = Name::new("payload.efi").expect("a name");
        let initrd = Name::new("initrd.img").expect("a name");
        let images = [(name, bytes), (initrd, INITRD)];
        let images = images.map(|(name, bytes)| Image::new(&mut self.adapter, name, bytes).expect("memory"));
        let images = keep(images.into_iter().collect::<Vec<_>>());
        let node = Node::with(&mut self.adapter, keep(Storage::new()), settings(0), |adapter, rds| {
            Server::start(adapter, rds, images)
        });
        self.node = Some(node.expect("starts"));
    }

    fn stop(&mut self) {
        if let Some(node) = self.node.take() {
            node.close(&mut self.adapter).expect("closes");
        }
    }
}

/// Reads an image with these settings, and then the initial RAM disk that they name. Returns how it ended, and the image's bytes.
fn read(seed: u64, faults: &str, line: &str, bytes: &[u8], trouble: Trouble) -> (Progress, Vec<u8>) {
    let faults: Faults = faults.parse().expect("faults");
    let config = WorldConfig::new(seed);
    let world =
        World::new(&WorldConfig { fabric: FabricConfig { faults, ..config.fabric.clone() }, ..config });
    let mut adapters = dat::open(&world, seed, 2, MEMORY).expect("adapters");
    let mut client = adapters.pop().expect("two");
    let server = RefCell::new(ServerSide { adapter: adapters.pop().expect("two"), node: None });
    if !matches!(trouble, Trouble::Absent) {
        server.borrow_mut().start(bytes);
    }
    let line = format!("ip={} server={} {line}", address(1), address(0));
    let boot = Settings::parse(&line).expect("settings");
    let free = client.hca().free_bytes();
    let (mut memory, mut initrd, mut storage) = (Memory::default(), Memory::default(), Storage::new());
    let node = Node::with(&mut client, &mut storage, settings(1), |adapter, rds| {
        Client::start(adapter, rds, &boot, boot.image, &mut memory)
    });
    let node = RefCell::new(Some(node.expect("starts")));
    let mut next = boot.initrd.map(|name| (name, &mut initrd));
    let (progress, trouble) = (Cell::new(Progress::Asking), Cell::new(trouble));
    {
        let server_turn = |now: u64| {
            let mut side = server.borrow_mut();
            let arrived = if let Progress::Reading(bytes, _) = progress.get() { bytes } else { 0 };
            match trouble.get() {
                Trouble::Dies(at) if arrived >= at => {
                    world.unplug(0);
                    trouble.set(Trouble::None);
                    side.node = None;
                    return Next::Done;
                }
                Trouble::Restarts(at, same) if arrived >= at => {
                    trouble.set(Trouble::None);
                    side.stop();
                    side.start(if same { bytes } else { &bytes[1..] });
                }
                _ => {}
            }
            if matches!(progress.get(), Progress::Done | Progress::Failed(_)) {
                side.stop();
                return Next::Done;
            }
            let ServerSide { adapter, node } = &mut *side;
            let deadline = due(adapter.poll(Instant::from_nanos(now)));
            let at = match node {
                Some(node) => match node.poll(adapter, Instant::from_nanos(now)).expect("serves") {
                    ControlFlow::Continue(wake) => due(wake).unwrap_or(u64::MAX),
                    ControlFlow::Break(()) => panic!("a server does not end"),
                },
                None => u64::MAX,
            };
            // It looks at the client's progress now and then.
            sleep(adapter, now, [deadline, Some(at.min(now + SECOND / 100))])
        };
        let client_turn = |now: u64| {
            let mut place = node.borrow_mut();
            let Some(running) = place.as_mut() else { return Next::Done };
            let deadline = due(client.poll(Instant::from_nanos(now)));
            let status = running.poll(&mut client, Instant::from_nanos(now)).expect("no call fails");
            let found = running.work().progress();
            if found == Progress::Done
                && status.is_break()
                && let Some((name, memory)) = next.take()
            {
                running.work_mut().fetch_next(name, memory, Instant::from_nanos(now));
                return Next::Again;
            }
            progress.set(found);
            match status {
                ControlFlow::Continue(wake) => sleep(&mut client, now, [deadline, due(wake)]),
                ControlFlow::Break(()) => {
                    place.take().expect("running").close(&mut client).expect("closes");
                    Next::Done
                }
            }
        };
        let mut tasks = [Task::new(0, server_turn), Task::new(1, client_turn)];
        world.run(&mut tasks, 600 * SECOND).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
    assert_eq!(client.hca().free_bytes(), free, "the client returned all memory");
    if progress.get() == Progress::Done {
        assert_eq!(initrd.0, if boot.initrd.is_some() { INITRD } else { &[] });
    }
    (progress.get(), memory.0)
}

#[test]
fn images_of_all_sizes_arrive_also_on_a_bad_fabric() {
    for (seed, faults) in [(1, "none"), (2, "loss=1%,dup=1%,reorder=1%")] {
        for size in [1, 4095, MIB, MIB + 1, 3 * MIB + 5] {
            let bytes = image(size, 7);
            let (progress, found) =
                read(seed, faults, "image=payload.efi initrd=initrd.img", &bytes, Trouble::None);
            assert_eq!(progress, Progress::Done, "{size} bytes, {faults}");
            assert!(found == bytes, "{size} bytes, {faults}");
        }
    }
}

#[test]
fn a_server_that_is_absent_or_dies_is_reported_in_time() {
    let bytes = image(4 * MIB, 1);
    let failed = |trouble| read(3, "none", "wait=5", &bytes, trouble).0;
    assert_eq!(failed(Trouble::Absent), Progress::Failed(FetchError::NoServer));
    let Progress::Failed(FetchError::Stopped(arrived)) = failed(Trouble::Dies(MIB as u64)) else {
        panic!("it does not go on without a server");
    };
    assert!((MIB as u64..4 << 20).contains(&arrived) && arrived.is_multiple_of(MIB as u64), "{arrived}");
}

#[test]
fn a_server_that_restarts_goes_on_unless_its_image_changed() {
    let bytes = image(4 * MIB, 2);
    let restarted = |same| read(4, "none", "", &bytes, Trouble::Restarts(MIB as u64, same));
    let (progress, found) = restarted(true);
    assert_eq!(progress, Progress::Done);
    assert!(found == bytes);
    assert_eq!(restarted(false).0, Progress::Failed(FetchError::Changed));
}

#[test]
fn images_that_are_missing_or_too_large_are_refused() {
    let bytes = image(MIB + 1, 3);
    let failed = |line| read(5, "none", line, &bytes, Trouble::None).0;
    for (line, name) in [("image=other.efi", "other.efi"), ("initrd=other.img", "other.img")] {
        let name = Name::new(name).expect("a name");
        assert_eq!(failed(line), Progress::Failed(FetchError::NoImage(name)));
    }
    assert_eq!(failed("limit=1"), Progress::Failed(FetchError::Size(MIB as u64 + 1)));
}
