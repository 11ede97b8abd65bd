//! The driver's platform.

use crate::bar::UefiBar;
use crate::clock::Clock;
use crate::firmware::Firmware;
use crate::pci_io::PciIo;
use driver_mlx::pci::{Function as PciFunction, SavedConfig};
use driver_mlx::{Instant, MapError, Platform};
use pci_types::PciAddress;

/// Microseconds between two looks at the device, while the driver waits. An event queue is polled, so
/// a longer pause would delay each command.
const PAUSE: u64 = 20;

/// Registers, configuration space and time of one HCA. A [`Device`](crate::Device) has it.
#[derive(Debug)]
pub struct UefiPlatform {
    firmware: Firmware,
    pci: PciIo,
    bar: UefiBar,
    clock: Clock,
    saved: SavedConfig,
    physical: bool,
}

impl UefiPlatform {
    /// The platform of a function that is switched on.
    pub(crate) fn new(firmware: Firmware, pci: PciIo, bar: UefiBar, clock: Clock, physical: bool) -> Self {
        let saved = config_space(pci).save();
        Self { firmware, pci, bar, clock, saved, physical }
    }

    /// Returns whether it is a physical function, which owns its card's port settings:
    /// [`Config::physical_function`](driver_mlx::Config::physical_function).
    #[must_use]
    pub const fn is_physical(&self) -> bool {
        self.physical
    }
}

/// The function as the driver's PCI module sees it.
fn config_space(pci: PciIo) -> PciFunction<PciIo> {
    // SAFETY: the protocol is of a function with a configuration space, which this program operates.
    // It ignores the address.
    unsafe { PciFunction::new(pci, PciAddress::new(0, 0, 0, 0)) }
}

impl Platform for UefiPlatform {
    type Bar = UefiBar;

    fn bar(&self) -> UefiBar {
        self.bar
    }

    /// None: firmware maps registers uncached.
    fn uar_write_combining(&self, _: usize, _: usize) -> Option<UefiBar> {
        None
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn idle(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(self.now()).as_micros();
        self.firmware.stall(left.clamp(1, PAUSE.into()) as usize);
    }

    /// Unsupported: `PciIo.Map` of other memory may copy it, and is coherent only when it is
    /// unmapped.
    unsafe fn map(&self, _: usize, _: usize, _: bool) -> Result<u64, MapError> {
        Err(MapError::Unsupported)
    }

    unsafe fn unmap(&self, _: u64, _: usize) {}

    fn read_config(&self, offset: u16) -> Option<u32> {
        Some(self.pci.config(offset.into()))
    }

    unsafe fn write_config(&self, offset: u16, value: u32) {
        self.pci.set_config(offset.into(), value);
    }

    unsafe fn reset_function(&self) -> bool {
        let function = config_space(self.pci);
        // A function that was reset already has lost what says how to reset it.
        function.restore(&self.saved);
        let wait = |time: core::time::Duration| self.firmware.stall(time.as_micros() as usize);
        let reset = function.reset(wait).is_ok();
        self.pci.decode();
        reset
    }

    unsafe fn restore_function(&self) {
        config_space(self.pci).restore(&self.saved);
        self.pci.decode();
    }

    unsafe fn set_bus_master(&self, on: bool) -> bool {
        self.pci.set_bus_master(on)
    }
}
