//! `app=demo`: one node of the demonstration. Moves data to and from its peer by DAT and RDS, checks every byte, and tells the
//! host how it goes: `@step`, `@progress`, `@result` and `@done` lines. The other node is found by its IP address, or by
//! `neighbours=` on the command line.

use demo::{Config, Demo, Operation, OperationResult, Reporter, Storage, Volume};
use unikernel::ExitCode;
use unikernel::Mutex;
use unikernel::options;

use driver_mlx::Duration;
use unikernel::Clock;
use unikernel::adapter::{self, Adapter};

use crate::cmdline::Options;
use crate::node::{self, Failure};
use unikernel::Machine;
use unikernel::println;

/// Port of the DAT service.
const PORT: u16 = 7471;
/// How long nothing may move.
const STALL: Duration = Duration::from_secs(30);

static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());

fn config(machine: &Machine, options: &Options<'_>) -> Result<Config, options::Error<'static>> {
    let peer = node::peer(options)?;
    Ok(Config {
        role: node::role(options)?,
        peer,
        port: PORT,
        volume: Volume::FULL.divided_by(options.divide),
        seed: options.seed,
        generation: node::generation(machine),
        connect_timeout: Duration::from_secs(options.wait_seconds),
        stall_timeout: STALL,
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

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let (setup, clock) = (config(machine, options), machine.clock());
    node::run(machine, options, setup, |adapter, config| work(adapter, clock, config))
}

fn work(adapter: &mut Adapter<'_>, clock: Clock, config: &Config) -> Result<(), Failure> {
    let mut storage = STORAGE.lock();
    node::wait_if_ip(adapter, clock)?;
    let mut demo = Demo::start(adapter, &mut storage, *config).map_err(Failure::app)?;
    // After a failure the objects go with the HCA.
    adapter::drive(adapter, clock, |adapter, now| {
        demo.poll(adapter, now, &mut Console).map_err(Failure::app)
    })?;
    let counters = demo.rds_counters();
    println!(
        "rds: {} messages queued, {} delivered, {} acknowledgement frames, {} starved of receives",
        counters.send_queued, counters.recv_delivered, counters.ack_sent, counters.rx_ring_starved
    );
    let closed = demo.close(adapter).map_err(Failure::app);
    node::linger(adapter, clock).and(closed)
}
