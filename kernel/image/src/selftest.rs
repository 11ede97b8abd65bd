//! `app=selftest`: what the card can do without a partner, step by step.

use apps::selftest::{self, Storage};
use driver_mlx::{Config, MmioBar};
use unikernel::hca;
use unikernel::verbs::{CONFIG, VECTORS};
use unikernel::{ExitCode, Machine, Mutex, println};

use crate::cmdline::Options;
use crate::node;

static STORAGE: Mutex<Storage<MmioBar>> = Mutex::new(Storage::new());

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    machine.list_hcas();
    let hardware = match machine.open_hca(options.hca, VECTORS) {
        Ok(hardware) => hardware,
        Err(error) => {
            println!("error: {error}");
            println!("@done verified=false");
            return ExitCode::NoDevice;
        }
    };
    let config = Config { physical_function: hardware.is_physical(), ..CONFIG };
    let mut storage = STORAGE.lock();
    let platform = hardware.platform();
    let mut memory = || machine.dma(options.dma_bytes).ok().and_then(|memory| hca::regions(memory).ok());
    let (first, second) = (memory(), memory());
    let out = &mut |line: core::fmt::Arguments<'_>| println!("{line}");
    let mut summary = selftest::run(platform, first, &mut storage, &config, out);
    let boot = node::generation(machine);
    selftest::layers(platform, second, &mut storage, (&config, boot), &mut summary, out);
    summary.tell(&mut |line| println!("{line}"));
    println!("@done verified={}", summary.verified());
    if summary.verified() { ExitCode::Success } else { ExitCode::Failed }
}
