//! The machine's side of the programs.

mod perftest;
mod rds;
mod verbs;

use apps::Role;
use unikernel::failure::{Failure, conclude};
use unikernel::options::Error;
use unikernel::{ExitCode, Key, Machine, Options};
use workload::rds::Script;

unikernel::entry!(main);

const KEYS: [Key; 12] = [
    Key::new(
        "program",
        "verbs, perftest, rds_messages, rds_server, rds_rdma or rds_congestion",
        "which program runs",
    ),
    Key::new("role", "server or client", "the side; the client begins"),
    Key::new("wait", "a decimal number", "seconds to wait for the peer; default 60"),
    Key::new("ip", "an IP address, perhaps with /24", "address of this node"),
    Key::new("mtu", "a number of bytes", "largest payload of an Ethernet port's frames; default 1500"),
    Key::new("vlan", "a number from 1 to 4094", "VLAN of an Ethernet port"),
    Key::new("to", "an IPv4 address", "address of the peer; a server of scripts takes any"),
    Key::new("count", "a decimal number", "messages, or rounds of a script; default 1"),
    Key::new("seed", "a decimal number", "varies the messages, the same on both sides; default 1"),
    Key::new("grace", "a decimal number", "seconds from one recovery of the HCA to the next; default 60"),
    Key::new("stall", "a decimal number", "seconds without progress that fail a run; default 60"),
    Key::new(
        "hca",
        "a decimal number, a PCI address as in 3b:00.0, or a port's GUID as in 0x248a070300abcdef",
        "which HCA, of several; default 0, the first",
    ),
];

fn main(machine: &mut Machine) -> ExitCode {
    conclude(run(machine))
}

fn run(machine: &mut Machine) -> Result<(), Failure> {
    let options = machine.options(&KEYS)?;
    match options.get("program") {
        Some("verbs") => verbs::run(machine, &options),
        Some("perftest") => perftest::serve(machine, &options),
        Some("rds_messages") => rds::messages(machine, &options),
        Some("rds_server") => rds::serve(machine, &options),
        Some("rds_rdma") => rds::ask(machine, &options, Script::Rdma),
        Some("rds_congestion") => rds::ask(machine, &options, Script::Congestion),
        _ => Err(missing("program")),
    }
}

fn role(options: &Options<'_>) -> Result<Role, Failure> {
    match options.get("role") {
        Some("server") => Ok(Role::Server),
        Some("client") => Ok(Role::Client),
        _ => Err(missing("role")),
    }
}

fn missing(key: &'static str) -> Failure {
    let expected = KEYS.iter().find(|known| known.name == key).map_or("", |known| known.takes);
    Error::Missing { key, expected }.into()
}
