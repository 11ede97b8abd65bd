//! `app=rping`: a side of rdmacm-utils' `rping`. The server may take several clients, one after the other; then one that is lost is
//! told and no failure.

use core::ops::ControlFlow;

use apps::Role;
use apps::rping::{Config, DEFAULT_PORT, Rping, RpingError, SIZES};
use driver_mlx::{Duration, Error};
use unikernel::ExitCode;
use unikernel::options;

use unikernel::Clock;
use unikernel::adapter::{self, Adapter, NAME};

use crate::cmdline::Options;
use crate::node::{self, Failure};
use unikernel::Machine;
use unikernel::println;

fn config(options: &Options<'_>) -> Result<Config, options::Error<'static>> {
    let role = node::role(options)?;
    if !SIZES.contains(&options.size) {
        return Err(node::missing("size", "26 to 65535 bytes"));
    }
    let peer = match role {
        Role::Client => node::peer(options)?,
        // Whoever comes.
        Role::Server => core::net::Ipv4Addr::UNSPECIFIED.into(),
    };
    Ok(Config {
        role,
        ia: NAME,
        peer,
        port: options.port.unwrap_or(DEFAULT_PORT),
        size: options.size,
        count: options.count,
        verify: options.verify,
        connect_timeout: Duration::from_secs(options.wait_seconds),
        stall_timeout: Duration::from_secs(options.stall_seconds),
    })
}

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let clock = machine.clock();
    node::run(machine, options, config(options), |adapter, config| {
        node::wait_if_ip(adapter, clock)?;
        let sessions = if config.role == Role::Server { options.sessions } else { 1 };
        let free = adapter.hca().free_bytes();
        for session in 0..sessions {
            let outcome = one(adapter, clock, config);
            if let Some(cause) = adapter.hca().fatal() {
                return Err(Failure::DeviceLost(Error::Fatal(cause)));
            }
            let left = free.saturating_sub(adapter.hca().free_bytes());
            if left != 0 {
                return Err(Failure::app(format_args!(
                    "{left} bytes were not given back after session {session}"
                )));
            }
            match outcome {
                Ok(()) => {}
                Err(Ended::Lost(error)) if sessions > 1 => {
                    println!("@session number={session} lost: {error}")
                }
                Err(Ended::Lost(error)) => return Err(Failure::app(error)),
                Err(Ended::Failed(failure)) => return Err(failure),
            }
        }
        node::linger(adapter, clock)
    })
}

enum Ended {
    Lost(RpingError),
    Failed(Failure),
}

/// One connection from its beginning to its end.
fn one(adapter: &mut Adapter<'_>, clock: Clock, config: &Config) -> Result<(), Ended> {
    let mut rping = Rping::start(adapter, *config).map_err(Ended::Lost)?;
    if config.role == Role::Server {
        println!("@rping listening port={}", config.port);
    }
    let mut lost = None;
    let mut failed = None;
    let driven = adapter::drive(adapter, clock, |adapter, now| {
        let status = rping.poll(adapter, now).or_else(|error| {
            lost = Some(error);
            Ok(ControlFlow::Break(()))
        });
        let attempts = rping.failed_attempts();
        if failed != attempts
            && let Some((attempt, event)) = attempts
        {
            println!("@rping failed_attempt={attempt} event={event:?}");
        }
        failed = attempts;
        status
    });
    let report = rping.report();
    println!("@rping iterations={} bytes={} ns={}", report.iterations, report.bytes, report.ns);
    let closed = rping.close(adapter);
    driven.map_err(Ended::Failed)?;
    match lost {
        // What cannot be freed after that is a consequence.
        Some(
            error @ (RpingError::Dat { .. } | RpingError::Mismatch { .. } | RpingError::NotConnected { .. }),
        ) => Err(Ended::Failed(Failure::app(error))),
        Some(error) => {
            closed.map_err(|error| Ended::Failed(Failure::app(error))).and(Err(Ended::Lost(error)))
        }
        None => closed.map_err(Ended::Lost),
    }
}
