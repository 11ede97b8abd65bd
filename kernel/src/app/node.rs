//! What every application on an adapter has in common: hardware, adapter, its poll loop, the end and what is said about it.

use core::fmt::{self, Display, Write};
use core::net::{IpAddr, Ipv4Addr};

use apps::Status;
use dat_nostd::{
    Adapter, AdapterConfig, IpConfig, OpenError, ProviderInfo, Registry, RegistryEntry, adapter_storage,
};
use driver_mlx::{Error, Gid, Instant, MmioBar, Wake};
use heapless::{String, Vec};
use kernel::cmdline::{self, MAX_NEIGHBOURS};
use kernel::exit::ExitCode;
use spin::Mutex;

use crate::arch::{clock, interrupts};
use crate::console::{Input, println};
use crate::machine::Machine;
use crate::platform::{self, BareMetal, Hardware};

/// The adapter's name, and that of the IA with RDMA-CM framing.
pub const ADAPTER: &str = "ib0";
/// That of the IA with our own framing.
const ADAPTER_DAT: &str = "ib0-dat";
/// Bytes of the largest DMA region that the driver can manage.
const DMA_LIMIT: usize = 256 << 20;
/// The demonstration's 64 endpoints on one queue and its own connection, or eight RDS connections; memory offered to peers, and room
/// for what is still closing.
type Tables = adapter_storage! {
    bar: MmioBar, dma_bytes: DMA_LIMIT, eps: 72, evds: 24, lmrs: 96, events: 256, connections: 112,
};

/// MSI-X vector 0 for asynchronous events, 1 for completions.
const HCA: driver_mlx::Config =
    driver_mlx::Config { async_vector: 0, completion_vector: 1, ..driver_mlx::Config::DEFAULT };
const VECTORS: u16 = 2;
pub const SECOND: u64 = 1_000_000_000;
/// How long to go on after the end, so that a peer whose last message was lost gets its answer.
const LINGER_NANOS: u64 = 300_000_000;
/// How long the port may take to join the broadcast group.
const IP_UP_NANOS: u64 = 30 * SECOND;
/// How often the console is looked at while an application listens to it.
const INPUT_NANOS: u64 = 20_000_000;

static TABLES: Mutex<Tables> = Mutex::new(Tables::new());

/// Why an application ended without success.
pub enum Failure {
    Platform(platform::Error),
    Open(OpenError),
    Hca(Error),
    DeviceLost(Error),
    /// What the application has to say.
    App(String<320>),
}

impl Failure {
    /// With the application's own words; those beyond the room are lost.
    pub fn app(error: impl Display) -> Self {
        let mut text = String::new();
        let _ = write!(Cut(&mut text), "{error}");
        Self::App(text)
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Platform(_) => ExitCode::NoDevice,
            Self::Open(_) | Self::Hca(_) | Self::App(_) => ExitCode::Failed,
            Self::DeviceLost(_) => ExitCode::DeviceLost,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
            Self::Hca(error) | Self::DeviceLost(error) => error.fmt(f),
            Self::App(text) => f.write_str(text),
        }
    }
}

/// Takes what fits.
struct Cut<'a>(&'a mut String<320>);

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.0.push(c).map_err(|_| fmt::Error)?;
        }
        Ok(())
    }
}

/// Where this node is.
pub struct Node {
    pub ip: Ipv4Addr,
    ip_config: IpConfig,
    neighbours: Vec<dat_nostd::Neighbour, MAX_NEIGHBOURS>,
}

impl Node {
    /// From the command line.
    pub fn from(machine: &Machine<'_>) -> Result<Self, cmdline::Error<'static>> {
        let options = &machine.options;
        let ip = options.ip.ok_or(missing("ip", "this node's IPv4 address"))?;
        let mut neighbours = Vec::new();
        for (address, gid) in &options.neighbours {
            // As many as the command line holds fit.
            let _ = neighbours.push((IpAddr::V4(*address), Gid(gid.octets())));
        }
        let (prefix_len, gateway) = (options.prefix_len, options.gateway);
        Ok(Self { ip, ip_config: IpConfig { prefix_len, gateway, ..IpConfig::DEFAULT }, neighbours })
    }
}

/// An error for a key that the application needs.
pub const fn missing(key: &'static str, expected: &'static str) -> cmdline::Error<'static> {
    cmdline::Error::Missing { key, expected }
}

/// The side that the command line says.
pub fn role(machine: &Machine<'_>) -> Result<apps::Role, cmdline::Error<'static>> {
    match machine.options.role {
        Some(cmdline::Role::Server) => Ok(apps::Role::Server),
        Some(cmdline::Role::Client) => Ok(apps::Role::Client),
        None => Err(missing("role", "server or client")),
    }
}

/// The other node that the command line names.
pub fn peer(machine: &Machine<'_>) -> Result<Ipv4Addr, cmdline::Error<'static>> {
    machine.options.peer.ok_or(missing("peer", "the other node's IPv4 address"))
}

/// Runs `work` on an adapter and says how it went; what is wrong with the command line has been said by `setup`.
pub fn run<C>(
    machine: &Machine<'_>,
    setup: Result<(Node, C), cmdline::Error<'static>>,
    mut work: impl FnMut(&mut Adapter<'_, BareMetal>, &C) -> Result<(), Failure>,
) -> ExitCode {
    let (node, config) = match setup {
        Ok(setup) => setup,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::Usage;
        }
    };
    let mut hardware = match Hardware::open(machine, VECTORS) {
        Ok(hardware) => hardware,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::NoDevice;
        }
    };
    for (name, micros) in machine.steps.micros() {
        println!("@step name=boot_{name} us={micros}");
    }
    let mut life = |hardware: &mut Hardware| life(machine, hardware, &node, |adapter| work(adapter, &config));
    let mut result = life(&mut hardware);
    if let Err(Failure::Open(OpenError::Hca(Error::NicInterface(_)))) = result {
        println!("hca: left behind by somebody: function-level reset");
        result = hardware.reset(machine).map_err(Failure::Platform).and_then(|()| life(&mut hardware));
    }
    let code = match result {
        Ok(()) => ExitCode::Success,
        Err(failure) => {
            println!("error: {failure}");
            failure.exit_code()
        }
    };
    println!("@done verified={}", code == ExitCode::Success);
    code
}

fn life(
    machine: &Machine<'_>,
    hardware: &mut Hardware,
    node: &Node,
    work: impl FnOnce(&mut Adapter<'_, BareMetal>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (region, host) = hardware.memory().map_err(Failure::Platform)?;
    let mut tables = TABLES.lock();
    let config = AdapterConfig::new(ADAPTER, node.ip.into(), &node.neighbours, machine.identity.seed);
    let config = AdapterConfig {
        generation: machine.identity.boot_generation,
        hca: HCA,
        // Who is told where everybody is asks nobody.
        ip: config.ip.is_some().then_some(node.ip_config),
        ..config
    };
    let start = clock::now();
    let mut adapter =
        Adapter::open(hardware.platform, region, host, tables.parts(), &config).map_err(Failure::Open)?;
    let mut names = [RegistryEntry::EMPTY; 2];
    let mut registry = Registry::new(&mut names);
    for name in [ADAPTER, ADAPTER_DAT] {
        registry.registry_add_provider(&mut adapter, ProviderInfo::new(name)).map_err(Failure::app)?;
    }
    for time in adapter.hca().steps() {
        println!("@step name={} us={}", time.step.name(), time.took.as_micros());
    }
    println!("@step name=adapter_open us={}", (clock::now() - start) / 1000);
    let outcome = work(&mut adapter);
    if let Some(cause) = adapter.hca().fatal() {
        return Err(Failure::DeviceLost(Error::Fatal(cause)));
    }
    let down = clock::now();
    let closed = adapter.close().map_err(Failure::Hca);
    println!("@step name=adapter_close us={}", (clock::now() - down) / 1000);
    outcome.and(closed)
}

/// Polls the adapter and then `step` until that is done; sleeps whenever there is nothing to do.
pub fn drive(
    adapter: &mut Adapter<'_, BareMetal>,
    mut step: impl FnMut(&mut Adapter<'_, BareMetal>, u64) -> Result<Status, Failure>,
) -> Result<(), Failure> {
    loop {
        let now = clock::now();
        let wake = adapter.poll(Instant::from_nanos(now));
        let Status::Working(deadline) = step(adapter, now)? else { return Ok(()) };
        if let Some(cause) = adapter.hca().fatal() {
            return Err(Failure::DeviceLost(Error::Fatal(cause)));
        }
        let wake = wake.earliest(Wake::At(Instant::from_nanos(deadline)));
        if !wake.is_due(Instant::from_nanos(now)) && adapter.prepare_idle(Instant::from_nanos(clock::now())) {
            interrupts::idle(wake.deadline(Instant::from_nanos(now)).unwrap_or(Instant::MAX).as_nanos());
        }
    }
}

/// Goes on for a while after the work is done.
pub fn linger(adapter: &mut Adapter<'_, BareMetal>) -> Result<(), Failure> {
    let end = clock::now() + LINGER_NANOS;
    drive(adapter, |_, now| Ok(if now >= end { Status::Done } else { Status::Working(end) }))
}

/// Waits until IP packets move, and says where.
pub fn wait_ip_up(adapter: &mut Adapter<'_, BareMetal>) -> Result<(), Failure> {
    let start = clock::now();
    let end = start + IP_UP_NANOS;
    drive(adapter, |adapter, now| {
        let Some(ip) = adapter.ip() else {
            return Err(Failure::app("there is no IP with neighbours= on the command line"));
        };
        if ip.is_up() {
            println!(
                "@ip address={}/{} mtu={} up_us={}",
                ip.address(),
                ip.prefix_len(),
                ip.mtu(),
                (now - start) / 1000
            );
            return Ok(Status::Done);
        }
        if now >= end {
            return Err(Failure::app(
                "the port joined no broadcast group in 30 s: is there a subnet administrator?",
            ));
        }
        Ok(Status::Working(end))
    })
}

/// Whether somebody asks for the end at the console; looks now and then.
pub struct QuitLine {
    input: Input,
    next_look: u64,
}

impl QuitLine {
    pub const fn new() -> Self {
        Self { input: Input::new(), next_look: 0 }
    }

    /// Whether `@quit` has come; else when to look again.
    pub fn poll(&mut self, now: u64) -> Status {
        self.poll_or(now, |_| false)
    }

    /// The same; other lines are shown to `known`, which says whether they mean something to it.
    pub fn poll_or(&mut self, now: u64, mut known: impl FnMut(&str) -> bool) -> Status {
        if now >= self.next_look {
            self.next_look = now + INPUT_NANOS;
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
                return Status::Done;
            }
        }
        Status::Working(self.next_look)
    }
}
