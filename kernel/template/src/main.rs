//! An RDS echo server: whatever arrives at its port goes back to where it came from.
#![no_std]
#![no_main]

use core::net::Ipv4Addr;
use core::ops::ControlFlow;

use rds_nostd::{Arrival, Generation, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage};
use unikernel::adapter::{self, Failure, Node, Storage};
use unikernel::{ExitCode, Key, Machine, Mutex, println};

unikernel::entry!(main);

const KEYS: [Key; 2] = [
    Key::new("ip", "an IPv4 address", "this node's own, in a subnet of 24 bits"),
    Key::new("port", "a number from 1 to 65535", "where to listen; default 4000"),
];

static ADAPTER: Mutex<Storage> = Mutex::new(Storage::new());
static SOCKETS: Mutex<RdsStorage<4, 16, 1024>> = Mutex::new(RdsStorage::new());

fn main(machine: &mut Machine) -> ExitCode {
    adapter::conclude(serve(machine))
}

fn serve(machine: &mut Machine) -> Result<(), Failure> {
    let options = machine.options(&KEYS)?;
    let ip: Ipv4Addr = options.required("ip")?;
    let port: u16 = options.value("port")?.unwrap_or(4000);
    let clock = machine.clock();
    // Without a wall clock, peers that knew an earlier boot may take messages for old ones.
    let generation = machine.boot_time().map_or(Generation::UNKNOWN, Generation::from_wall_clock);
    let config = RdsConfig { seed: machine.seed() as u64, ..RdsConfig::new(generation) };
    adapter::run(machine, &Node::new(ip), &mut *ADAPTER.lock(), |adapter| {
        adapter::wait_ip_up(adapter, clock)?;
        let mut storage = SOCKETS.lock();
        let mut rds = Rds::start(adapter, storage.parts(), config).map_err(Failure::app)?;
        let socket = rds.bind((ip, port).into()).map_err(Failure::app)?;
        println!("echo: listening on {ip}:{port}");
        let mut buffer = [0; 8192];
        adapter::drive(adapter, clock, |adapter, now| {
            let wake = ControlFlow::Continue(rds.poll(adapter, now));
            loop {
                match rds.recvmsg(adapter, socket, &mut buffer, MsgFlags::empty()) {
                    Ok(Arrival::Message(message)) if message.from.port() == 0 => {} // the answer to a ping
                    Ok(Arrival::Message(message)) => {
                        match rds.sendmsg(adapter, socket, Msg::to(message.from, &buffer[..message.len])) {
                            // Without room for it an answer is dropped; a server that owes it keeps it, polls, and tries again.
                            Ok(_) | Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
                            Err(error) => return Err(Failure::app(error)),
                        }
                    }
                    Ok(_) | Err(RdsError::Again) => return Ok(wake),
                    Err(error) => return Err(Failure::app(error)),
                }
            }
        })
    })
}
