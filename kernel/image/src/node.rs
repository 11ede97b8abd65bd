//! What the applications on an adapter have in common: their node, its tables, the poll loop in their words, the end.

use core::net::{IpAddr, Ipv4Addr};
use core::ops::ControlFlow;

use apps::Status;
use apps::rds::Generation;
use dat_nostd::{IpConfig, adapter_storage};
use driver_mlx::{Duration, Gid, Instant, MmioBar, VlanId, Wake};
use heapless::Vec;
pub use unikernel::adapter::Failure;
use unikernel::adapter::{self, Adapter, Turn};
use unikernel::console::Input;
use unikernel::options::Error;
use unikernel::{Clock, ExitCode, Machine, Mutex, println};

use crate::cmdline::{MAX_NEIGHBOURS, Options};

/// Bytes of the largest DMA memory that the tables can manage.
const DMA_LIMIT: usize = 256 << 20;
adapter_storage! {
    /// Memory for the demonstration's 64 endpoints on one queue, or for eight RDS connections.
    struct Tables {
        bar: MmioBar, dma_bytes: DMA_LIMIT, eps: 72, evds: 24, lmrs: 96, events: 256,
        connections: 112,
    }
}

/// How long to go on after the end, so that a peer whose last message was lost gets its answer.
const LINGER: Duration = Duration::from_millis(300);
/// How often the console is looked at while an application listens to it.
const INPUT_INTERVAL: Duration = Duration::from_millis(20);

static TABLES: Mutex<Tables> = Mutex::new(Tables::new());

/// An error for a key that the application needs.
pub const fn missing(key: &'static str, expected: &'static str) -> Error<'static> {
    Error::Missing { key, expected }
}

/// What RDS numbers the messages of this boot from.
pub fn generation(machine: &Machine) -> Generation {
    machine.boot_time().map_or_else(
        || {
            println!(
                "warning: no real-time clock: RDS numbers messages from 1, or from what a peer with rds-nostd says to expect; any \
                 other that knew an earlier boot takes some of them for old ones after a break"
            );
            Generation::UNKNOWN
        },
        Generation::from_wall_clock,
    )
}

/// The side that the command line says.
pub fn role(options: &Options<'_>) -> Result<apps::Role, Error<'static>> {
    options.role.ok_or(missing("role", "server or client"))
}

/// The other node that the command line names.
pub fn peer(options: &Options<'_>) -> Result<IpAddr, Error<'static>> {
    options.peer.ok_or(missing("peer", "the other node's address"))
}

/// The same for applications that speak no IPv6.
pub fn peer_v4(options: &Options<'_>) -> Result<Ipv4Addr, Error<'static>> {
    options.peer.and_then(v4).ok_or(missing("peer", "the other node's IPv4 address"))
}

/// An IPv4 address.
pub fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// Runs `work` on an adapter at the command line's address and says how it went; what is wrong with the rest of the command line has
/// been found by `setup`.
pub fn run<C>(
    machine: &mut Machine,
    options: &Options<'_>,
    setup: Result<C, Error<'static>>,
    mut work: impl FnMut(&mut Adapter<'_>, &C) -> Result<(), Failure>,
) -> ExitCode {
    let both = options.ip.ok_or(missing("ip", "this node's address")).and_then(|ip| Ok((ip, setup?)));
    let (ip, config) = match both {
        Ok(both) => both,
        Err(error) => return adapter::conclude(Err(error.into())),
    };
    let mut neighbours = Vec::<dat_nostd::Neighbour, MAX_NEIGHBOURS>::new();
    for (address, gid) in &options.neighbours {
        // As many as the command line holds fit.
        let _ = neighbours.push((*address, Gid(gid.octets())));
    }
    let (prefix_len, gateway) = (options.prefix_len, options.gateway);
    let node = adapter::Node {
        ip_config: IpConfig { prefix_len, gateway, ..IpConfig::DEFAULT },
        neighbours: &neighbours,
        dma_bytes: options.dma_bytes,
        recovery_grace: Duration::from_secs(options.grace_seconds),
        hca: options.hca,
        ethernet_mtu: options.mtu,
        vlan: options.vlan.map(VlanId::new),
        ..adapter::Node::new(ip)
    };
    adapter::conclude(adapter::run(machine, &node, &mut *TABLES.lock(), |adapter| work(adapter, &config)))
}

/// The state of two works that end together: with the first of them.
pub fn together(one: Status, other: Status) -> Status {
    match (one, other) {
        (ControlFlow::Continue(one), ControlFlow::Continue(other)) => {
            ControlFlow::Continue(one.earliest(other))
        }
        _ => ControlFlow::Break(()),
    }
}

/// As [`adapter::drive`], for work that goes on when the HCA has failed and is back: `step` is called without a time then.
pub fn drive_on(
    adapter: &mut Adapter<'_>,
    clock: Clock,
    mut step: impl FnMut(&mut Adapter<'_>, Option<Instant>) -> Result<Status, Failure>,
) -> Result<(), Failure> {
    adapter::drive_on(adapter, clock, |adapter, turn| match turn {
        Turn::Poll(now) => step(adapter, Some(now)),
        Turn::Lost(_) => {
            adapter::recover(adapter, clock)?;
            step(adapter, None)
        }
    })
}

/// After the recovery of a layer above the adapter: a device that has failed again meanwhile is recovered again.
pub fn carry_on<E: core::fmt::Display>(
    recovered: Result<(), E>,
    adapter: &Adapter<'_>,
) -> Result<Status, Failure> {
    match recovered {
        Err(error) if adapter.hca().fatal().is_none() => Err(Failure::app(error)),
        _ => Ok(ControlFlow::Continue(Wake::Now)),
    }
}

/// Goes on for a while after the work is done.
pub fn linger(adapter: &mut Adapter<'_>, clock: Clock) -> Result<(), Failure> {
    let end = clock.now() + LINGER;
    adapter::drive(adapter, clock, |_, now| {
        Ok(if now >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(Wake::At(end)) })
    })
}

/// Waits until IP packets move, where nobody said who is where.
pub fn wait_if_ip(adapter: &mut Adapter<'_>, clock: Clock) -> Result<(), Failure> {
    if adapter.ip().is_some() { adapter::wait_ip_up(adapter, clock) } else { Ok(()) }
}

/// Polls the console for `@quit` at intervals.
pub struct QuitLine {
    input: Input,
    next_look: Instant,
}

impl QuitLine {
    pub const fn new() -> Self {
        Self { input: Input::new(), next_look: Instant::ORIGIN }
    }

    /// Whether `@quit` has come; else when to look again.
    pub fn poll(&mut self, now: Instant) -> Status {
        self.poll_or(now, |_| false)
    }

    /// The same; other lines are shown to `known`, which says whether they mean something to it.
    pub fn poll_or(&mut self, now: Instant, mut known: impl FnMut(&str) -> bool) -> Status {
        if now >= self.next_look {
            self.next_look = now + INPUT_INTERVAL;
            let quit = self.input.poll(|line| match line {
                Ok("@quit") => true,
                Ok(line) if known(line) => false,
                Ok(_) => {
                    println!("console input: not @quit");
                    false
                }
                Err(error) => {
                    println!("{error}");
                    false
                }
            });
            if quit == Some(true) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(Wake::At(self.next_look))
    }
}
