//! `rdma-lab`: RDMA tests without hardware.

use rdma_lab::command_line::{self, Host};
use std::process::ExitCode;

// Every build must unwind, so that a panic stops only the HCA in which it occurs.
const _: () = assert!(cfg!(panic = "unwind"), "build rdma-lab in a profile whose panics unwind");

fn main() -> ExitCode {
    let host = Host { name: "rdma-lab", own_image: None };
    command_line::main(&host, &[("commands", command_line::for_users())])
}
