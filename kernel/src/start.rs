//! From the loader to the application. Boot order: start information, exceptions, page tables, clock and interrupts, PCI, then the
//! application.

use core::fmt::Display;
use core::panic::PanicInfo;

use heapless::Vec;
use spin::Once;
use x86_64::instructions::interrupts as cpu_interrupts;

use crate::acpi::{self, Unit};
use crate::arch::boot_memory::BootMemory;
use crate::arch::config_space::ConfigSpace;
use crate::arch::exit::{self, exit};
use crate::arch::log_memory::RANGE;
use crate::arch::{
    apic, application, clock, debug_log, emergency, entropy, exceptions, interrupts, layout, screen, serial,
};
use crate::console;
use crate::exit::ExitCode;
use crate::information::MAX_MODULES;
use crate::iommu::{self, Found};
use crate::machine::{Machine, Steps};
use crate::mem::registers::Units;
use crate::memory_map::{MemoryMap, Range};
use crate::modules::Module;
use crate::options::{self, MAX_LEN_BYTES};
use crate::pci::Numbers;
use crate::pci::assign::Room;
use crate::uart::Setting;
use crate::{io_apic, mem, pci, println};

static MODULES: Once<Vec<Module, MAX_MODULES>> = Once::new();
static COMMAND_LINE: Once<Vec<u8, { MAX_LEN_BYTES + 1 }>> = Once::new();

/// From the entry to the application's end.
pub fn start(boot: BootMemory) -> ! {
    let mut steps = Steps::new();
    console::init();
    debug_log::init();
    exceptions::init();

    let info = boot.information().unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let bytes = COMMAND_LINE.call_once(|| boot.command_line(&info));
    let command_line = options::text(bytes).unwrap_or_else(|error| fail(ExitCode::Usage, &error));

    let options = options::Boot::parse(command_line).unwrap_or_else(|error| fail(ExitCode::Usage, &error));
    if let Some(end) = options.end {
        exit::set_end(end);
    }
    if options.reset_after_panic {
        exit::reset_after_panic();
    }

    // ACPI is read through the boot page tables, which map all of what is below 4 GiB.
    let acpi = acpi::Tables::find(&boot, info.rsdp);
    exit::set_power(acpi.power);
    let mut all = MemoryMap::from_entries(boot.memory_map(&info))
        .unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    if !all.contains(layout::image()) {
        fail(
            ExitCode::Machine,
            &"boot: the image lies in memory that firmware keeps; nothing here can be relied on",
        );
    }
    let registers = acpi.remapping.iter().map(|unit| unit.range());
    let known = acpi.ecam.iter().map(acpi::Ecam::range).chain(registers);
    let room = Room::new(boot.memory_map(&info), known, mem::physical_address_bits());
    let modules = boot.modules(&info);
    let in_log = modules.iter().any(|module| module.pages().overlaps(RANGE));
    // Where the machine has memory at that place.
    let keep_log = !options.no_log && !in_log && all.contains(RANGE) && RANGE.start >= layout::image().end;
    if keep_log {
        all.remove(RANGE).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    }
    let mut free = all.clone();
    for taken in [layout::image(), Range { start: mem::mapped_ram_end(), end: u64::MAX }] {
        free.remove(taken).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    }
    let usable = |module: &&Module| {
        let inside = all.contains(module.pages()) && module.pages().end <= mem::mapped_ram_end();
        inside && !module.pages().overlaps(layout::image())
    };
    let mut files = Vec::<Module, MAX_MODULES>::new();
    for file in modules.iter().filter(usable) {
        free.remove(file.pages()).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
        let _ = files.push(file.clone());
    }
    let screen_found = boot.screen(&info);
    mem::init(&all).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    exit::map_power();
    choose_ports(&options, acpi.console);
    if let Err(error) = screen::init(screen_found, &all) {
        println!("screen: not used: {error}");
    }
    if keep_log {
        console::keep_log().unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    }
    steps.done("memory");

    interrupts::mask_pic();
    mask_io_apics(&acpi.io_apics);
    apic::init(acpi.no_x2apic).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let hpet = || {
        let start = acpi.hpet?;
        Units::new(1).ok()?.window(Range { start, end: start.checked_add(4096)? }).ok()
    };
    let reference = clock::calibrate(acpi.pm_timer_port, hpet, options.clock)
        .unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    cpu_interrupts::enable();
    steps.done("clock");
    let identity = entropy::gather();
    steps.done("seed");

    let config_space = ConfigSpace::open(&acpi.ecam).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    let functions = pci::functions(
        config_space,
        config_space.buses(),
        if options.assign_buses { Numbers::Assign } else { Numbers::Keep },
        interrupts::wait,
        |done| println!("{done}"),
    );
    emergency::watch(config_space, &functions);
    // Nobody drives what firmware used: it does not write into memory any more.
    emergency::stop_dma();
    release_dma(&acpi.remapping).unwrap_or_else(|error| fail(ExitCode::Machine, &error));
    for (dropped, what) in
        acpi.dropped.into_iter().zip(["windows of PCI segments", "DMA remapping units", "I/O APICs"])
    {
        if dropped > 0 {
            println!("acpi: {dropped} {what} beyond the unikernel's limit: devices behind them may not work");
        }
    }
    for signature in &acpi.damaged {
        println!("acpi: the checksum of {} is wrong: used all the same", signature.escape_ascii());
    }
    steps.done("pci");
    defmt::info!(
        "{=str}: up, seed {=u128:x}, tsc {=u64} Hz",
        emergency::application(),
        identity.seed,
        clock::tsc_hz()
    );
    let mut machine = Machine::new(
        command_line,
        MODULES.call_once(|| files),
        all.total_bytes(),
        free,
        config_space,
        functions,
        room,
        identity,
        reference,
        steps,
    );
    let code = application::run(&mut machine);
    emergency::stop_dma();
    exit(code)
}

/// Masks the inputs of the I/O APICs. A failure is only printed, because few devices interrupt through them.
fn mask_io_apics(addresses: &[u64]) {
    let Ok(mut windows) = Units::new(addresses.len()) else { return };
    for start in addresses {
        let page = Range { start: *start, end: start.saturating_add(4096) };
        match windows.window(page) {
            Ok(registers) => match io_apic::mask(&registers) {
                0 => {}
                open => println!("i/o apic at {start:#x}: firmware left {open} inputs open: masked"),
            },
            Err(error) => println!("i/o apic at {start:#x}: not masked: {error}"),
        }
    }
}

/// Switches the DMA remapping units off that firmware left on.
fn release_dma(units: &[Unit]) -> Result<(), &'static str> {
    const UNMAPPED: &str = "iommu: the DMA remapping unit's registers cannot be mapped";
    let mut windows = Units::new(units.len()).map_err(|_| UNMAPPED)?;
    for unit in units {
        let registers = windows.window(unit.range()).map_err(|_| UNMAPPED)?;
        let found = match unit {
            Unit::Intel(_) => iommu::turn_off(&registers),
            Unit::Amd(_) => iommu::turn_off_amd(&registers),
        };
        match found {
            Found::Off => {}
            Found::TurnedOff => {
                let at = unit.range().start;
                println!("iommu: firmware left DMA remapping on at {at:#x}: switched off");
            }
            Found::Stuck => {
                return Err(
                    "iommu: firmware left DMA remapping on and locked it: switch VT-d or AMD-Vi off in its setup",
                );
            }
        }
    }
    Ok(())
}

/// Uses the serial ports that the command line chooses, or else firmware's console.
fn choose_ports(options: &options::Boot, firmware: Option<Setting>) {
    let wanted = options.serial.or(firmware.map(Some));
    if let Some(wanted) = wanted
        && !serial::choose(wanted)
        && options.serial.is_some()
    {
        println!("console: there is no serial port at the place of serial=");
    }
    if options.frames.is_some_and(|setting| !serial::choose_frames(setting)) {
        println!("log: there is no serial port at the place of frames=");
    }
}

/// Prints one line and ends the machine.
fn fail(code: ExitCode, error: &dyn Display) -> ! {
    println!("error: {error}");
    emergency::stop_dma();
    exit(code)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let stopped = emergency::stop_dma();
    let name = emergency::application();
    match info.location() {
        Some(at) => console::print_regardless(format_args!(
            "error: {name}: panic at {}:{}:{}: {}\n",
            at.file(),
            at.line(),
            at.column(),
            info.message()
        )),
        None => console::print_regardless(format_args!("error: {name}: panic: {}\n", info.message())),
    }
    console::print_regardless(format_args!("  {stopped}\n"));
    exit(ExitCode::Panic)
}
