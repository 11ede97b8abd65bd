//! The demonstration's workload between two processes: DAT messages, RDMA writes and reads, RDS
//! datagrams, every byte compared.

mod node;

use demo::{Config, Demo, Generation, Operation, OperationResult, Reporter, Role, Storage, Volume};
use node::{Arguments, Outcome, drive, run};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A line for each operation.
struct Lines;

impl Reporter for Lines {
    fn progress(&mut self, _: Operation, _: u64, _: u64) {}

    fn result(&mut self, result: &OperationResult) {
        println!(
            "{}: {} messages, {} bytes, {} ms, verified={}",
            result.operation.name(),
            result.messages,
            result.bytes,
            result.ns / 1_000_000,
            result.verified
        );
    }
}

fn main() -> ExitCode {
    node::end(work())
}

fn work() -> Outcome<()> {
    let about = "The demonstration's workload; --count divides it. The node with the lower address is the server; both need --peer";
    let arguments = Arguments::read(about, 8)?;
    let peer = arguments.peer.ok_or("--peer is missing: the other node's IPv4 address")?;
    let boot = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let config = Config {
        role: if arguments.ip < peer { Role::Server } else { Role::Client },
        peer: peer.into(),
        port: 7471,
        volume: Volume::FULL.divided_by(arguments.count.max(1).into()),
        seed: arguments.seed,
        generation: Generation::from_wall_clock(boot),
        connect_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(30),
    };
    run(&arguments, |adapter| {
        let storage: &'static mut Storage = Box::leak(Box::new(Storage::new()));
        let mut demo = Demo::start(adapter, storage, config)?;
        drive(adapter, |adapter, now| Ok(demo.poll(adapter, now, &mut Lines)?))?;
        demo.close(adapter)?;
        println!("verified");
        Ok(())
    })
}
