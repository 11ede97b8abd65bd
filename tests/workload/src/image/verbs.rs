//! `program=verbs`: prints its address as an `@verbs` line and takes the peer's as a `@peer` line on
//! COM1.

use driver_mlx::{Duration, Error, Hca, HcaStorage, Psn};
use unikernel::choice::Choice;
use unikernel::console::Input;
use unikernel::failure::Failure;
use unikernel::hca::BareMetal;
use unikernel::{Clock, Machine, Mutex, Options, println, verbs};
use workload::verbs::{Address, Config, Verbs, VerbsError};

use super::role;
use core::ops::ControlFlow;

/// Pages that the driver manages: the DMA memory.
const BLOCKS: usize = (DMA_BYTES >> 12) as usize;
const DMA_BYTES: u64 = 16 << 20;
const STALL: Duration = Duration::from_secs(30);
/// Interval at which the console is polled, in nanoseconds.
const INPUT: Duration = Duration::from_millis(5);

static STORAGE: Mutex<HcaStorage<BLOCKS>> = Mutex::new(HcaStorage::new());

pub(super) fn run(machine: &mut Machine, options: &Options<'static>) -> Result<(), Failure> {
    let wait = Duration::from_secs(options.value("wait")?.unwrap_or(60));
    let hca = options.value("hca")?.unwrap_or(Choice::Nth(0));
    let psn = Psn::new(machine.seed() as u32 & 0xff_ffff);
    let config = Config { role: role(options)?, psn, connect_timeout: wait, stall_timeout: STALL };
    verbs::run(machine, hca, DMA_BYTES, &mut *STORAGE.lock(), |hca, clock| exchange(hca, clock, config))
}

fn exchange(hca: &mut Hca<'_, BareMetal>, clock: Clock, config: Config) -> Result<(), Failure> {
    verbs::wait_active(hca, clock, |_| {})?;
    let mut verbs = Verbs::new(hca, config).map_err(failed)?;
    println!("@verbs {}", verbs.address(hca).map_err(failed)?);
    let peer = wait_for_peer(hca, clock, config.connect_timeout)?;
    verbs.connect(hca, &peer).map_err(failed)?;
    loop {
        let now = clock.now();
        let wake = hca.poll(now);
        let status = verbs.poll(hca, now).map_err(failed)?;
        if let Some(result) = verbs.take_result() {
            println!("@result {result}");
        }
        let ControlFlow::Continue(own) = status else { break };
        fail_if_lost(hca)?;
        if !own.is_due(now) && verbs.prepare_idle(hca) {
            let wake = wake.earliest(own);
            clock.idle(wake.deadline(now).unwrap_or(now));
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

fn fail_if_lost(hca: &Hca<'_, BareMetal>) -> Result<(), Failure> {
    hca.fatal().map_or(Ok(()), |cause| Err(Failure::DeviceLost(Error::Fatal(cause))))
}

/// Reads the peer's line from the console. Reports other lines.
fn wait_for_peer(hca: &mut Hca<'_, BareMetal>, clock: Clock, wait: Duration) -> Result<Address, Failure> {
    let end = clock.now() + wait;
    let mut input = Input::new();
    loop {
        let peer = input.poll(|line| {
            let words = line.map(|line| line.strip_prefix("@peer "));
            match words.map(|words| words.map(Address::parse)) {
                Ok(Some(Ok(peer))) => return Some(peer),
                Ok(Some(Err(error))) => println!("console input: @peer: {error}"),
                Ok(None) => println!("console input: not a @peer line"),
                Err(error) => println!("{error}"),
            }
            None
        });
        if let Some(Some(peer)) = peer {
            return Ok(peer);
        }
        let now = clock.now();
        if now > end {
            return Err(Failure::app(format_args!("no @peer line for {} s", wait.as_secs())));
        }
        let _ = hca.poll(now);
        while hca.next_event().is_some() {}
        fail_if_lost(hca)?;
        clock.idle(now + INPUT);
    }
}
