//! `hca-serve`: emulated ConnectX-5 HCAs for any QEMU and any guest.

use std::process::ExitCode;

fn main() -> ExitCode {
    hca_serve::product::command_line::main("hca-serve", lexopt::Parser::from_env())
}
