//! The PCI Express capability, and the function-level reset that comes with it.

use pci_types::CommandRegister;

use super::function::{ConfigAccess, Error, FIRST_BAR, Function};

pub(super) const CAPABILITY: u8 = 0x10;

/// What the PCI Express capability says (section 7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Offset of the capability.
    at: u16,
    /// Largest packet payload that is set, in bytes.
    pub max_payload: u16,
    /// Largest read request that is set, in bytes.
    pub max_read_request: u16,
    /// Current link speed: 1 is 2.5 GT/s, 3 is 8 GT/s.
    pub link_speed: u8,
    /// Lanes in use.
    pub link_width: u8,
    /// The function can be reset by itself.
    pub function_level_reset: bool,
}

impl Function {
    /// The PCI Express capability's figures.
    ///
    /// # Errors
    /// [`Error::NoCapability`].
    pub fn express(&self, access: &impl ConfigAccess) -> Result<Express, Error> {
        let at = self
            .capability(access, CAPABILITY)
            .filter(|at| *at <= 0x100 - 0x14)
            .ok_or(Error::NoCapability("PCI Express"))?;
        let device_capabilities = access.read(self.address, at + 4);
        let device_control = access.read(self.address, at + 8) as u16;
        let link_status = (access.read(self.address, at + 0x10) >> 16) as u16;
        Ok(Express {
            at,
            max_payload: 128 << (device_control >> 5 & 0b111),
            max_read_request: 128 << (device_control >> 12 & 0b111),
            link_speed: (link_status & 0xf) as u8,
            link_width: (link_status >> 4 & 0x3f) as u8,
            function_level_reset: device_capabilities & (1 << 28) != 0,
        })
    }

    /// Resets this function alone (section 6.6.2) and gives it back its BARs and command register. `wait(nanos)` lets
    /// that much time pass.
    ///
    /// # Errors
    /// [`Error::NoCapability`], [`Error::NoFunctionLevelReset`], [`Error::ResetTimedOut`].
    pub fn reset(&self, access: &impl ConfigAccess, mut wait: impl FnMut(u64)) -> Result<(), Error> {
        const MILLISECOND: u64 = 1_000_000;
        const TRANSACTIONS_PENDING: u32 = 1 << 21;
        const INITIATE_RESET: u32 = 1 << 15;
        let express = self.express(access)?;
        if !express.function_level_reset {
            return Err(Error::NoFunctionLevelReset);
        }
        let control_at = express.at + 8;
        let command = self.command(access);
        let bars: [u32; 6] = core::array::from_fn(|i| access.read(self.address, FIRST_BAR + i as u16 * 4));

        self.set_command(access, command - CommandRegister::BUS_MASTER_ENABLE);
        let idle = (0..=100).any(|attempt| {
            if attempt > 0 {
                wait(MILLISECOND);
            }
            access.read(self.address, control_at) & TRANSACTIONS_PENDING == 0
        });
        if !idle {
            self.set_command(access, command);
            return Err(Error::ResetTimedOut);
        }
        // The upper half is the device status register, whose ones clear.
        let control = access.read(self.address, control_at) & 0xffff;
        access.write(self.address, control_at, control | INITIATE_RESET);
        // 100 ms without any access; then the function may still answer with retries for a while.
        wait(100 * MILLISECOND);
        let back = (0..90).any(|attempt| {
            if attempt > 0 {
                wait(10 * MILLISECOND);
            }
            access.read(self.address, 0) as u16 == self.vendor
        });
        if !back {
            return Err(Error::ResetTimedOut);
        }
        for (i, bar) in bars.iter().enumerate() {
            access.write(self.address, FIRST_BAR + i as u16 * 4, *bar);
        }
        access.write(self.address, control_at, control);
        self.set_command(access, command);
        Ok(())
    }
}
