//! From the machine to an open DAT adapter, its loop, and why it ended: what every application on DAT or RDS begins with.
//!
//! [`run`] opens an HCA and calls the application's work with the adapter; [`drive`] polls until the work is done, and sleeps
//! whenever there is nothing to do; [`conclude`] says how it went.

use core::net::IpAddr;
use core::ops::ControlFlow;

use dat_nostd::{
    AdapterConfig, AdapterParts, AdapterStorage, IpConfig, Neighbour, OpenError, ProviderInfo, Registry,
    RegistryEntry, adapter_storage,
};
use driver_mlx::report::Report;
use driver_mlx::{Config, Duration, Error, FatalCause, Instant, MmioBar, Platform, PortType, VlanId, Wake};

use crate::choice::Choice;
pub use crate::failure::{Failure, conclude};
use crate::hca::{self, BareMetal, Hardware};
use crate::memory::DmaMemory;
use crate::verbs::{CONFIG, VECTORS, open, with_one_reset};
use crate::{Clock, Machine, println};

/// An adapter on this machine.
pub type Adapter<'s> = dat_nostd::Adapter<'s, BareMetal>;

adapter_storage! {
    /// Memory for an adapter of a small application: 16 endpoints and 64 MiB of DMA memory.
    /// Larger applications define their own with [`adapter_storage!`].
    pub struct Storage {
        bar: MmioBar, dma_bytes: 64 << 20, eps: 16, evds: 16, lmrs: 32, events: 128,
        connections: 32,
    }
}
/// What the guide says of it.
const _: () = assert!(size_of::<Storage>() <= 259 << 10);

/// The adapter's name.
pub const NAME: &str = "ib0";
/// Names of the IAs with RDMA-CM framing and with our own, on each medium. The first two stand for the
/// others on Ethernet too.
const NAMES: [(PortType, [&str; 2]); 2] =
    [(PortType::InfiniBand, [NAME, "ib0-dat"]), (PortType::Ethernet, ["roce0", "roce0-dat"])];

/// How long a recovery waits for the port.
const PORT_PATIENCE: Duration = Duration::from_secs(30);
/// How long the port may take to join the broadcast group.
const IP_UP_LIMIT: Duration = Duration::from_secs(30);

/// Who this node is and what its adapter has.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its address. A node with an IPv6 address has no IP packets ([`wait_ip_up`]).
    pub ip: IpAddr,
    /// The subnet, and the router to others.
    pub ip_config: IpConfig,
    /// Who is where on the fabric; with an empty list the subnet administrator and ARP are asked.
    pub neighbours: &'a [Neighbour],
    /// Which HCA of the machine.
    pub hca: Choice,
    /// Memory that the HCA reaches, in bytes; the adapter's storage is made for at least so much.
    pub dma_bytes: u64,
    /// How long after a recovery the next one may begin: [`Config::recovery_grace`].
    pub recovery_grace: Duration,
    /// Largest payload of an Ethernet port's frames, bytes: [`Config::ethernet_mtu`].
    pub ethernet_mtu: u16,
    /// VLAN of an Ethernet port; `None` for frames without a tag.
    pub vlan: Option<VlanId>,
}

impl Node<'_> {
    /// The first HCA with 64 MiB, in a subnet of 24 bits without a router.
    #[must_use]
    pub fn new(ip: impl Into<IpAddr>) -> Self {
        let Config { recovery_grace, ethernet_mtu, .. } = CONFIG;
        Self {
            ip: ip.into(),
            ip_config: IpConfig::DEFAULT,
            neighbours: &[],
            hca: Choice::Nth(0),
            dma_bytes: 64 << 20,
            recovery_grace,
            ethernet_mtu,
            vlan: None,
        }
    }
}

/// Opens an adapter, registers its IAs, and lets `work` use it; closes it. An HCA that somebody left in a state that it cannot be
/// brought up from is reset once.
///
/// # Errors
/// [`Failure`]: there is no such HCA, too little memory, the adapter does not open or close, or `work`'s own.
pub fn run(
    machine: &mut Machine,
    node: &Node<'_>,
    tables: &mut impl AdapterStorage<MmioBar>,
    work: impl FnOnce(&mut Adapter<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut work = Some(work);
    // An attempt that is repeated has not come so far.
    run_once(machine, node, tables, &mut |adapter| work.take().map_or(Ok(()), |work| work(adapter)))
}

/// As [`run`], in one copy for all applications of an image, with the optimisation of this crate.
#[inline(never)]
fn run_once(
    machine: &mut Machine,
    node: &Node<'_>,
    tables: &mut dyn AdapterStorage<MmioBar>,
    work: Work<'_>,
) -> Result<(), Failure> {
    let hardware = open(machine, node.hca, node.dma_bytes, tables, AdapterStorage::hca)?;
    for (name, micros) in machine.steps() {
        println!("@step name=boot_{name} us={micros}");
    }
    with_one_reset(machine, &hardware, &mut |machine| {
        Prepared::with(machine, node, &hardware)?.run_reported(tables, work)
    })
}

/// The user of an adapter; called once at most.
type Work<'w> = &'w mut dyn FnMut(&mut Adapter<'_>) -> Result<(), Failure>;

/// A node that is ready to open its adapter and wants nothing more of the machine: for applications that have several at once, one
/// inside the other's [`Prepared::run`].
#[derive(Debug)]
pub struct Prepared<'n> {
    node: Node<'n>,
    platform: BareMetal,
    physical_function: bool,
    memory: DmaMemory,
    clock: Clock,
    seed: u128,
    generation: u64,
}

impl<'n> Prepared<'n> {
    /// Switches the node's HCA on and takes its memory.
    ///
    /// # Errors
    /// There is no such HCA, or too little memory.
    pub fn new(machine: &mut Machine, node: &Node<'n>) -> Result<Self, Failure> {
        let hardware = machine.open_hca(node.hca, VECTORS)?;
        Self::with(machine, node, &hardware)
    }

    fn with(machine: &mut Machine, node: &Node<'n>, hardware: &Hardware) -> Result<Self, Failure> {
        let (platform, physical_function) = (hardware.platform(), hardware.is_physical());
        let (memory, clock) = (machine.dma(node.dma_bytes)?, machine.clock());
        // Nodes of one machine begin differently too.
        let at = hardware.function().address();
        let place = [at.bus(), at.device(), at.function()];
        let seed =
            machine.seed().wrapping_add(place.iter().fold(0, |all, part| all << 8 | u128::from(*part)));
        Ok(Self {
            node: *node,
            platform,
            physical_function,
            memory,
            clock,
            seed,
            generation: machine.boot_generation(),
        })
    }

    /// Opens the adapter, registers its IAs, and lets `work` use it; closes it.
    ///
    /// # Errors
    /// As for [`run`]; an HCA that somebody left behind is not reset here.
    pub fn run(
        self,
        tables: &mut impl AdapterStorage<MmioBar>,
        work: impl FnOnce(&mut Adapter<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut work = Some(work);
        self.run_reported(tables, &mut |adapter| work.take().map_or(Ok(()), |work| work(adapter)))
    }

    /// As [`Self::run`], in one copy for all applications of an image.
    fn run_reported(self, tables: &mut dyn AdapterStorage<MmioBar>, work: Work<'_>) -> Result<(), Failure> {
        let platform = self.platform;
        let result = self.run_in(tables.parts(), work);
        if let Some(error) = result.as_ref().err().and_then(Failure::of_device) {
            println!("{}", Report::new(error, platform.bar(), tables.history()));
        }
        result
    }

    fn run_in(self, tables: AdapterParts<'_, MmioBar>, work: Work<'_>) -> Result<(), Failure> {
        let Self { node, platform, physical_function, memory, clock, seed, generation } = self;
        let (region, host) = hca::regions(memory)?;
        let config = AdapterConfig::new(NAME, node.ip, node.neighbours, seed);
        // Who is told where everybody is asks nobody.
        let ip = config.ip.is_some().then_some(node.ip_config);
        let Node { recovery_grace, ethernet_mtu, .. } = node;
        let hca = Config { physical_function, recovery_grace, ethernet_mtu, ..CONFIG };
        let config = AdapterConfig { generation, hca, ip, vlan: node.vlan, ..config };
        let start = clock.now();
        let mut adapter =
            Adapter::open(platform, region, host, tables, &config).map_err(|error| match error {
                OpenError::Hca(error) => Failure::BringUp(error),
                error => Failure::Open(error),
            })?;
        let mut names = [RegistryEntry::EMPTY; 2];
        let mut registry = Registry::new(&mut names);
        let port_type = adapter.port_type();
        for name in NAMES.into_iter().filter(|(medium, _)| *medium == port_type).flat_map(|(_, names)| names)
        {
            registry.registry_add_provider(&mut adapter, ProviderInfo::new(name)).map_err(Failure::app)?;
        }
        for time in adapter.hca().steps() {
            println!("@step name={} us={}", time.step.name(), time.took.as_micros() as u64);
        }
        println!("@step name=adapter_open us={}", (clock.now() - start).as_micros() as u64);
        let outcome = work(&mut adapter);
        if let Some(cause) = adapter.hca().fatal() {
            return Err(Failure::DeviceLost(Error::Fatal(cause)));
        }
        let down = clock.now();
        let closed = adapter.close().map_err(Failure::Hca);
        println!("@step name=adapter_close us={}", (clock.now() - down).as_micros() as u64);
        outcome.and(closed)
    }
}

/// Polls the adapter and then `step` until that breaks; sleeps whenever there is nothing to do. `step` says when it wants to be called
/// again at the latest.
///
/// # Errors
/// Those of `step`; [`Failure::DeviceLost`].
pub fn drive(
    adapter: &mut Adapter<'_>,
    clock: Clock,
    mut step: impl FnMut(&mut Adapter<'_>, Instant) -> Result<ControlFlow<(), Wake>, Failure>,
) -> Result<(), Failure> {
    drive_on(adapter, clock, |adapter, turn| match turn {
        Turn::Poll(now) => step(adapter, now),
        Turn::Lost(cause) => Err(Failure::DeviceLost(Error::Fatal(cause))),
    })
}

/// What [`drive_on`] calls for.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// The adapter was polled at this time.
    Poll(Instant),
    /// The device has failed; everything of it was told. Whoever does not fail with it brings it back ([`recover`]).
    Lost(FatalCause),
}

/// As [`drive`], for who can go on with a device that has failed and was brought back.
///
/// # Errors
/// Those of `step`.
pub fn drive_on(
    adapter: &mut Adapter<'_>,
    clock: Clock,
    mut step: impl FnMut(&mut Adapter<'_>, Turn) -> Result<ControlFlow<(), Wake>, Failure>,
) -> Result<(), Failure> {
    loop {
        let now = clock.now();
        let wake = adapter.poll(now);
        let ControlFlow::Continue(next) = step(adapter, Turn::Poll(now))? else { return Ok(()) };
        if let Some(cause) = adapter.hca().fatal() {
            match step(adapter, Turn::Lost(cause))? {
                ControlFlow::Continue(_) => continue,
                ControlFlow::Break(()) => return Ok(()),
            }
        }
        rest(adapter, clock, now, wake.earliest(next));
    }
}

/// Sleeps, unless something is due by `wake` or has come since `now`.
pub(crate) fn rest(adapter: &mut Adapter<'_>, clock: Clock, now: Instant, wake: Wake) {
    if !wake.is_due(now) && adapter.prepare_idle(clock.now()) {
        clock.idle(wake.deadline(now).unwrap_or(Instant::MAX));
    }
}

/// Brings an adapter whose device has failed back, and says so; everything made on it is gone then ([`dat_nostd::Adapter::recover`]).
///
/// # Errors
/// [`Failure::DeviceLost`]: it does not come back.
pub fn recover(adapter: &mut Adapter<'_>, clock: Clock) -> Result<(), Failure> {
    if let Some(cause) = adapter.hca().fatal() {
        println!("hca: {cause}: recovery");
    }
    let began = clock.now();
    loop {
        match adapter.recover(PORT_PATIENCE) {
            // A port that comes up later tells so.
            Ok(()) | Err(OpenError::PortNotActive { .. }) => break,
            Err(OpenError::Hca(Error::RecoveryTooSoon { wait_ms })) => {
                println!("hca: the last recovery was a short time ago: another in {wait_ms} ms");
                let end = clock.now() + Duration::from_millis(wait_ms);
                while clock.now() < end {
                    clock.idle(end);
                }
            }
            Err(OpenError::Hca(error @ Error::RecoveryGivenUp { .. })) => {
                return Err(Failure::DeviceLost(error));
            }
            Err(error) => println!("hca: recovery: {error}"),
        }
    }
    println!("@recovered us={}", (clock.now() - began).as_micros() as u64);
    Ok(())
}

/// Waits until IP packets move, and says where.
///
/// # Errors
/// Those of [`drive`]; the port joined no broadcast group in 30 s.
pub fn wait_ip_up(adapter: &mut Adapter<'_>, clock: Clock) -> Result<(), Failure> {
    let start = clock.now();
    let end = start + IP_UP_LIMIT;
    drive(adapter, clock, |adapter, now| {
        let Some(ip) = adapter.ip() else {
            return Err(Failure::app("there is no IP where neighbours are named"));
        };
        if ip.is_up() {
            println!(
                "@ip address={}/{} mtu={} up_us={}",
                ip.address(),
                ip.prefix_len(),
                ip.mtu(),
                (now - start).as_micros() as u64
            );
            return Ok(ControlFlow::Break(()));
        }
        if now >= end {
            return Err(Failure::app(
                "the port joined no broadcast group in 30 s: is there a subnet administrator?",
            ));
        }
        Ok(ControlFlow::Continue(Wake::At(end)))
    })
}
