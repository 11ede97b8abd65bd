//! `app=rds mode=stress`: rds-stress, active with `to=`, else passive. Prints its columns, and at the end what `rds-info` tells.

use apps::stress::{Config, Options as StressOptions, Stress, StressStorage};
use driver_mlx::Duration;
use unikernel::adapter::{self, Adapter};
use unikernel::net::smoltcp::iface::SocketStorage;
use unikernel::net::{Host, PacketBuffers};
use unikernel::options::Error;
use unikernel::{Clock, ExitCode, Machine, Mutex, println};

use crate::cmdline::Options;
use crate::info;
use crate::node::{self, Failure, QuitLine};

static STORAGE: Mutex<StressStorage> = Mutex::new(StressStorage::new());
static PACKETS: Mutex<PacketBuffers> = Mutex::new(PacketBuffers::new());

/// What the command line says.
fn config(machine: &Machine, options: &Options<'_>) -> Result<Config, Error<'static>> {
    let (stress, cpu) = StressOptions::from_switches(options.switches).map_err(|bad| {
        println!("switches: {bad}");
        node::missing("switches", "switches of rds-stress with commas between them")
    })?;
    Ok(Config {
        peer: options.peer.and_then(node::v4),
        options: StressOptions { port: options.port.unwrap_or(stress.port), ..stress },
        cpu,
        random: machine.seed() as u64,
        generation: node::generation(machine),
        connect_timeout: Duration::from_secs(options.wait_seconds),
    })
}

/// `app=rds mode=stress`.
pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let (setup, clock) = (config(machine, options), machine.clock());
    node::run(machine, options, setup, |adapter, config| work(adapter, clock, config))
}

fn work(adapter: &mut Adapter<'_>, clock: Clock, config: &Config) -> Result<(), Failure> {
    adapter::wait_ip_up(adapter, clock)?;
    let (mut packets, mut storage) = (PACKETS.lock(), STORAGE.lock());
    let mut host = Host::new(adapter, &mut packets, config.random, clock.now()).map_err(Failure::app)?;
    let mut slot = SocketStorage::EMPTY;
    let say = &mut |say| println!("{say}");
    let mut app = Stress::start(adapter, &mut storage, &mut slot, *config, say).map_err(Failure::app)?;
    let mut quit = QuitLine::new();
    let driven = adapter::drive(adapter, clock, |adapter, now| {
        let status = app.poll(adapter, &mut host, now, say).map_err(Failure::app)?;
        let line = quit.poll_or(now, |line| info::answer(line, app.rds(), adapter));
        Ok(node::together(status, line))
    });
    info::list(app.rds(), adapter);
    let closed = app.close(adapter).map_err(Failure::app);
    driven?;
    closed
}
