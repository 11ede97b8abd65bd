//! The applications on IP: `app=ip` answers pings and serves, `app=ping` pings, `app=tcp` is a client.

use core::ops::ControlFlow;

use apps::ip::{
    Client, ClientConfig, ClientStorage, Expect, Ping, PingConfig, PingStorage, Services, ServicesSlots,
    ServicesStorage,
};
use driver_mlx::Duration;
use unikernel::ExitCode;
use unikernel::Mutex;

use unikernel::Clock;
use unikernel::adapter::{self, Adapter};
use unikernel::net::smoltcp::iface::SocketStorage;
use unikernel::net::{Host, PacketBuffers};

use crate::cmdline::Options;
use crate::node::{self, Failure, QuitLine};
use unikernel::Machine;
use unikernel::println;

/// Between a ping's answer and the next.
const PING_INTERVAL: Duration = Duration::from_millis(10);
/// How long a ping's answer may take.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a TCP connection may not move.
const STALL: Duration = Duration::from_secs(60);

static PACKETS: Mutex<PacketBuffers> = Mutex::new(PacketBuffers::new());
static SERVICES: Mutex<ServicesStorage> = Mutex::new(ServicesStorage::new());
static PING: Mutex<PingStorage> = Mutex::new(PingStorage::new());
static CLIENT: Mutex<ClientStorage> = Mutex::new(ClientStorage::new());

fn host<'s>(
    adapter: &mut Adapter<'_>,
    packets: &'s mut PacketBuffers,
    (clock, seed): (Clock, u64),
) -> Result<Host<'s>, Failure> {
    adapter::wait_ip_up(adapter, clock)?;
    Host::new(adapter, packets, seed, clock.now()).map_err(Failure::app)
}

/// What is this node's own besides its address: the clock and a seed.
fn own(machine: &Machine) -> (Clock, u64) {
    (machine.clock(), machine.seed() as u64)
}

/// `app=ip`.
pub fn serve(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let own = own(machine);
    node::run(machine, options, Ok(()), |adapter, ()| {
        let (mut packets, mut storage) = (PACKETS.lock(), SERVICES.lock());
        let mut host = host(adapter, &mut packets, own)?;
        let mut slots = ServicesSlots::new();
        let mut services = Services::new(&mut storage, &mut slots, options.source_bytes);
        let mut quit = QuitLine::new();
        adapter::drive(adapter, own.0, |adapter, now| {
            let wake = services.poll(&mut host, adapter, now, &mut |served| {
                println!(
                    "@served service={} peer={} bytes={} sha256={}",
                    served.service.name(),
                    served.peer,
                    served.bytes,
                    served.sha256
                );
            });
            Ok(node::together(ControlFlow::Continue(wake), quit.poll(now)))
        })?;
        counters(adapter);
        Ok(())
    })
}

/// `app=ping`.
pub fn ping(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let own = own(machine);
    node::run(machine, options, node::peer_v4(options), |adapter, &to| {
        let (mut packets, mut storage) = (PACKETS.lock(), PING.lock());
        let mut host = host(adapter, &mut packets, own)?;
        let config = PingConfig {
            to,
            count: options.count,
            size: options.size as usize,
            ident: own.1 as u16,
            interval: PING_INTERVAL,
            timeout: PING_TIMEOUT,
        };
        let mut slot = SocketStorage::EMPTY;
        let mut ping = Ping::new(&mut storage, &mut slot, config);
        adapter::drive(adapter, own.0, |adapter, now| Ok(ping.poll(&mut host, adapter, now)))?;
        let report = *ping.report();
        println!(
            "@ping sent={} received={} lost={} wrong={} min_us={} avg_us={} max_us={}",
            report.sent,
            report.received,
            report.lost,
            report.wrong,
            report.min / 1000,
            report.sum / u64::from(report.received.max(1)) / 1000,
            report.max / 1000
        );
        counters(adapter);
        if report.received == report.sent {
            Ok(())
        } else {
            Err(Failure::app(format_args!(
                "{} of {} pings were not answered rightly",
                report.sent - report.received,
                report.sent
            )))
        }
    })
}

/// `app=tcp`.
pub fn tcp(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let own = own(machine);
    let port = options.port.ok_or(node::missing("port", "the peer's TCP port"));
    let setup = port.and_then(|port| Ok((node::peer_v4(options)?, port)));
    node::run(machine, options, setup, |adapter, &(to, port)| {
        let (mut packets, mut storage) = (PACKETS.lock(), CLIENT.lock());
        let mut host = host(adapter, &mut packets, own)?;
        let config = ClientConfig {
            to,
            port,
            send: options.send_bytes,
            seed: own.1,
            connect_timeout: Duration::from_secs(options.wait_seconds),
            stall_timeout: STALL,
        };
        let mut slot = SocketStorage::EMPTY;
        let mut client = Client::new(&mut storage, &mut slot, config, own.0.now());
        adapter::drive(adapter, own.0, |adapter, now| {
            client.poll(&mut host, adapter, now).map_err(Failure::app)
        })?;
        let report = client.report();
        println!(
            "@tcp sent={} sent_sha256={} received={} received_sha256={} ns={}",
            report.sent, report.sent_sha256, report.received, report.received_sha256, report.ns
        );
        counters(adapter);
        if report.is(Expect::of_port(port)) {
            Ok(())
        } else {
            Err(Failure::app("what came back is not what the service at that port answers"))
        }
    })
}

/// What happened below, for reports.
fn counters(adapter: &mut Adapter<'_>) {
    if let Some(ip) = adapter.ip() {
        let counters = ip.counters();
        println!(
            "ip: {} packets received, {} sent, {} bad, {} overrun, {} unreachable",
            counters.received, counters.sent, counters.bad, counters.overrun, counters.unreachable
        );
    }
}
