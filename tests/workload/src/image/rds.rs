//! `program=rds_*`: RDS on an adapter.

use core::net::IpAddr;
use core::ops::ControlFlow;

use apps::rds::{AppError, Generation, Node, Settings, Storage, TableKind, Work};
use dat_nostd::{Duration, adapter_storage};
use driver_mlx::{MmioBar, VlanId, Wake};
use rds_nostd::Rds;
use unikernel::adapter::{self, Adapter, Turn};
use unikernel::failure::Failure;
use unikernel::{Machine, Mutex, Options, println};
use workload::rds::{Client, Flows, Report, Script, Server};

use super::{missing, role};

const DMA_BYTES: usize = 64 << 20;
adapter_storage! {
    /// Tables for the connections and the regions of [`Storage`].
    pub(super) struct Tables {
        bar: MmioBar, dma_bytes: DMA_BYTES, eps: 16, evds: 16, lmrs: 96, events: 256,
        connections: 32,
    }
}

pub(super) static TABLES: Mutex<Tables> = Mutex::new(Tables::new());
static STORAGE: Mutex<Storage> = Mutex::new(Storage::new());
/// Time that a node stays after the end. A peer whose last message lost its
/// acknowledgement sends it again.
const LINGER: Duration = Duration::from_millis(300);

pub(super) fn serve(machine: &mut Machine, options: &Options<'static>) -> Result<(), Failure> {
    run(machine, options, Server::start, Server::report)
}

pub(super) fn messages(machine: &mut Machine, options: &Options<'static>) -> Result<(), Failure> {
    let (role, peer) = (role(options)?, IpAddr::V4(options.required("to")?));
    let flows = (options.value("count")?.unwrap_or(1), options.value("seed")?.unwrap_or(1));
    run(machine, options, |adapter, rds| Flows::start(adapter, rds, role, peer, flows), Flows::report)
}

pub(super) fn ask(machine: &mut Machine, options: &Options<'static>, script: Script) -> Result<(), Failure> {
    let server = IpAddr::V4(options.required("to")?);
    let rounds = options.value("count")?.unwrap_or(1);
    run(machine, options, |adapter, rds| Client::start(adapter, rds, server, script, rounds), Client::report)
}

/// The node that the command line says.
pub(super) fn node(options: &Options<'static>) -> Result<adapter::Node<'static>, Failure> {
    let ip = options.get("ip").and_then(|ip| ip.trim_end_matches("/24").parse::<IpAddr>().ok());
    let node = adapter::Node::new(ip.ok_or_else(|| missing("ip"))?);
    Ok(adapter::Node {
        recovery_grace: Duration::from_secs(options.value("grace")?.unwrap_or(60)),
        vlan: options.value("vlan")?.map(VlanId::new),
        ethernet_mtu: options.value("mtu")?.unwrap_or(node.ethernet_mtu),
        ..node
    })
}

fn run<W: Work>(
    machine: &mut Machine,
    options: &Options<'static>,
    start: impl Fn(&mut Adapter<'_>, &mut Rds<'_>) -> Result<W, AppError>,
    report: impl Fn(&W) -> Report,
) -> Result<(), Failure> {
    let node = node(options)?;
    let settings = Settings {
        random: machine.seed() as u64,
        generation: machine.boot_time().map_or(Generation::UNKNOWN, Generation::from_wall_clock),
        stall_timeout: Duration::from_secs(options.value("stall")?.unwrap_or(60)),
    };
    let clock = machine.clock();
    adapter::run(machine, &node, &mut *TABLES.lock(), |adapter| {
        adapter::wait_ip_up(adapter, clock)?;
        let mut storage = STORAGE.lock();
        let mut node = Node::with(adapter, &mut storage, settings, &start).map_err(Failure::app)?;
        println!("@rds listening");
        let driven = adapter::drive_on(adapter, clock, |adapter, turn| match turn {
            Turn::Poll(now) => node.poll(adapter, now).map_err(Failure::app),
            Turn::Lost(_) => {
                adapter::recover(adapter, clock)?;
                match node.adapter_recovered(adapter) {
                    // A device that failed again is recovered again.
                    Err(error) if adapter.hca().fatal().is_none() => Err(Failure::app(error)),
                    _ => Ok(ControlFlow::Continue(Wake::Now)),
                }
            }
        });
        for kind in TableKind::ALL {
            println!("{}", node.rds().table(adapter, kind));
        }
        println!("@result {}", report(node.work()));
        let closed = node.close(adapter).map_err(Failure::app);
        driven.and(closed)?;
        let end = clock.now() + LINGER;
        adapter::drive_on(adapter, clock, |_, turn| match turn {
            Turn::Poll(now) if now < end => Ok(ControlFlow::Continue(Wake::At(end))),
            _ => Ok(ControlFlow::Break(())),
        })
    })
}
