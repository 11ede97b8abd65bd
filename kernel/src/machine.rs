//! Brings the machine up and starts the application.

use core::fmt::Display;
use core::panic::PanicInfo;

use heapless::Vec;
use kernel::acpi;
use kernel::cmdline::{MAX_LEN_BYTES, Options};
use kernel::exit::ExitCode;
use kernel::memory_map::{MemoryMap, Range};
use kernel::pci::{self, Function, MAX_FUNCTIONS};
use x86_64::instructions::interrupts as cpu_interrupts;

use crate::arch::boot::BootMemory;
use crate::arch::clock::{self, Reference};
use crate::arch::config_space::ConfigSpace;
use crate::arch::entropy::{self, Identity};
use crate::arch::exit::exit;
use crate::arch::{apic, debug_log, exceptions, interrupts};
use crate::console::{self, println};
use crate::{app, mem};

/// What an application finds.
pub struct Machine<'a> {
    /// The command line.
    pub options: Options<'a>,
    /// Usable RAM in bytes, and the ranges left over after image and DMA region.
    pub ram_bytes: u64,
    /// Memory not given to anybody.
    pub free: MemoryMap,
    /// The region for devices: physical addresses, which are the virtual ones too.
    pub dma: Range,
    /// PCI configuration space.
    pub config_space: ConfigSpace,
    /// The PCI functions found.
    pub functions: Vec<Function, MAX_FUNCTIONS>,
    /// Seed and boot generation.
    pub identity: Identity,
    /// What the clock was calibrated against.
    pub clock_reference: Reference,
    /// The boot's steps and what they took.
    pub steps: Steps,
}

/// Names of steps, each with the TSC at its end.
pub struct Steps {
    start_tsc: u64,
    ends: Vec<(&'static str, u64), 8>,
}

impl Steps {
    fn done(&mut self, name: &'static str) {
        // Steps beyond the list's room are not timed.
        let _ = self.ends.push((name, clock::tsc()));
    }

    /// Each step and its time in microseconds.
    pub fn micros(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let starts = core::iter::once(self.start_tsc).chain(self.ends.iter().map(|(_, end)| *end));
        starts.zip(&self.ends).map(|(start, (name, end))| (*name, clock::nanos(end - start) / 1000))
    }
}

/// From the entry to the application's end.
pub fn start(boot: BootMemory) -> ! {
    let mut steps = Steps { start_tsc: clock::tsc(), ends: Vec::new() };
    console::init();
    debug_log::init();
    exceptions::init();

    let info = boot.start_info().unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let mut command_line = [0; MAX_LEN_BYTES];
    let len = boot.command_line(&info, &mut command_line);
    let text =
        command_line.get(..len).unwrap_or_else(|| fail(ExitCode::Usage, &kernel::cmdline::Error::TooLong));
    let options = Options::parse_bytes(text).unwrap_or_else(|error| fail(ExitCode::Usage, &error));

    // ACPI is read through the boot page tables, which map all of what is below 4 GiB.
    let acpi = acpi::Tables::find(&boot, info.rsdp);
    let all = MemoryMap::from_entries(boot.memory_map(&info))
        .unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let (free, dma) = divide_memory(&all, options.dma_bytes);
    mem::init(&all).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    steps.done("memory");

    interrupts::mask_pic();
    apic::init().unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let clock_reference =
        clock::calibrate(acpi.pm_timer_port).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    cpu_interrupts::enable();
    steps.done("clock");
    let identity = entropy::gather();
    steps.done("seed");

    let config_space = ConfigSpace::new(acpi.ecam).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let functions = pci::functions(&config_space);
    steps.done("pci");
    let machine = Machine {
        options,
        ram_bytes: all.total_bytes(),
        free,
        dma,
        config_space,
        functions,
        identity,
        clock_reference,
        steps,
    };
    defmt::info!("kernel: up, seed {=u128:x}, tsc {=u64} Hz", identity.seed, clock::tsc_hz());
    exit(app::run(&machine))
}

/// Takes image and DMA region out of the usable memory.
fn divide_memory(all: &MemoryMap, dma_bytes: u64) -> (MemoryMap, Range) {
    const LOWEST: u64 = 1 << 20;
    const ALIGN: u64 = 2 << 20;
    let mut free = all.clone();
    for taken in [mem::image(), Range { start: mem::MAPPED_RAM_END, end: u64::MAX }] {
        free.remove(taken).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    }
    match free.take(dma_bytes, ALIGN, LOWEST) {
        Some(dma) => (free, dma),
        None => fail(
            ExitCode::Machine,
            &format_args!(
                "memory: no room for dma={} KiB; the longest free run is {} KiB",
                dma_bytes >> 10,
                free.longest_bytes(LOWEST) >> 10
            ),
        ),
    }
}

/// Prints one line and ends the machine.
pub fn fail(code: ExitCode, error: &dyn Display) -> ! {
    println!("error: {error}");
    exit(code)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    match info.location() {
        Some(at) => console::print_regardless(format_args!(
            "error: panic at {}:{}:{}: {}\n",
            at.file(),
            at.line(),
            at.column(),
            info.message()
        )),
        None => console::print_regardless(format_args!("error: panic: {}\n", info.message())),
    }
    exit(ExitCode::Panic)
}
