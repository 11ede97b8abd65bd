//! What the examples have in common: their command line, an adapter on the device that it names, and the loop that drives it.

use dat_nostd::{
    Adapter, AdapterConfig, Instant, Platform, ProviderInfo, Registry, RegistryEntry, Wake, adapter_storage,
};
use lexopt::prelude::*;
use platform_linux::{DeviceName, Iommu, LinuxBar, LinuxPlatform, Opened, Options, open};
use std::error::Error;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

/// Bytes of the DMA region.
const DMA_BYTES: usize = 64 << 20;
/// How long the port may take to join the broadcast group.
const IP_UP: Duration = Duration::from_secs(30);
/// How long to go on after the end, so that a peer whose last message was lost gets its answer.
const LINGER: Duration = Duration::from_millis(300);

type Tables = adapter_storage! {
    bar: LinuxBar, dma_bytes: DMA_BYTES, eps: 72, evds: 24, lmrs: 96, events: 256, connections: 112,
};

/// The adapter of an example.
pub type Node = Adapter<'static, LinuxPlatform>;
/// Whatever went wrong.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Says what went wrong, if anything did.
pub fn end(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the command line says.
pub struct Arguments {
    /// The HCA.
    pub device: DeviceName,
    /// This node's address.
    pub ip: Ipv4Addr,
    /// The other node's; who has it begins, who has none answers.
    pub peer: Option<Ipv4Addr>,
    /// How often.
    pub count: u32,
    /// Of what is random.
    pub seed: u64,
    /// The kernel's interface to the IOMMU.
    pub iommu: Iommu,
}

impl Arguments {
    /// Reads the command line. `--help` prints `about` and what can be given, and ends the program.
    pub fn read(about: &str, count: u32) -> Outcome<Self> {
        let (mut device, mut ip, mut peer, mut seed) = (None, None, None, 1);
        let (mut given, mut iommu) = (count, Iommu::Any);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("vfio") => device = Some(DeviceName::Vfio(parser.value()?.parse()?)),
                Long("socket") => device = Some(DeviceName::Socket(parser.value()?.into())),
                Long("ip") => ip = Some(parser.value()?.parse()?),
                Long("peer") => peer = Some(parser.value()?.parse()?),
                Long("count") => given = parser.value()?.parse()?,
                Long("seed") => seed = parser.value()?.parse()?,
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
                         --iommu KIND     with --vfio: by group or iommufd (what there is)"
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
        })
    }
}

/// Opens the device and an adapter on it, does `work`, and closes both.
pub fn run(arguments: &Arguments, work: impl FnOnce(&mut Node) -> Outcome<()>) -> Outcome<()> {
    let options = Options { dma_bytes: DMA_BYTES, iommu: arguments.iommu, ..Options::default() };
    let Opened { platform, dma, host, .. } = open(&arguments.device, &options)?;
    let tables: &'static mut Tables = Box::leak(Box::new(Tables::new()));
    let seed = u128::from(arguments.seed) << 32 | u128::from(arguments.ip.to_bits());
    let config = AdapterConfig::new("ib0", arguments.ip.into(), &[], seed);
    let mut adapter = Adapter::open(platform, dma, host, tables.parts(), &config)?;
    let mut names = [RegistryEntry::EMPTY; 2];
    let mut registry = Registry::new(&mut names);
    for name in ["ib0", "ib0-dat"] {
        registry.registry_add_provider(&mut adapter, ProviderInfo::new(name))?;
    }
    let done = wait_ip_up(&mut adapter).and_then(|()| work(&mut adapter)).and_then(|()| {
        let end = adapter.platform().now() + LINGER;
        drive(&mut adapter, |_, now| Ok(if now >= end { Wake::Idle } else { Wake::At(end) }))
    });
    let closed = adapter.close();
    done?;
    Ok(closed?)
}

/// Polls the adapter, and `step` with it, until that answers [`Wake::Idle`]; sleeps while there is nothing to do.
pub fn drive(adapter: &mut Node, mut step: impl FnMut(&mut Node, Instant) -> Outcome<Wake>) -> Outcome<()> {
    loop {
        let now = adapter.platform().now();
        let due = adapter.poll(now);
        let wanted = step(adapter, now)?;
        if wanted == Wake::Idle {
            return Ok(());
        }
        if let Some(cause) = adapter.hca().fatal() {
            return Err(format!("the HCA has failed: {cause:?}").into());
        }
        let wake = due.earliest(wanted);
        if !wake.is_due(now) && adapter.prepare_idle(adapter.platform().now()) {
            adapter.platform().idle(wake.deadline(now).unwrap_or(Instant::MAX));
        }
    }
}

fn wait_ip_up(adapter: &mut Node) -> Outcome<()> {
    let end = adapter.platform().now() + IP_UP;
    drive(adapter, |adapter, now| match adapter.ip() {
        Some(ip) if ip.is_up() => Ok(Wake::Idle),
        _ if now >= end => {
            Err("the port joined no broadcast group in 30 s: is there a subnet administrator?".into())
        }
        _ => Ok(Wake::At(end)),
    })
}
