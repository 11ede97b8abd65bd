//! `cargo xtask`: the project's commands.

use rdma_lab::command_line;
use runner::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    command_line::main(&commands::HOST, &commands::sections())
}
