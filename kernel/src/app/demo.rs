//! `app=demo`: one node of the demonstration. Moves data to and from its peer by DAT and RDS, checks every byte, and tells the
//! host how it goes: `@step`, `@progress`, `@result` and `@done` lines.

use core::net::{IpAddr, Ipv4Addr};

use dat_nostd::{Adapter, AdapterConfig, AdapterStorage, OpenError};
use demo::{Config, Demo, DemoError, Operation, OperationResult, Reporter, Role, Status, Storage, Volume};
use driver_mlx::{Error, Gid, MmioBar};
use heapless::Vec;
use kernel::cmdline::{self, MAX_NEIGHBOURS};
use kernel::exit::ExitCode;
use spin::Mutex;

use crate::arch::{clock, interrupts};
use crate::console::println;
use crate::machine::Machine;
use crate::platform::{BareMetal, Hardware};

/// Blocks of 4 KiB that the driver can manage: a DMA region of up to 256 MiB.
const BLOCKS: usize = 65_536;
/// One RDS connection and one of our own, and room for what is still closing.
type Tables = AdapterStorage<MmioBar, BLOCKS, 8, 16, 16, 256, 24>;

/// MSI-X vector 0 for asynchronous events, 1 for completions.
const HCA: driver_mlx::Config =
    driver_mlx::Config { async_vector: 0, completion_vector: 1, ..driver_mlx::Config::DEFAULT };
const VECTORS: u16 = 2;
/// Port of the DAT service.
const PORT: u16 = 7471;
/// How long nothing may move.
const STALL_NANOS: u64 = 30_000_000_000;
/// How long to go on after the end, so that a peer whose last message was lost gets its answer.
const LINGER_NANOS: u64 = 300_000_000;
const SECOND: u64 = 1_000_000_000;

static TABLES: Mutex<Tables> = Mutex::new(Tables::new());
static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());

/// What the command line says about this node.
struct Node {
    ip: Ipv4Addr,
    neighbours: Vec<dat_nostd::Neighbour, MAX_NEIGHBOURS>,
    config: Config,
}

impl Node {
    fn from(machine: &Machine<'_>) -> Result<Self, cmdline::Error<'static>> {
        let options = &machine.options;
        let missing = |key, expected| cmdline::Error::Missing { key, expected };
        let ip = options.ip.ok_or(missing("ip", "this node's IPv4 address"))?;
        let peer = options.peer.ok_or(missing("peer", "the other node's IPv4 address"))?;
        let role = match options.role.ok_or(missing("role", "server or client"))? {
            cmdline::Role::Server => Role::Server,
            cmdline::Role::Client => Role::Client,
        };
        let mut neighbours = Vec::new();
        for (address, gid) in &options.neighbours {
            // As many as the command line holds fit.
            let _ = neighbours.push((IpAddr::V4(*address), Gid(gid.octets())));
        }
        let config = Config {
            role,
            peer: peer.into(),
            port: PORT,
            volume: Volume::FULL.divided_by(options.divide),
            seed: options.seed,
            generation: machine.identity.boot_generation as u32,
            connect_timeout: options.wait_seconds.saturating_mul(SECOND),
            stall_timeout: STALL_NANOS,
        };
        Ok(Self { ip, neighbours, config })
    }
}

enum Failure {
    Platform(crate::platform::Error),
    Open(OpenError),
    Demo(DemoError),
    Hca(Error),
    DeviceLost(Error),
}

/// Prints what the host reads.
struct Console;

impl Reporter for Console {
    fn progress(&mut self, operation: Operation, done: u64, of: u64) {
        println!("@progress op={} done={done} of={of}", operation.name());
    }

    fn result(&mut self, result: &OperationResult) {
        println!(
            "@result op={} messages={} bytes={} ns={} lat_p50_ns={} lat_p99_ns={} verified={}",
            result.operation.name(),
            result.messages,
            result.bytes,
            result.ns,
            result.latency_median_ns,
            result.latency_p99_ns,
            result.verified
        );
    }
}

pub fn run(machine: &Machine<'_>) -> ExitCode {
    let node = match Node::from(machine) {
        Ok(node) => node,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::Usage;
        }
    };
    let mut hardware = match Hardware::open(machine, VECTORS) {
        Ok(hardware) => hardware,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::NoDevice;
        }
    };
    for (name, micros) in machine.steps.micros() {
        println!("@step name=boot_{name} us={micros}");
    }
    let mut result = node_life(machine, &mut hardware, &node);
    if let Err(Failure::Open(OpenError::Hca(Error::NicInterface(_)))) = result {
        println!("hca: left behind by somebody: function-level reset");
        result = hardware
            .reset(machine)
            .map_err(Failure::Platform)
            .and_then(|()| node_life(machine, &mut hardware, &node));
    }
    let code = match result {
        Ok(()) => ExitCode::Success,
        Err(failure) => {
            let (code, text): (_, &dyn core::fmt::Display) = match &failure {
                Failure::Platform(error) => (ExitCode::NoDevice, error),
                Failure::Open(error) => (ExitCode::Failed, error),
                Failure::Demo(error) => (ExitCode::Failed, error),
                Failure::Hca(error) => (ExitCode::Failed, error),
                Failure::DeviceLost(error) => (ExitCode::DeviceLost, error),
            };
            println!("error: {text}");
            code
        }
    };
    println!("@done verified={}", code == ExitCode::Success);
    code
}

fn node_life(machine: &Machine<'_>, hardware: &mut Hardware, node: &Node) -> Result<(), Failure> {
    let region = hardware.region().map_err(Failure::Platform)?;
    let mut tables = TABLES.lock();
    let mut storage = STORAGE.lock();
    let config = AdapterConfig {
        generation: machine.identity.boot_generation,
        hca: HCA,
        ..AdapterConfig::new("ib0", node.ip.into(), &node.neighbours, machine.identity.seed)
    };
    let start = clock::now();
    let mut adapter =
        Adapter::open(hardware.platform, region, tables.parts(), &config).map_err(Failure::Open)?;
    for time in adapter.hca().steps() {
        println!("@step name={} us={}", time.step.name(), time.took / 1000);
    }
    println!("@step name=adapter_open us={}", (clock::now() - start) / 1000);

    let mut demo = Demo::start(&mut adapter, &mut storage, node.config).map_err(Failure::Demo)?;
    let outcome = drive(&mut adapter, &mut demo);
    if outcome.is_ok() {
        let counters = demo.rds_counters();
        println!(
            "rds: {} messages queued, {} delivered, {} acknowledgement frames, {} starved of receives",
            counters.send_queued, counters.recv_delivered, counters.ack_sent, counters.rx_ring_starved
        );
    }
    if let Some(cause) = adapter.hca().fatal() {
        return Err(Failure::DeviceLost(Error::Fatal(cause)));
    }
    // After a failure the objects go with the HCA.
    let outcome = match outcome {
        Ok(()) => {
            let closed = demo.close(&mut adapter).map_err(Failure::Demo);
            linger(&mut adapter).and(closed)
        }
        Err(error) => Err(error),
    };
    let down = clock::now();
    let closed = adapter.close().map_err(Failure::Hca);
    println!("@step name=adapter_close us={}", (clock::now() - down) / 1000);
    outcome.and(closed)
}

/// Runs the demonstration to its end; the loop sleeps whenever there is nothing to do.
fn drive(adapter: &mut Adapter<'_, BareMetal>, demo: &mut Demo<'_>) -> Result<(), Failure> {
    loop {
        let now = clock::now();
        let adapter_deadline = adapter.poll(now);
        match demo.poll(adapter, now, &mut Console).map_err(Failure::Demo)? {
            Status::Done => return Ok(()),
            Status::Working(deadline) => {
                if let Some(cause) = adapter.hca().fatal() {
                    return Err(Failure::DeviceLost(Error::Fatal(cause)));
                }
                let deadline = adapter_deadline.map_or(deadline, |other| other.min(deadline));
                if deadline > now && adapter.prepare_idle(clock::now()) {
                    interrupts::idle(deadline);
                }
            }
        }
    }
}

fn linger(adapter: &mut Adapter<'_, BareMetal>) -> Result<(), Failure> {
    let end = clock::now() + LINGER_NANOS;
    loop {
        let now = clock::now();
        if now >= end {
            return Ok(());
        }
        let deadline = adapter.poll(now).map_or(end, |deadline| deadline.min(end));
        if adapter.prepare_idle(clock::now()) {
            interrupts::idle(deadline);
        }
    }
}
