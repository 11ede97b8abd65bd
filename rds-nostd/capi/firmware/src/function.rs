//! The HCA's PCI function: bus mastering and reset, by the firmware's functions or by configuration
//! space.

use crate::abi::MlxPlatform;
use core::ffi::c_void;
use driver_mlx::Duration;
use driver_mlx::pci::{Function, SavedConfig};
use pci_types::{ConfigRegionAccess, PciAddress};

/// The firmware's two functions that access configuration space.
#[derive(Clone, Copy)]
struct Space {
    context: *mut c_void,
    read: unsafe extern "C" fn(*mut c_void, core::ffi::c_uint) -> u32,
    write: unsafe extern "C" fn(*mut c_void, core::ffi::c_uint, u32),
}

impl ConfigRegionAccess for Space {
    unsafe fn read(&self, _: PciAddress, offset: u16) -> u32 {
        // SAFETY: the firmware's function, at a multiple of 4 below 256.
        unsafe { (self.read)(self.context, offset.into()) }
    }

    unsafe fn write(&self, _: PciAddress, offset: u16, value: u32) {
        // SAFETY: as above.
        unsafe { (self.write)(self.context, offset.into(), value) };
    }
}

/// The HCA's PCI function, reached by the firmware's functions.
#[derive(Clone, Copy)]
pub(crate) struct PciFunction {
    given: MlxPlatform,
    /// Configuration space as it was when the HCA was opened.
    saved: Option<SavedConfig>,
}

impl PciFunction {
    /// Wraps the function, and enables memory decoding.
    ///
    /// # Errors
    /// The reason, which names the missing function.
    pub(crate) fn new(given: &MlxPlatform) -> Result<Self, &'static str> {
        if given.reset.is_some()
            && given.bus_master.is_none()
            && (given.read_config.is_none() || given.write_config.is_none())
        {
            return Err(
                "a function is missing: with reset, bus_master or both of read_config and write_config \
                        have to be there",
            );
        }
        let mut function = Self { given: *given, saved: None };
        function.saved = function.space().map(|space| space.save());
        Ok(function)
    }

    /// Returns the function's configuration space, if the firmware supplies both config functions.
    fn space(&self) -> Option<Function<Space>> {
        let MlxPlatform { context, read_config, write_config, .. } = self.given;
        let space = Space { context, read: read_config?, write: write_config? };
        // SAFETY: the firmware's functions ignore the address: they access its HCA, an endpoint.
        Some(unsafe { Function::new(space, PciAddress::new(0, 0, 0, 0)) })
    }

    /// Returns whether configuration space shows a virtual function; false if it cannot be read.
    pub(crate) fn is_virtual(&self) -> bool {
        let identity = self.space().and_then(|function| function.identify());
        identity.is_some_and(|identity| identity.virtual_function)
    }

    /// Returns whether bus mastering can be switched.
    pub(crate) fn has_bus_master(&self) -> bool {
        self.given.bus_master.is_some() || self.space().is_some()
    }

    /// Switches bus mastering. Returns whether it reads back as requested.
    pub(crate) fn set_bus_master(&self, on: bool) -> bool {
        if let Some(bus_master) = self.given.bus_master {
            // SAFETY: the firmware's function.
            return unsafe { bus_master(self.given.context, on.into()) } == 0;
        }
        let Some(function) = self.space() else { return false };
        if on {
            function.enable();
        } else {
            function.stop();
        }
        function.bus_mastering() == Some(on)
    }

    /// Resets the function. Returns true if it was reset and responds, with bus mastering off.
    pub(crate) fn reset(&self, wait: impl FnMut(Duration)) -> bool {
        if let Some(reset) = self.given.reset {
            // SAFETY: the firmware's function.
            return unsafe { reset(self.given.context) } == 0;
        }
        let Some(function) = self.space() else { return false };
        let done = function.reset(wait).is_ok();
        self.restore();
        done
    }

    /// Restores configuration space after a reset. Leaves bus mastering unchanged.
    pub(crate) fn restore(&self) {
        if let (Some(function), Some(saved)) = (self.space(), &self.saved) {
            function.restore(saved);
        }
    }
}
