//! `app=selftest`: what the card can do without a partner, step by step.

use apps::selftest::{self, Summary};
use driver_mlx::{Config, HcaStorage};
use unikernel::hca;
use unikernel::verbs::{CONFIG, VECTORS};
use unikernel::{ExitCode, Machine, Mutex, println};

use crate::cmdline::Options;

/// Blocks of 4 KiB that the driver can manage: a DMA region of up to 512 MiB, as the newest cards may want.
const BLOCKS: usize = 131_072;

static STORAGE: Mutex<HcaStorage<BLOCKS>> = Mutex::new(HcaStorage::new());

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
    let summary: Summary =
        selftest::run(&platform, &mut memory, &mut *storage, &config, &mut |line| println!("{line}"));
    summary.tell(&mut |line| println!("{line}"));
    println!("@done verified={}", summary.verified());
    if summary.verified() { ExitCode::Success } else { ExitCode::Failed }
}
