//! `app=hello`: prints what the machine is.

use unikernel::pci::VENDOR_MELLANOX;
use unikernel::{ExitCode, Machine, println};

pub fn run(machine: &mut Machine) -> ExitCode {
    println!("{}", machine.about());
    print_pci(machine);
    for (name, us) in machine.steps() {
        println!("@step name={name} us={us}");
    }
    defmt::info!("hello: {=usize} PCI functions", machine.pci().len());
    ExitCode::Success
}
fn print_pci(machine: &Machine) {
    let access = machine.config_space();
    for function in machine.pci() {
        println!(
            "pci {}: {:04x}:{:04x} class {:04x} revision {:02x}{}",
            function.address(),
            function.vendor(),
            function.device(),
            function.class(),
            function.revision(),
            if function.vendor() == VENDOR_MELLANOX { " (Mellanox)" } else { "" }
        );
        for index in 0..6 {
            if let Ok(bar) = machine.memory_bar(function, index) {
                let prefetchable = if bar.is_prefetchable() { " prefetchable" } else { "" };
                println!("  bar{index} {:#x} {:#x} bytes{prefetchable}", bar.address(), bar.bytes());
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
