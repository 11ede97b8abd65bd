//! `app=verbs`: one side of a reliable connection on the driver alone. Prints its own numbers as an `@verbs` line; takes the peer's
//! from the command line or as a `@peer` line on COM1; then moves data by every operation both ways.

use apps::Status;
use apps::verbs::{Address, Config, Verbs, VerbsError};
use dat_nostd::{Duration, Instant, Wake};
use driver_mlx::{Error, Hca, HcaStorage, LinkState, Psn};
use heapless::String;
use unikernel::ExitCode;
use unikernel::Mutex;
use unikernel::options::{Error as UsageError, MAX_LEN_BYTES};

use unikernel::Clock;
use unikernel::Machine;
use unikernel::console::{Input, println};
use unikernel::hca::{self, BareMetal, Hardware};
use unikernel::memory::NoMemory;

use crate::cmdline::Options;

/// Blocks of 4 KiB that the driver can manage: a DMA region of up to 256 MiB.
const BLOCKS: usize = 65_536;
/// MSI-X vector 0 for asynchronous events, 1 for completions.
const HCA: driver_mlx::Config =
    driver_mlx::Config { async_vector: 0, completion_vector: 1, ..driver_mlx::Config::DEFAULT };
const VECTORS: u16 = 2;
const SECOND: u64 = 1_000_000_000;
/// How long the subnet manager may take, and how long nothing may move.
const ACTIVE_LIMIT_NANOS: u64 = 30 * SECOND;
const STALL_NANOS: u64 = 30 * SECOND;
/// How often the port is asked, should its event be missed.
const ASK_NANOS: u64 = SECOND / 10;
/// How often the console is looked at for the peer's line.
const INPUT_NANOS: u64 = 5_000_000;

static STORAGE: Mutex<HcaStorage<BLOCKS>> = Mutex::new(HcaStorage::new());

enum Failure {
    Platform(hca::Error),
    Memory(NoMemory),
    Hca(Error),
    Verbs(VerbsError),
    NotActive(LinkState),
    NoPeer(u64),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Hca(error)
    }
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        Failure::Verbs(error)
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Platform(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::Hca(error) => error.fmt(f),
            Self::Verbs(error) => error.fmt(f),
            Self::NotActive(state) => write!(
                f,
                "the port is {state:?}, not Active, after {} s: is there a subnet manager?",
                ACTIVE_LIMIT_NANOS / SECOND
            ),
            Self::NoPeer(seconds) => write!(f, "no @peer line for {seconds} s"),
        }
    }
}

struct Node {
    config: Config,
    peer: Option<Address>,
    wait_seconds: u64,
    dma_bytes: u64,
}

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let Some(role) = options.role else {
        println!("error: {}", UsageError::Missing { key: "role", expected: "server or client" });
        return ExitCode::Usage;
    };
    let mut words: String<MAX_LEN_BYTES> = String::new();
    for word in &options.peer_words {
        // The command line, of which these are parts, is no longer than this.
        let _ = words.push_str(word).and_then(|()| words.push(' '));
    }
    let peer = match (!words.is_empty()).then(|| Address::parse(&words)).transpose() {
        Ok(peer) => peer,
        Err(error) => {
            println!("error: command line: the peer's words without their peer_: {error}");
            return ExitCode::Usage;
        }
    };
    let wait_seconds = options.wait_seconds;
    let config = Config {
        role,
        psn: Psn::new(machine.seed() as u32 & 0xff_ffff),
        connect_timeout: wait_seconds.saturating_mul(SECOND),
        stall_timeout: STALL_NANOS,
    };
    let hardware = match machine.open_hca(options.hca, VECTORS) {
        Ok(hardware) => hardware,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::NoDevice;
        }
    };
    let node = Node { config, peer, wait_seconds, dma_bytes: options.dma_bytes };
    let mut result = node_life(machine, &hardware, &node);
    if let Err(Failure::Hca(error)) = &result
        && error.wants_reset()
        && !matches!(error, Error::Fatal(_))
    {
        println!("hca: {error}: function-level reset");
        result = hardware
            .reset(machine.config_space())
            .map_err(Failure::Platform)
            .and_then(|()| node_life(machine, &hardware, &node));
    }
    let code = match &result {
        Ok(()) => ExitCode::Success,
        Err(Failure::Platform(_)) => ExitCode::NoDevice,
        Err(Failure::Memory(_)) => ExitCode::Machine,
        Err(Failure::Hca(Error::NotPresent | Error::Fatal(_))) => ExitCode::DeviceLost,
        Err(_) => ExitCode::Failed,
    };
    if let Err(failure) = result {
        println!("error: {failure}");
    }
    println!("@done verified={}", code == ExitCode::Success);
    code
}

fn node_life(machine: &mut Machine, hardware: &Hardware, node: &Node) -> Result<(), Failure> {
    let memory = machine.dma(node.dma_bytes).map_err(Failure::Memory)?;
    let (region, host) = hca::regions(memory).map_err(Failure::Platform)?;
    let clock = machine.clock();
    let mut storage = STORAGE.lock();
    let config = driver_mlx::Config { physical_function: hardware.is_physical(), ..HCA };
    let mut hca = Hca::bring_up(hardware.platform(), region, host, storage.parts(), &config)?;
    let outcome = verbs(&mut hca, clock, node);
    let outcome = match hca.fatal() {
        Some(cause) => Err(Failure::Hca(Error::Fatal(cause))),
        None => outcome,
    };
    let down = hca.tear_down();
    outcome.and(down.map_err(Failure::Hca))
}

fn verbs(hca: &mut Hca<'_, BareMetal>, clock: Clock, node: &Node) -> Result<(), Failure> {
    wait_active(hca, clock)?;
    let mut verbs = Verbs::new(hca, node.config)?;
    println!("@verbs {}", verbs.address(hca)?);
    let peer = match node.peer {
        Some(peer) => peer,
        None => wait_for_peer(hca, clock, node.wait_seconds)?,
    };
    verbs.connect(hca, &peer)?;
    loop {
        let now = clock.now();
        let wake = hca.poll(Instant::from_nanos(now));
        let status = verbs.poll(hca, now)?;
        if let Some(result) = verbs.take_result() {
            println!(
                "@result op={} messages={} bytes={} verified={} ns={}",
                result.operation.name(),
                result.messages,
                result.bytes,
                result.verified,
                result.ns
            );
        }
        let Status::Working(deadline) = status else { break };
        if let Some(cause) = hca.fatal() {
            return Err(Failure::Hca(Error::Fatal(cause)));
        }
        if deadline > now && verbs.prepare_idle(hca) {
            let wake = wake.earliest(Wake::At(Instant::from_nanos(deadline)));
            clock.idle(wake.deadline(Instant::from_nanos(now)).map_or(now, Instant::as_nanos));
        }
    }
    Ok(verbs.close(hca)?)
}

fn wait_active(hca: &mut Hca<'_, BareMetal>, clock: Clock) -> Result<(), Failure> {
    let limit = clock.now() + ACTIVE_LIMIT_NANOS;
    loop {
        let state = hca.port()?.state;
        if state == LinkState::Active {
            return Ok(());
        }
        let now = clock.now();
        if now > limit {
            return Err(Failure::NotActive(state));
        }
        hca.arm_events();
        let now = Instant::from_nanos(now);
        let wake = hca.poll(now).earliest(Wake::At(now + Duration::from_nanos(ASK_NANOS)));
        clock.idle(wake.deadline(now).unwrap_or(now).as_nanos());
        let _ = hca.poll(Instant::from_nanos(clock.now()));
        while hca.next_event().is_some() {}
    }
}

/// The peer's line from the console. Lines that are something else are said to be so, and passed over.
fn wait_for_peer(hca: &mut Hca<'_, BareMetal>, clock: Clock, seconds: u64) -> Result<Address, Failure> {
    let end = clock.now().saturating_add(seconds.saturating_mul(SECOND));
    let mut input = Input::new();
    loop {
        let peer = input.poll(|line| match line {
            Ok(line) => match line.strip_prefix("@peer ") {
                Some(words) => match Address::parse(words) {
                    Ok(peer) => Some(peer),
                    Err(error) => {
                        println!("console input: @peer: {error}");
                        None
                    }
                },
                None => {
                    println!("console input: not a @peer line");
                    None
                }
            },
            Err(error) => {
                println!("{error}");
                None
            }
        });
        if let Some(Some(peer)) = peer {
            return Ok(peer);
        }
        let now = clock.now();
        if now > end {
            return Err(Failure::NoPeer(seconds));
        }
        let _ = hca.poll(Instant::from_nanos(now));
        while hca.next_event().is_some() {}
        if let Some(cause) = hca.fatal() {
            return Err(Failure::Hca(Error::Fatal(cause)));
        }
        clock.idle(now + INPUT_NANOS);
    }
}
