//! What a report of a fault or a panic needs, whatever state the rest is in: the application's name, and the end of all DMA.

use heapless::Vec;
use spin::Once;

use crate::arch::config_space::ConfigSpace;
use crate::pci::{Function, MAX_FUNCTIONS};

struct Masters {
    config_space: ConfigSpace,
    functions: Vec<Function, MAX_FUNCTIONS>,
}

static MASTERS: Once<Masters> = Once::new();

unsafe extern "Rust" {
    #[link_name = "__unikernel_name"]
    safe static APPLICATION: &'static str;
}

/// The application's name and version.
pub fn application() -> &'static str {
    APPLICATION
}

/// Keeps what [`stop_dma`] goes by. Once.
pub fn watch(config_space: &ConfigSpace, functions: &Vec<Function, MAX_FUNCTIONS>) {
    MASTERS.call_once(|| Masters { config_space: config_space.clone(), functions: functions.clone() });
}

/// Turns bus mastering off in every function that is no bridge: no device reaches memory any more, nor raises MSI interrupts.
/// Takes no lock and no memory.
pub fn stop_dma() {
    if let Some(masters) = MASTERS.get() {
        for function in masters.functions.iter().filter(|function| function.secondary_bus.is_none()) {
            function.stop_bus_master(&masters.config_space);
        }
    }
}
