//! What a report of a fault or a panic needs, whatever state the rest is in: the application's name, and the end of all DMA.

use core::fmt;

use heapless::Vec;
use spin::Once;

use crate::arch::config_space::ConfigSpace;
use crate::pci::{Function, MAX_FUNCTIONS};

struct Masters {
    config_space: &'static ConfigSpace,
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
pub fn watch(config_space: &'static ConfigSpace, functions: &Vec<Function, MAX_FUNCTIONS>) {
    MASTERS.call_once(|| Masters { config_space, functions: functions.clone() });
}

/// Turns bus mastering off in every function that is no bridge: no device reaches memory any more, nor raises MSI interrupts.
/// Takes no lock and no memory. Answers what it read back.
pub fn stop_dma() -> Stopped {
    let mut stopped = Stopped { off: 0, on: 0 };
    if let Some(masters) = MASTERS.get() {
        for function in masters.functions.iter().filter(|function| function.secondary_bus().is_none()) {
            function.stop_bus_master(masters.config_space);
            let counter =
                if function.masters_bus(masters.config_space) { &mut stopped.on } else { &mut stopped.off };
            *counter += 1;
        }
    }
    stopped
}

/// Functions whose bus mastering is off, and on in spite of having been switched off.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    off: usize,
    on: usize,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DMA: bus mastering is off in {} functions", self.off)?;
        if self.on == 0 { Ok(()) } else { write!(f, ", STILL ON in {}", self.on) }
    }
}
