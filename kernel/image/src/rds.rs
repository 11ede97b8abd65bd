//! `app=rds`: Reliable Datagram Sockets with another unikernel or with Linux: pings and an echo server. Tells
//! what `rds-info` tells on Linux at its end, and whenever `@info` comes on the console, perhaps with options of it; `@quit` ends it.

use apps::rds::{AppError, Config, ECHO_PORT, Mode, RdsApp, Report, Settings, Storage};
use driver_mlx::Duration;
use unikernel::ExitCode;
use unikernel::Mutex;
use unikernel::options;

use unikernel::Clock;
use unikernel::adapter::Adapter;

use crate::cmdline::Options;
use crate::info;
use crate::names::RdsMode;
use crate::node::{self, Failure, QuitLine};
use unikernel::Machine;
use unikernel::println;

static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());

fn config(machine: &Machine, options: &Options<'_>) -> Result<Config, options::Error<'static>> {
    let mode = match options.mode.ok_or(node::missing("mode", "ping or echo"))? {
        RdsMode::Ping => {
            let interval = Duration::from_millis(options.interval_millis);
            Mode::Ping { count: options.count, interval }
        }
        RdsMode::Echo => Mode::Echo,
        // An application of its own.
        RdsMode::Stress => return Err(node::missing("mode", "ping or echo")),
    };
    let peer = match mode {
        // Any node.
        Mode::Echo => core::net::Ipv4Addr::UNSPECIFIED.into(),
        _ => node::peer(options)?,
    };
    Ok(Config {
        mode,
        peer,
        settings: Settings {
            random: machine.seed() as u64,
            generation: node::generation(machine),
            stall_timeout: Duration::from_secs(options.stall_seconds),
        },
    })
}

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let (setup, clock) = (config(machine, options), machine.clock());
    node::run(machine, options, setup, |adapter, config| work(adapter, clock, config))
}

fn work(adapter: &mut Adapter<'_>, clock: Clock, config: &Config) -> Result<(), Failure> {
    node::wait_if_ip(adapter, clock)?;
    let mut storage = STORAGE.lock();
    let mut app = RdsApp::start(adapter, &mut storage, *config).map_err(Failure::app)?;
    if config.mode == Mode::Echo {
        println!("@rds listening port={ECHO_PORT}");
    }
    let mut quit = QuitLine::new();
    let driven = node::drive_on(adapter, clock, |adapter, now| {
        let Some(now) = now else {
            return node::carry_on(app.adapter_recovered(adapter), adapter);
        };
        let status = app.poll(adapter, now).map_err(Failure::app)?;
        let line = quit.poll_or(now, |line| info::answer(line, app.rds(), adapter));
        Ok(node::together(status, line))
    });
    info::list(app.rds(), adapter);
    tell(&mut app);
    let closed = app.close(adapter).map_err(|error: AppError| Failure::app(error));
    driven?;
    closed?;
    node::linger(adapter, clock)
}

/// How it went, on the console.
fn tell(app: &mut RdsApp<'_>) {
    match app.outcome().report {
        Report::Ping(ping) => println!(
            "@rds ping sent={} received={} lost={} min_us={} avg_us={} max_us={}",
            ping.sent,
            ping.received,
            ping.sent - ping.received,
            ping.min / 1000,
            ping.sum / u64::from(ping.received.max(1)) / 1000,
            ping.max / 1000
        ),
        Report::Echo(echo) => {
            println!(
                "@rds echo messages={} bytes={} too_long={} dropped={}",
                echo.messages, echo.bytes, echo.too_long, echo.dropped
            )
        }
    }
}
