//! Command register and function-level reset, which the driver implements for all platforms, and power states.

use super::function::{ConfigAccess, Error, Function};
use driver_mlx::pci::{self, PciError, SavedConfig};
use pci_types::{ConfigRegionAccess, PciAddress};

/// Power management capability, its control register (PCI Bus Power Management Interface 1.2 section 3.2), and the state in that: 0
/// is D0.
const POWER_MANAGEMENT: u8 = 0x01;
const POWER_CONTROL: u16 = 4;
const POWER_STATE: u32 = 0b11;
/// Written as one, it clears what the function remembers.
const PME_STATUS: u32 = 1 << 15;
/// From D3hot to the first access (section 5.6.1).
const WAKE_NANOS: u64 = 10_000_000;

/// The unikernel's access to configuration space, as the driver takes it.
pub(super) struct Access<'a, A>(&'a A);

impl<A: ConfigAccess> ConfigRegionAccess for Access<'_, A> {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        self.0.read(address, offset)
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        self.0.write(address, offset, value);
    }
}

impl Function {
    /// The function as the driver configures it.
    pub(super) fn config<'a, A: ConfigAccess>(&self, access: &'a A) -> pci::Function<Access<'a, A>> {
        // SAFETY: 1. Enumeration found the function. 2. Accesses of a `ConfigAccess` are safe at every
        // offset. 3. Only the unikernel configures functions, from one thread.
        unsafe { pci::Function::new(Access(access), self.address) }
    }

    /// Brings a function to D0, in which its registers answer, and restores the configuration that this clears. Returns
    /// whether the function was in another state. `wait(nanos)` lets that much time pass.
    pub(crate) fn wake(&self, access: &impl ConfigAccess, wait: impl FnOnce(u64)) -> bool {
        let at = self.capability(access, POWER_MANAGEMENT).filter(|at| *at <= 0x100 - 8);
        let Some(at) = at.map(|at| at + POWER_CONTROL) else { return false };
        let control = access.read(self.address, at);
        if control & POWER_STATE == 0 {
            return false;
        }
        let saved = self.save(access);
        access.write(self.address, at, control & !(POWER_STATE | PME_STATUS));
        wait(WAKE_NANOS);
        self.restore(access, &saved);
        true
    }

    /// Returns what a reset clears.
    pub(crate) fn save(&self, access: &impl ConfigAccess) -> SavedConfig {
        self.config(access).save()
    }

    /// Writes back what a reset has cleared, so that the function's registers can be read. Bus mastering
    /// stays as it is. A function that does not answer is left alone.
    pub(crate) fn restore(&self, access: &impl ConfigAccess, saved: &SavedConfig) {
        self.config(access).restore(saved);
    }

    /// Resets this function only and restores its configuration space, with bus mastering and MSI-X
    /// off. `wait(nanos)` lets that much time pass.
    ///
    /// # Errors
    /// [`Error::NoFunctionLevelReset`]; [`Error::ResetTimedOut`].
    pub(crate) fn reset(&self, access: &impl ConfigAccess, mut wait: impl FnMut(u64)) -> Result<(), Error> {
        let result = self.config(access).reset(|time| wait(time.as_nanos() as u64));
        result.map_err(|error| match error {
            PciError::NoReset => Error::NoFunctionLevelReset,
            PciError::Lost => Error::ResetTimedOut,
        })?;
        if let Ok(msix) = self.msix(access) {
            self.set_msix(access, &msix, false, false);
        }
        Ok(())
    }
}
