//! Command register and function-level reset, which the driver implements for all platforms.

use super::function::{ConfigAccess, Error, Function};
use driver_mlx::pci::{self, PciError, SavedConfig};
use pci_types::{ConfigRegionAccess, PciAddress};

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
