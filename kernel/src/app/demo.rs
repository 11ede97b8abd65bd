//! `app=demo`: one node of the demonstration. Moves data to and from its peer by DAT and RDS, checks every byte, and tells the
//! host how it goes: `@step`, `@progress`, `@result` and `@done` lines. The other node is found by its IP address, or by
//! `neighbours=` on the command line.

use dat_nostd::Adapter;
use demo::{Config, Demo, Operation, OperationResult, Reporter, Storage, Volume};
use kernel::cmdline;
use kernel::exit::ExitCode;
use spin::Mutex;

use crate::app::node::{self, Failure, Node, SECOND};
use crate::console::println;
use crate::machine::Machine;
use crate::platform::BareMetal;

/// Port of the DAT service.
const PORT: u16 = 7471;
/// How long nothing may move.
const STALL_NANOS: u64 = 30 * SECOND;

static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());

fn config(machine: &Machine<'_>) -> Result<Config, cmdline::Error<'static>> {
    let options = &machine.options;
    let peer = node::peer(machine)?;
    Ok(Config {
        role: node::role(machine)?,
        peer: peer.into(),
        port: PORT,
        volume: Volume::FULL.divided_by(options.divide),
        seed: options.seed,
        generation: machine.identity.boot_generation as u32,
        connect_timeout: options.wait_seconds.saturating_mul(SECOND),
        stall_timeout: STALL_NANOS,
    })
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
    let setup = Node::from(machine).and_then(|node| Ok((node, config(machine)?)));
    node::run(machine, setup, work)
}

fn work(adapter: &mut Adapter<'_, BareMetal>, config: &Config) -> Result<(), Failure> {
    let mut storage = STORAGE.lock();
    if adapter.ip().is_some() {
        node::wait_ip_up(adapter)?;
    }
    let mut demo = Demo::start(adapter, &mut storage, *config).map_err(Failure::app)?;
    // After a failure the objects go with the HCA.
    node::drive(adapter, |adapter, now| demo.poll(adapter, now, &mut Console).map_err(Failure::app))?;
    let counters = demo.rds_counters();
    println!(
        "rds: {} messages queued, {} delivered, {} acknowledgement frames, {} starved of receives",
        counters.send_queued, counters.recv_delivered, counters.ack_sent, counters.rx_ring_starved
    );
    let closed = demo.close(adapter).map_err(Failure::app);
    node::linger(adapter).and(closed)
}
