//! A UDP echo server: whatever arrives at port 7 goes back to where it came from. Pings are answered too.
#![no_std]
#![no_main]

use core::net::Ipv4Addr;
use core::ops::ControlFlow;
use unikernel::adapter::{self, Failure, Node, Storage, conclude};
use unikernel::net::smoltcp::iface::{SocketSet, SocketStorage};
use unikernel::net::smoltcp::socket::udp;
use unikernel::net::{Host, PacketBuffers};
use unikernel::{ExitCode, Key, Machine, Mutex, println};

unikernel::entry!(main);

const KEYS: [Key; 1] = [Key::new("ip", "an IPv4 address", "this node's own, in a subnet of 24 bits")];

static ADAPTER: Mutex<Storage> = Mutex::new(Storage::new());
static PACKETS: Mutex<PacketBuffers> = Mutex::new(PacketBuffers::new());

fn main(machine: &mut Machine) -> ExitCode {
    conclude(serve(machine))
}

fn serve(machine: &mut Machine) -> Result<(), Failure> {
    let ip: Ipv4Addr = machine.options(&KEYS)?.required("ip")?;
    let (clock, seed) = (machine.clock(), machine.seed() as u64);
    adapter::run(machine, &Node::new(ip), &mut *ADAPTER.lock(), |adapter| {
        adapter::wait_ip_up(adapter, clock)?;
        let mut packets = PACKETS.lock();
        let mut host = Host::new(adapter, &mut packets, seed, clock.now()).map_err(Failure::app)?;
        let (mut received, mut sent) = ([0; 8192], [0; 8192]);
        let (mut received_from, mut sent_to) =
            ([udp::PacketMetadata::EMPTY; 8], [udp::PacketMetadata::EMPTY; 8]);
        let mut socket = udp::Socket::new(
            udp::PacketBuffer::new(&mut received_from[..], &mut received[..]),
            udp::PacketBuffer::new(&mut sent_to[..], &mut sent[..]),
        );
        socket.bind(7).map_err(Failure::app)?;
        let mut slots = [SocketStorage::EMPTY; 1];
        let mut sockets = SocketSet::new(&mut slots[..]);
        let echo = sockets.add(socket);
        println!("echo: listening on {ip}:7");
        adapter::drive(adapter, clock, |adapter, now| {
            let wake = host.poll(adapter, &mut sockets, now);
            let socket = sockets.get_mut::<udp::Socket<'_>>(echo);
            let mut datagram = [0; 4096];
            while socket.can_send()
                && let Ok((len, from)) = socket.recv_slice(&mut datagram)
            {
                // Without room the datagram is lost, as on any network.
                let _ = socket.send_slice(&datagram[..len], from.endpoint);
            }
            Ok(ControlFlow::Continue(wake.earliest(host.poll_at(&sockets, now))))
        })
    })
}
