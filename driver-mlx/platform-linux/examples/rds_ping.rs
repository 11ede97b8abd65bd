//! RDS pings between two processes, as `rds-ping` has them, also with Linux's RDS on the other
//! side.

mod node;

use apps::rds::{Config, Generation, Mode, RdsApp, Report, Settings, Storage};
use dat_nostd::Wake;
use node::{Arguments, Outcome, Turn, drive_on, recover, run};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    node::end(work())
}

fn work() -> Outcome<()> {
    let arguments = Arguments::read("RDS pings: with --peer N pings, without an echo server for ever", 10)?;
    let mode = match arguments.peer {
        Some(_) => Mode::Ping { count: arguments.count, interval: Duration::from_millis(10) },
        None => Mode::Echo,
    };
    let boot = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let config = Config {
        mode,
        peer: IpAddr::V4(arguments.peer.unwrap_or(Ipv4Addr::UNSPECIFIED)),
        settings: Settings {
            random: arguments.seed ^ boot.as_secs(),
            generation: Generation::from_wall_clock(boot),
            stall_timeout: Duration::from_secs(30),
        },
    };
    run(&arguments, |adapter| {
        let storage: &'static mut Storage = Box::leak(Box::new(Storage::new()));
        let mut app = RdsApp::start(adapter, storage, config)?;
        println!("ready");
        let driven = drive_on(adapter, |adapter, turn| match turn {
            Turn::Poll(now) => Ok(app.poll(adapter, now)?),
            Turn::Lost(cause) => {
                println!("the HCA has failed: {cause}");
                recover(adapter)?;
                app.adapter_recovered(adapter)?;
                println!("recovered");
                Ok(ControlFlow::Continue(Wake::Now))
            }
        });
        if let Report::Ping(ping) = app.outcome().report {
            println!(
                "{} sent, {} answered, {} us on average",
                ping.sent,
                ping.received,
                ping.sum / u64::from(ping.received.max(1)) / 1000
            );
        }
        let closed = app.close(adapter);
        driven?;
        Ok(closed?)
    })
}
