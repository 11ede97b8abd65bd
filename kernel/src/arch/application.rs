//! The one application of the image, by [`entry!`](crate::entry).

use crate::exit::ExitCode;
use crate::machine::Machine;

unsafe extern "Rust" {
    #[link_name = "__unikernel_main"]
    safe fn application_main(machine: &mut Machine) -> ExitCode;
}

/// Calls it.
pub fn run(machine: &mut Machine) -> ExitCode {
    application_main(machine)
}
