//! `app=rping`: a side of rdmacm-utils' `rping`. The server may take several clients, one after the other; then one that is lost is
//! told and no failure.

use apps::Role;
use apps::rping::{Config, DEFAULT_PORT, Rping, RpingError, SIZES};
use dat_nostd::Adapter;
use kernel::cmdline;
use kernel::exit::ExitCode;

use crate::app::node::{self, ADAPTER, Failure, Node, SECOND};
use crate::console::println;
use crate::machine::Machine;
use crate::platform::BareMetal;

fn config(machine: &Machine<'_>) -> Result<Config, cmdline::Error<'static>> {
    let options = &machine.options;
    let role = node::role(machine)?;
    if !SIZES.contains(&options.size) {
        return Err(node::missing("size", "26 to 65535 bytes"));
    }
    let peer = match role {
        Role::Client => node::peer(machine)?,
        // Whoever comes.
        Role::Server => core::net::Ipv4Addr::UNSPECIFIED,
    };
    Ok(Config {
        role,
        ia: ADAPTER,
        peer: peer.into(),
        port: options.port.unwrap_or(DEFAULT_PORT),
        size: options.size,
        count: options.count,
        verify: options.verify,
        connect_timeout: options.wait_seconds.saturating_mul(SECOND),
        stall_timeout: options.stall_seconds.saturating_mul(SECOND),
    })
}

pub fn run(machine: &Machine<'_>) -> ExitCode {
    let setup = Node::from(machine).and_then(|node| Ok((node, config(machine)?)));
    node::run(machine, setup, |adapter, config| {
        if adapter.ip().is_some() {
            node::wait_ip_up(adapter)?;
        }
        let sessions = if config.role == Role::Server { machine.options.sessions } else { 1 };
        let free = adapter.hca().free_bytes();
        for session in 0..sessions {
            let outcome = one(adapter, config);
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
        node::linger(adapter)
    })
}

enum Ended {
    Lost(RpingError),
    Failed(Failure),
}

/// One connection from its beginning to its end.
fn one(adapter: &mut Adapter<'_, BareMetal>, config: &Config) -> Result<(), Ended> {
    let mut rping = Rping::start(adapter, *config).map_err(Ended::Lost)?;
    if config.role == Role::Server {
        println!("@rping listening port={}", config.port);
    }
    let mut lost = None;
    let driven = node::drive(adapter, |adapter, now| {
        rping.poll(adapter, now).or_else(|error| {
            lost = Some(error);
            Ok(apps::Status::Done)
        })
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
