//! `hca-serve`: emulated ConnectX-5 HCAs for any QEMU and any guest.

use std::process::ExitCode;

// Every build must unwind, so that a panic stops only the HCA in which it occurs.
const _: () = assert!(cfg!(panic = "unwind"), "build hca-serve in a profile whose panics unwind");

fn main() -> ExitCode {
    hca_serve::product::command_line::main("hca-serve", lexopt::Parser::from_env())
}
