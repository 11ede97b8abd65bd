//! Configuration space, as far as a driver's owner has to touch it.

use crate::error::{Error, Result};

/// NVIDIA's, formerly Mellanox's.
const VENDOR: u16 = 0x15b3;
/// Offset of the command register.
const COMMAND: u64 = 4;
/// Memory decoding and bus mastering.
const COMMAND_ENABLE: u16 = 1 << 1 | 1 << 2;
/// Bus mastering alone.
const COMMAND_MASTER: u16 = 1 << 2;

/// Configuration space, of 16-bit registers.
pub(crate) trait ConfigSpace {
    /// Reads a register.
    fn read16(&self, offset: u64) -> Result<u16>;
    /// Writes a register.
    fn write16(&self, offset: u64, value: u16) -> Result<()>;
}

/// Refuses what is no HCA.
pub(crate) fn check_identity(config: &impl ConfigSpace) -> Result<()> {
    let (vendor, device) = (config.read16(0)?, config.read16(2)?);
    if vendor == VENDOR { Ok(()) } else { Err(Error::NotAnHca { vendor, device }) }
}

/// Lets the function decode its registers and reach memory.
pub(crate) fn enable(config: &impl ConfigSpace) -> Result<()> {
    let command = config.read16(COMMAND)?;
    config.write16(COMMAND, command | COMMAND_ENABLE)
}

/// Ends DMA.
pub(crate) fn stop_dma(config: &impl ConfigSpace) -> Result<()> {
    let command = config.read16(COMMAND)?;
    config.write16(COMMAND, command & !COMMAND_MASTER)
}
