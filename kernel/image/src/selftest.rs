//! `app=selftest`: what the card can do without a partner, step by step.

use apps::selftest::{self, Storage};
use driver_mlx::{Config, MmioBar};
use unikernel::failure::conclude;
use unikernel::hca;
use unikernel::verbs::{self, CONFIG};
use unikernel::{ExitCode, Machine, Mutex, println};

use crate::cmdline::Options;
use crate::node;

static STORAGE: Mutex<Storage<MmioBar>> = Mutex::new(Storage::new());

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    machine.list_hcas();
    let mut storage = STORAGE.lock();
    let hardware = match verbs::open(machine, options.hca, options.dma_bytes, &mut *storage, Storage::hca) {
        Ok(hardware) => hardware,
        Err(failure) => return conclude(Err(failure)),
    };
    let config = Config { physical_function: hardware.is_physical(), ..CONFIG };
    let platform = hardware.platform();
    let mut memory = || machine.dma(options.dma_bytes).ok().and_then(|memory| hca::regions(memory).ok());
    let (first, second) = (memory(), memory());
    let out = &mut |line: core::fmt::Arguments<'_>| println!("{line}");
    let mut summary = selftest::run(platform, first, &mut storage, (&config, options.dump), out);
    let boot = node::generation(machine);
    selftest::layers(platform, second, &mut storage, (&config, boot), &mut summary, out);
    summary.tell(&mut |line| println!("{line}"));
    println!("@done verified={}", summary.verified());
    if summary.verified() { ExitCode::Success } else { ExitCode::Failed }
}
