//! The applications in the image, chosen by `app=` on the command line. Each gives the machine's exit code.

mod demo;
mod fault;
mod hca;
mod hello;
mod idle;
mod ip;
mod msix;
mod node;
mod rds;
mod rping;
mod verbs;

use kernel::cmdline::App;
use kernel::exit::ExitCode;

use crate::machine::Machine;

/// Runs the application.
pub fn run(machine: &Machine<'_>) -> ExitCode {
    match machine.options.app {
        App::Hello => hello::run(machine),
        App::Fault => fault::run(machine),
        App::Idle => idle::run(),
        App::Hca => hca::run(machine),
        App::Demo => demo::run(machine),
        App::Msix => msix::run(machine),
        App::Verbs => verbs::run(machine),
        App::Ip => ip::serve(machine),
        App::Ping => ip::ping(machine),
        App::Tcp => ip::tcp(machine),
        App::Rping => rping::run(machine),
        App::Rds => rds::run(machine),
    }
}
