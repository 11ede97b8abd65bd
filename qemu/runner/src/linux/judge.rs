//! What tests with Linux guests have in common: what they stand on, and what counts as a complaint of the kernel.

use super::guest::KernelMessage;
use super::lab::{Lab, Options};
use super::recipe::{Kernel, Recipe};
use crate::conditions;
use crate::error::{Error, Result};
use crate::setup;

/// Guests as `options` has them, or `None` after saying that the test is skipped: no QEMU or no Debian packages can be had.
///
/// # Panics
/// What should be there is not, or something that is there does not work.
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

/// The kernels that a test runs: the first always, the others where full lengths are asked for.
pub fn kernels() -> &'static [Kernel] {
    if conditions::long() { &Kernel::RELEASES } else { &Kernel::RELEASES[..1] }
}

/// Guests that judge more than a kernel does: with the programs by which RDMA is measured and used.
const PROGRAMS: [&str; 3] = ["qperf", "nvme-cli", "ucx-utils"];
/// NVMe over RDMA, both sides, and what the target stores in.
const PROGRAM_MODULES: [&str; 3] = ["nvme_rdma", "nvmet_rdma", "brd"];
/// On the latest kernel also rdma-core's own tests, OpenSM, and the tools of those who made the cards.
const LATEST: [&str; 4] = ["opensm", "python3-pyverbs", "python3-scapy", "mstflint"];
const LATEST_FILES: [&str; 1] = ["/usr/share/doc/rdma-core/tests"];

/// The image with the programs of others, one for each kernel.
///
/// # Errors
/// None: the names are names.
pub fn programs(kernel: Kernel) -> Result<Recipe> {
    let recipe = Recipe::new(kernel).with_packages(PROGRAMS)?.with_modules(PROGRAM_MODULES)?;
    if kernel == Kernel::Backports {
        return recipe.with_packages(LATEST)?.with_files(LATEST_FILES);
    }
    Ok(recipe)
}

/// The image of a guest that hands its devices to guests of its own.
///
/// # Errors
/// None: the names are names.
pub fn host() -> Result<Recipe> {
    Recipe::new(Kernel::V6_12).with_packages(["qemu-system-x86", "seabios"])
}

/// Names of the drivers whose warnings count.
const DRIVERS: [&str; 6] = ["mlx5", "ib_core", "infiniband", "rdma", "ib_", "rds"];
/// The kernel's own words about a driver that went wrong.
const TRACES: [&str; 8] =
    ["cut here", "Call Trace", "BUG:", "WARNING:", "Oops", "hung task", "blocked for more than", "refcount"];

/// The messages of level warning or worse that come from the RDMA drivers, and every sign of a kernel in trouble.
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
