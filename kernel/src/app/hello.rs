//! `app=hello`: prints what the machine is.

use kernel::exit::ExitCode;
use kernel::pci::VENDOR_MELLANOX;

use crate::arch::{apic, clock, debug_log};
use crate::console::println;
use crate::machine::Machine;
use crate::mem;

pub fn run(machine: &Machine<'_>) -> ExitCode {
    let image = mem::image();
    println!("memory: {} MiB usable", machine.ram_bytes >> 20);
    println!("  image {:#x}..{:#x} ({} KiB)", image.start, image.end, image.len() >> 10);
    println!("  dma   {:#x}..{:#x} ({} KiB)", machine.dma.start, machine.dma.end, machine.dma.len() >> 10);
    for range in machine.free.ranges() {
        println!("  free  {:#x}..{:#x} ({} KiB)", range.start, range.end, range.len() >> 10);
    }
    let (x2apic, apic_id) = apic::identity();
    println!("apic: {} id {apic_id}, timer {} Hz", if x2apic { "x2APIC" } else { "xAPIC" }, apic::timer_hz());
    println!("clock: tsc {} Hz, calibrated by {}", clock::tsc_hz(), machine.clock_reference);
    println!(
        "seed: {:#034x}, generation {:#x}, {}",
        machine.identity.seed,
        machine.identity.boot_generation,
        if machine.identity.hardware_random { "RDRAND" } else { "no RDRAND" }
    );
    println!("log: debug console {}", if debug_log::is_present() { "present" } else { "absent" });
    print_pci(machine);
    let (used, all) = mem::table_usage();
    println!("page tables: {used} of {all}");
    for (name, us) in machine.steps.micros() {
        println!("@step name={name} us={us}");
    }
    defmt::info!(
        "hello: {=usize} PCI functions, {=u64} MiB",
        machine.functions.len(),
        machine.ram_bytes >> 20
    );
    ExitCode::Success
}

fn print_pci(machine: &Machine<'_>) {
    let access = &machine.config_space;
    for function in &machine.functions {
        println!(
            "pci {}: {:04x}:{:04x} class {:04x} revision {:02x}{}",
            function.address,
            function.vendor,
            function.device,
            function.class,
            function.revision,
            if function.vendor == VENDOR_MELLANOX { " (Mellanox)" } else { "" }
        );
        for index in 0..6 {
            if let Ok(bar) = function.memory_bar(access, index) {
                let prefetchable = if bar.prefetchable { " prefetchable" } else { "" };
                println!("  bar{index} {:#x} {:#x} bytes{prefetchable}", bar.address, bar.len);
            }
        }
        if let Ok(msix) = function.msix(access) {
            println!(
                "  msi-x {} vectors, table in bar{} at {:#x}, pending bits in bar{} at {:#x}",
                msix.vectors, msix.table_bar, msix.table_offset, msix.pending_bar, msix.pending_offset
            );
        }
        if let Ok(express) = function.express(access) {
            println!(
                "  pci express x{} gen{}, payload {}, read request {}, function-level reset {}",
                express.link_width,
                express.link_speed,
                express.max_payload,
                express.max_read_request,
                if express.function_level_reset { "yes" } else { "no" }
            );
        }
    }
}
