//! The PCI Express capability.

use super::function::{ConfigRead, Error, Function};

pub(super) const CAPABILITY: u8 = 0x10;

/// What the PCI Express capability says (section 7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
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
    pub fn express(&self, access: &impl ConfigRead) -> Result<Express, Error> {
        let at = self
            .capability(access, CAPABILITY)
            .filter(|at| *at <= 0x100 - 0x14)
            .ok_or(Error::NoCapability("PCI Express"))?;
        let device_capabilities = access.read(self.address, at + 4);
        let device_control = access.read(self.address, at + 8) as u16;
        let link_status = (access.read(self.address, at + 0x10) >> 16) as u16;
        Ok(Express {
            max_payload: 128 << (device_control >> 5 & 0b111),
            max_read_request: 128 << (device_control >> 12 & 0b111),
            link_speed: (link_status & 0xf) as u8,
            link_width: (link_status >> 4 & 0x3f) as u8,
            function_level_reset: device_capabilities & (1 << 28) != 0,
        })
    }
}
