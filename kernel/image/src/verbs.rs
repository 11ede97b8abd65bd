//! `app=verbs`: one side of a reliable connection on the driver alone. Prints its own numbers as an `@verbs` line; takes the peer's
//! from the command line or as a `@peer` line on COM1; then moves data by every operation both ways.

use apps::Status;
use apps::verbs::{Address, Config, Verbs, VerbsError};
use driver_mlx::{Error, Hca, HcaStorage, Instant, Psn, Wake};
use heapless::String;
use unikernel::console::Input;
use unikernel::failure::{Failure, conclude};
use unikernel::hca::BareMetal;
use unikernel::options::{Error as UsageError, MAX_LEN_BYTES};
use unikernel::{Clock, ExitCode, Machine, Mutex, println, verbs};

use crate::cmdline::Options;

/// Blocks of 4 KiB that the driver can manage: a DMA region of up to 256 MiB.
const BLOCKS: usize = 65_536;
const SECOND: u64 = 1_000_000_000;
/// How long nothing may move.
const STALL_NANOS: u64 = 30 * SECOND;
/// How often the console is looked at for the peer's line.
const INPUT_NANOS: u64 = 5_000_000;

static STORAGE: Mutex<HcaStorage<BLOCKS>> = Mutex::new(HcaStorage::new());

struct Node {
    config: Config,
    peer: Option<Address>,
    wait_seconds: u64,
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
    let node = Node { config, peer, wait_seconds };
    conclude(verbs::run(machine, options.hca, options.dma_bytes, &mut *STORAGE.lock(), |hca, clock| {
        exchange(hca, clock, &node)
    }))
}

fn exchange(hca: &mut Hca<'_, BareMetal>, clock: Clock, node: &Node) -> Result<(), Failure> {
    verbs::wait_active(hca, clock, |_| {})?;
    let mut verbs = Verbs::new(hca, node.config).map_err(failed)?;
    println!("@verbs {}", verbs.address(hca).map_err(failed)?);
    let peer = match node.peer {
        Some(peer) => peer,
        None => wait_for_peer(hca, clock, node.wait_seconds)?,
    };
    verbs.connect(hca, &peer).map_err(failed)?;
    loop {
        let now = clock.now();
        let wake = hca.poll(Instant::from_nanos(now));
        let status = verbs.poll(hca, now).map_err(failed)?;
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
            return Err(Failure::DeviceLost(Error::Fatal(cause)));
        }
        if deadline > now && verbs.prepare_idle(hca) {
            let wake = wake.earliest(Wake::At(Instant::from_nanos(deadline)));
            clock.idle(wake.deadline(Instant::from_nanos(now)).map_or(now, Instant::as_nanos));
        }
    }
    verbs.close(hca).map_err(failed)
}

fn failed(error: VerbsError) -> Failure {
    match error {
        VerbsError::Driver(error) => Failure::Hca(error),
        error => Failure::app(error),
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
            return Err(Failure::app(format_args!("no @peer line for {seconds} s")));
        }
        let _ = hca.poll(Instant::from_nanos(now));
        while hca.next_event().is_some() {}
        if let Some(cause) = hca.fatal() {
            return Err(Failure::DeviceLost(Error::Fatal(cause)));
        }
        clock.idle(now + INPUT_NANOS);
    }
}
