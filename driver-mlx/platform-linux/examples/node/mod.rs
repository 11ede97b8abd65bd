//! Common parts of the examples: their command line, an adapter on the device that it names, and
//! the poll loop.

use dat_nostd::{
    Adapter, AdapterConfig, Instant, OpenError, ProviderInfo, Registry, RegistryEntry, Wake, adapter_storage,
};
use driver_mlx::{Config, Error as HcaError, FatalCause};
use lexopt::prelude::*;
use platform_linux::{DeviceName, Iommu, LinuxBar, LinuxPlatform, Opened, Options, open};
use std::error::Error;
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

/// MiB of the DMA region: default and maximum.
const DMA: usize = 64;
const MOST_DMA: usize = 512;
/// Time limit for the port to join the broadcast group.
const IP_UP: Duration = Duration::from_secs(30);
/// Time to continue after the end, so that a peer whose last message was lost gets its reply.
const LINGER: Duration = Duration::from_millis(300);

adapter_storage! {
    struct Tables {
        bar: LinuxBar, dma_bytes: MOST_DMA << 20, eps: 72, evds: 24, lmrs: 96, events: 256,
        connections: 112,
    }
}

/// The adapter of an example.
pub type Node = Adapter<'static, LinuxPlatform>;
/// Result of an example, with any error.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Prints the error, if any.
pub fn end(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Parsed command line.
pub struct Arguments {
    /// The HCA.
    pub device: DeviceName,
    /// This node's address.
    pub ip: Ipv4Addr,
    /// Address of the peer. The node is the client if it is set, otherwise the server.
    pub peer: Option<Ipv4Addr>,
    /// Number of messages.
    pub count: u32,
    /// Seed of random numbers.
    pub seed: u64,
    /// The kernel's interface to the IOMMU.
    pub iommu: Iommu,
    /// Minimum time between two recoveries.
    pub grace: Duration,
    /// Bytes of the DMA region.
    pub dma_bytes: usize,
}

impl Arguments {
    /// Reads the command line. `--help` prints `about` and what can be given, and ends the program.
    pub fn read(about: &str, count: u32) -> Outcome<Self> {
        let (mut device, mut ip, mut peer, mut seed) = (None, None, None, 1);
        let (mut given, mut iommu, mut grace) = (count, Iommu::Any, Config::DEFAULT.recovery_grace);
        let mut dma = DMA;
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("vfio") => device = Some(parser.value()?.string()?.parse()?),
                Long("socket") => device = Some(DeviceName::Socket(parser.value()?.into())),
                Long("ip") => ip = Some(parser.value()?.parse()?),
                Long("peer") => peer = Some(parser.value()?.parse()?),
                Long("count") => given = parser.value()?.parse()?,
                Long("seed") => seed = parser.value()?.parse()?,
                Long("grace") => grace = Duration::from_secs(parser.value()?.parse()?),
                Long("dma") => {
                    dma = parser.value()?.parse()?;
                    if !(1..=MOST_DMA).contains(&dma) {
                        return Err(format!("--dma {dma}: 1 to {MOST_DMA} MiB").into());
                    }
                }
                Long("iommu") => {
                    iommu = match parser.value()?.string()?.as_str() {
                        "group" => Iommu::Group,
                        "iommufd" => Iommu::Iommufd,
                        other => return Err(format!("--iommu {other}: group or iommufd").into()),
                    };
                }
                Long("help") => {
                    println!(
                        "{about}\n\n  --vfio ADDRESS   the HCA: a PCI function bound to vfio-pci, as 0000:3b:00.0\n  \
                         --socket PATH    the HCA: an emulated one, by the socket of its server\n  \
                         --ip ADDRESS     this node's IPv4 address\n  \
                         --peer ADDRESS   the other node's: begin; without it, answer\n  \
                         --count N        how often ({count})\n  \
                         --seed N         of what is random (1)\n  \
                         --dma MIB        memory that the HCA reaches ({DMA}; at most {MOST_DMA}): firmware of newer cards takes more\n  \
                         --iommu KIND     with --vfio: by group or iommufd (what there is)\n  \
                         --grace SECONDS  from one recovery of an HCA that fails to the next (60); only rds_ping recovers"
                    );
                    std::process::exit(0);
                }
                other => {
                    return Err(format!("{} (--help lists what can be given)", other.unexpected()).into());
                }
            }
        }
        Ok(Self {
            device: device.ok_or("which HCA? --vfio ADDRESS or --socket PATH (--help says more)")?,
            ip: ip.ok_or("--ip is missing: this node's IPv4 address")?,
            peer,
            count: given,
            seed,
            iommu,
            grace,
            dma_bytes: dma << 20,
        })
    }
}

/// Opens the device and an adapter on it, does `work`, and closes both.
pub fn run(arguments: &Arguments, work: impl FnOnce(&mut Node) -> Outcome<()>) -> Outcome<()> {
    let options = Options { dma_bytes: arguments.dma_bytes, iommu: arguments.iommu, ..Options::default() };
    let Opened { platform, dma, host, .. } = open(&arguments.device, &options)?;
    let tables: &'static mut Tables = Box::leak(Box::new(Tables::new()));
    let seed = u128::from(arguments.seed) << 32 | u128::from(arguments.ip.to_bits());
    let hca = Config {
        recovery_grace: arguments.grace,
        physical_function: platform.is_physical(),
        ..Config::DEFAULT
    };
    let config = AdapterConfig { hca, ..AdapterConfig::new("ib0", arguments.ip.into(), &[], seed) };
    let mut adapter = Adapter::open(platform, dma, host, tables.parts(), &config)?;
    let mut names = [RegistryEntry::EMPTY; 2];
    let mut registry = Registry::new(&mut names);
    for name in ["ib0", "ib0-dat"] {
        registry.registry_add_provider(&mut adapter, ProviderInfo::new(name))?;
    }
    let done = wait_ip_up(&mut adapter).and_then(|()| work(&mut adapter)).and_then(|()| {
        let end = adapter.now() + LINGER;
        drive(&mut adapter, |_, now| {
            Ok(if now >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(Wake::At(end)) })
        })
    });
    let closed = adapter.close();
    done?;
    Ok(closed?)
}

/// Polls the adapter, and `step` with it, until that breaks; sleeps while there is
/// nothing to do.
pub fn drive(
    adapter: &mut Node,
    mut step: impl FnMut(&mut Node, Instant) -> Outcome<ControlFlow<(), Wake>>,
) -> Outcome<()> {
    drive_on(adapter, |adapter, turn| match turn {
        Turn::Poll(now) => step(adapter, now),
        Turn::Lost(cause) => Err(format!("the HCA has failed: {cause}").into()),
    })
}

/// Reason for a call of a loop's step.
pub enum Turn {
    /// The adapter was polled at this time.
    Poll(Instant),
    /// The HCA has failed, and all its events were delivered.
    Lost(FatalCause),
}

/// As [`drive`], for programs that continue after an HCA has failed and was [recovered](recover).
pub fn drive_on(
    adapter: &mut Node,
    mut step: impl FnMut(&mut Node, Turn) -> Outcome<ControlFlow<(), Wake>>,
) -> Outcome<()> {
    loop {
        let now = adapter.now();
        let due = adapter.poll(now);
        let ControlFlow::Continue(wanted) = step(adapter, Turn::Poll(now))? else { return Ok(()) };
        if let Some(cause) = adapter.hca().fatal() {
            let _ = step(adapter, Turn::Lost(cause))?;
            continue;
        }
        let wake = due.earliest(wanted);
        if !wake.is_due(now) && adapter.prepare_idle(adapter.now()) {
            adapter.idle(wake.deadline(now).unwrap_or(Instant::MAX));
        }
    }
}

/// Brings an HCA that has failed back.
#[allow(dead_code, reason = "not every example goes on")]
pub fn recover(adapter: &mut Node) -> Outcome<()> {
    loop {
        match adapter.recover(IP_UP) {
            // A port that becomes Active later raises an event.
            Ok(()) | Err(OpenError::PortNotActive { .. }) => return Ok(()),
            Err(OpenError::Hca(HcaError::RecoveryTooSoon { wait_ms })) => {
                std::thread::sleep(Duration::from_millis(wait_ms));
            }
            Err(error @ OpenError::Hca(HcaError::RecoveryGivenUp { .. })) => return Err(error.into()),
            Err(error) => println!("recovery: {error}"),
        }
    }
}

fn wait_ip_up(adapter: &mut Node) -> Outcome<()> {
    let end = adapter.now() + IP_UP;
    drive(adapter, |adapter, now| match adapter.ip() {
        Some(ip) if ip.is_up() => Ok(ControlFlow::Break(())),
        _ if now >= end => {
            Err("the port joined no broadcast group in 30 s: is there a subnet administrator?".into())
        }
        _ => Ok(ControlFlow::Continue(Wake::At(end))),
    })
}
