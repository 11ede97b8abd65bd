//! Common parts of tests with Linux guests: requirements, and the kernel messages that count as
//! complaints.

use crate::conditions;
use rdma_lab::error::{Error, Result};
use rdma_lab::linux::{Kernel, KernelMessage, Lab, Options, Recipe};
use rdma_lab::setup;

/// Returns guests for `options`, or `None` after reporting a skipped test because QEMU or Debian
/// packages are unavailable.
///
/// # Panics
/// A required tool is missing, or an available one fails.
pub fn lab_or_skip(options: Options) -> Option<Lab> {
    let lab = setup::qemu().and_then(|qemu| Lab::start(&qemu, options));
    match lab {
        Ok(lab) => Some(lab),
        Err(Error::Missing { what, remedy }) if !conditions::required() => {
            conditions::skip(&format!("no Linux guest on this machine: {what}; {remedy}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns the kernels that a test runs: the first always, the others with full lengths.
pub fn kernels() -> &'static [Kernel] {
    if conditions::long() { &Kernel::RELEASES } else { &Kernel::RELEASES[..1] }
}

/// Packages of guests that test more than the kernel: programs that measure and use RDMA.
const PROGRAMS: [&str; 3] = ["qperf", "nvme-cli", "ucx-utils"];
/// Modules for NVMe over RDMA, initiator and target, and the target's storage.
const PROGRAM_MODULES: [&str; 3] = ["nvme_rdma", "nvmet_rdma", "brd"];
/// Additional packages on the latest kernel: rdma-core's own tests, OpenSM, and the card vendor's
/// tools.
const LATEST: [&str; 4] = ["opensm", "python3-pyverbs", "python3-scapy", "mstflint"];
const LATEST_FILES: [&str; 1] = ["/usr/share/doc/rdma-core/tests"];

/// Returns the recipe with the foreign programs for a kernel.
///
/// # Errors
/// None, because all names are valid.
pub fn programs(kernel: Kernel) -> Result<Recipe> {
    let recipe = Recipe::new(kernel).with_packages(PROGRAMS)?.with_modules(PROGRAM_MODULES)?;
    if kernel == Kernel::Backports {
        return recipe.with_packages(LATEST)?.with_files(LATEST_FILES);
    }
    Ok(recipe)
}

/// Returns the recipe of a guest that assigns its devices to nested guests.
///
/// # Errors
/// None, because all names are valid.
pub fn host() -> Result<Recipe> {
    Recipe::new(Kernel::V6_12).with_packages(["qemu-system-x86", "seabios"])
}

/// Names of the drivers whose warnings count.
const DRIVERS: [&str; 6] = ["mlx5", "ib_core", "infiniband", "rdma", "ib_", "rds"];
/// Kernel messages about a serious fault.
const TRACES: [&str; 8] =
    ["cut here", "Call Trace", "BUG:", "WARNING:", "Oops", "hung task", "blocked for more than", "refcount"];

/// Returns the messages of RDMA drivers with level warning or worse, and all messages about a
/// serious kernel fault.
pub fn complaints(messages: &[KernelMessage]) -> Vec<String> {
    messages
        .iter()
        .filter(|message| {
            (message.level <= 4 && DRIVERS.iter().any(|name| message.text.contains(name)))
                || TRACES.iter().any(|name| message.text.contains(name))
        })
        .map(|message| format!("<{}> {}", message.level, message.text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_drivers_and_traces_are_complaints() {
        let message = |level, text: &str| KernelMessage { level, text: text.into() };
        let messages = [
            message(6, "mlx5_core 0000:00:02.0: firmware version: 16.28.4000"),
            message(4, "mlx5_core 0000:00:02.0: cmd_work_handler: timed out"),
            message(4, "ACPI: IRQ 4 override to edge(!), high(!)"),
            message(4, "WARNING: CPU: 0 PID: 1 at drivers/x.c:1"),
        ];
        let found = complaints(&messages);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("timed out") && found[1].contains("WARNING"), "{found:?}");
    }
}
