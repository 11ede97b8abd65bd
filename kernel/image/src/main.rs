//! Our own applications, in one image: `app=` on the command line says which one runs. Each has a file of its own here, and uses
//! of the machine what every application on the unikernel has.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![deny(unsafe_code)]
#![allow(
    clippy::result_large_err,
    clippy::large_enum_variant,
    reason = "an error carries its words, once in a run, and there is no heap"
)]
#![cfg_attr(not(target_os = "none"), allow(dead_code, reason = "the machine's side is not there"))]

mod cmdline;
#[cfg(target_os = "none")]
mod demo;
#[cfg(target_os = "none")]
mod echo;
#[cfg(target_os = "none")]
mod fault;
#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "takes BARs away, as firmware may")]
mod hca;
#[cfg(target_os = "none")]
mod hello;
#[cfg(target_os = "none")]
mod idle;
#[cfg(target_os = "none")]
mod info;
#[cfg(target_os = "none")]
mod ip;
#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "lets a device raise interrupts")]
mod msix;
mod names;
#[cfg(target_os = "none")]
mod node;
#[cfg(target_os = "none")]
mod pair;
#[cfg(target_os = "none")]
mod rds;
#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "uses registers that no function has")]
mod remap;
#[cfg(target_os = "none")]
mod rping;
#[cfg(target_os = "none")]
mod selftest;
#[cfg(target_os = "none")]
mod serve;
#[cfg(target_os = "none")]
mod stress;

/// Which application runs.
#[cfg(target_os = "none")]
mod choice {
    use unikernel::{ExitCode, Machine, println};

    use crate::cmdline::{KEYS, Options};
    use crate::names::App;
    use crate::{demo, echo, fault, hca, hello, idle, ip, msix, pair, rds, remap, rping, selftest, serve};

    unikernel::entry!(run);

    fn run(machine: &mut Machine) -> ExitCode {
        let text = match machine.options(&KEYS) {
            Ok(_) => machine.command_line(),
            Err(error) => return usage(&error),
        };
        let options = match Options::parse(text) {
            Ok(options) => options,
            Err(error) => return usage(&error),
        };
        match options.app {
            App::Hello => hello::run(machine),
            App::Fault => fault::run(machine, &options),
            App::Idle => idle::run(machine),
            App::Hca => hca::run(machine, &options),
            App::Demo => demo::run(machine, &options),
            App::Msix => msix::run(machine),
            App::Ip => ip::serve(machine, &options),
            App::Ping => ip::ping(machine, &options),
            App::Tcp => ip::tcp(machine, &options),
            App::Rping => rping::run(machine, &options),
            App::Rds if options.mode == Some(crate::names::RdsMode::Stress) => {
                crate::stress::run(machine, &options)
            }
            App::Rds => rds::run(machine, &options),
            App::Echo => echo::run(machine, &options),
            App::Pair => pair::run(machine, &options),
            App::Remap => remap::run(machine, &options),
            App::Selftest => selftest::run(machine, &options),
            App::Serve => serve::run(machine, &options),
        }
    }

    fn usage(error: &unikernel::options::Error<'_>) -> ExitCode {
        println!("error: {error}");
        ExitCode::Usage
    }
}

/// On a host there is nothing to boot.
#[cfg(not(target_os = "none"))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "error: this is the unikernel; build it with --target x86_64-unknown-none and boot it with `cargo xtask`"
    );
    std::process::ExitCode::FAILURE
}
