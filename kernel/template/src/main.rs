//! An RDS echo server: whatever arrives at its port goes back to where it came from.
#![no_std]
#![no_main]

use core::net::Ipv4Addr;
use rds_nostd::{Msg, RdsStorage};
use unikernel::adapter::{Failure, Node, Storage, conclude};
use unikernel::{ExitCode, Key, Machine, Mutex, println, sockets};

unikernel::entry!(main);

const KEYS: [Key; 2] = [
    Key::new("ip", "an IPv4 address", "this node's own, in a subnet of 24 bits"),
    Key::new("port", "a number from 1 to 65535", "where to listen; default 4000"),
];

static ADAPTER: Mutex<Storage> = Mutex::new(Storage::new());
static SOCKETS: Mutex<RdsStorage<4, 16, 1024>> = Mutex::new(RdsStorage::new());

fn main(machine: &mut Machine) -> ExitCode {
    conclude(serve(machine))
}

fn serve(machine: &mut Machine) -> Result<(), Failure> {
    let options = machine.options(&KEYS)?;
    let (ip, port): (Ipv4Addr, u16) = (options.required("ip")?, options.value("port")?.unwrap_or(4000));
    sockets::run(machine, &Node::new(ip), &mut *ADAPTER.lock(), SOCKETS.lock().parts(), async |node| {
        let (socket, mut buffer) = (node.bind((ip, port))?, [0; 8192]);
        println!("echo: listening on {ip}:{port}");
        loop {
            let message = socket.recv(&mut buffer).await?;
            socket.send(Msg::to(&message.from, &buffer[..message.len])).await?;
        }
    })
}
