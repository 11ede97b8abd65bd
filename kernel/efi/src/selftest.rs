//! The self-test of all cards of a machine.

use crate::entry::Program;
use crate::memory;
use apps::rds::Generation;
use apps::selftest::{self, Storage, Summary};
use driver_mlx::pci::VENDOR_MELLANOX;
use driver_mlx::{Config, DmaRegion, HostRegion};
use platform_uefi::{Clock, Device, DmaMemory, Error, Function, HostMemory, UefiBar, functions};
use r_efi::efi::Status;
use spin::Mutex;

static STORAGE: Mutex<Storage<UefiBar>> = Mutex::new(Storage::new());

/// Tests all cards, one after the other. The status says whether all passed.
pub fn run(program: &mut Program) -> Status {
    let firmware = program.firmware();
    let clock = Clock::measure(firmware);
    program.line(format_args!("clock: {} kHz", clock.ticks_per_second() / 1000));
    let list = match functions(firmware) {
        Ok(list) => list,
        Err(error) => {
            program.line(format_args!("error: {error}"));
            return Status::DEVICE_ERROR;
        }
    };
    let (mut cards, mut verified) = (0, 0);
    for function in list.filter(|function| function.ids().0 == VENDOR_MELLANOX) {
        let Some(identity) = function.identity() else {
            let (vendor, device) = function.ids();
            program.line(format_args!("{function}: not taken: {}", Error::NotAnHca { vendor, device }));
            continue;
        };
        cards += 1;
        program.line(format_args!(
            "@card number={cards} {function} {:?} bus_master={}",
            identity.generation,
            if function.masters_bus() { "on" } else { "off" }
        ));
        verified += u32::from(test(program, &function, clock));
    }
    program.line(format_args!("@done cards={cards} verified={}", cards > 0 && verified == cards));
    match cards {
        0 => Status::NOT_FOUND,
        _ if verified == cards => Status::SUCCESS,
        _ => Status::DEVICE_ERROR,
    }
}

/// Tests a card. Returns whether it is sound.
fn test(program: &mut Program, function: &Function, clock: Clock) -> bool {
    let tested = program.with_device(function, clock, |program, device| {
        // Separate memory for each half, in case the card is not taken down between them.
        let memories = [memory(program, device), memory(program, device)];
        let [first, second] = memories.each_ref().map(|memory| memory.as_ref().and_then(memory_regions));
        let out = &mut |line: core::fmt::Arguments<'_>| program.line(line);
        let (storage, platform) = (&mut *STORAGE.lock(), device.platform());
        let config = Config { physical_function: platform.is_physical(), ..Config::DEFAULT };
        let mut summary = selftest::run(platform, first, storage, (&config, true), out);
        let layers = (&config, Generation::UNKNOWN);
        selftest::layers(platform, second, storage, layers, &mut summary, out);
        summary.tell(out);
        (summary, memories)
    });
    match tested {
        Ok((summary, memories)) => {
            for (dma, host) in memories.into_iter().flatten() {
                // SAFETY: the device is closed, so bus mastering is off, and the self-test has
                // returned.
                unsafe {
                    dma.free();
                    host.free();
                }
            }
            Summary::verified(&summary)
        }
        Err(error) => {
            program.line(format_args!("error: {error}"));
            false
        }
    }
}

fn memory(program: &mut Program, device: &Device) -> Option<(DmaMemory, HostMemory)> {
    let memory = memory::of_card(program.firmware(), device);
    match &memory {
        Some((dma, _)) => program.line(format_args!("memory for the card: {} MiB", dma.len() >> 20)),
        None => program.line(format_args!("error: {}", memory::TOO_LITTLE)),
    }
    memory
}

fn memory_regions(memory: &(DmaMemory, HostMemory)) -> Option<(DmaRegion, HostRegion)> {
    // SAFETY: the only region over each memory, which is freed after the self-test has returned.
    unsafe { memory::regions(memory) }
}
