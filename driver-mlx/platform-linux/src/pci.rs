//! Configuration space, as far as a driver's owner has to touch it.

use crate::error::{Error, Result};
use driver_mlx::pci::{Identity, identify, is_flash_recovery};

/// Offset of the command register.
const COMMAND: u64 = 4;
/// Memory decoding.
const COMMAND_MEMORY: u16 = 1 << 1;
/// Bus mastering.
const COMMAND_MASTER: u16 = 1 << 2;

/// Configuration space, of registers of `N` bytes.
pub(crate) trait ConfigSpace {
    /// Reads a register.
    fn get<const N: usize>(&self, offset: u64) -> Result<[u8; N]>;
    /// Writes a register.
    fn put<const N: usize>(&self, offset: u64, value: [u8; N]) -> Result<()>;
}

fn read16(config: &impl ConfigSpace, offset: u64) -> Result<u16> {
    config.get(offset).map(u16::from_le_bytes)
}

/// Returns the HCA's identity. Fails for a device that the driver does not support.
pub(crate) fn identity(config: &impl ConfigSpace) -> Result<Identity> {
    let (vendor, device) = (read16(config, 0)?, read16(config, 2)?);
    identify(vendor, device).ok_or(Error::NotAnHca {
        vendor,
        device,
        hint: if is_flash_recovery(device) {
            "; it is in flash recovery: its firmware is broken or missing"
        } else {
            ""
        },
    })
}

/// Enables memory decoding and bus mastering.
pub(crate) fn enable(config: &impl ConfigSpace) -> Result<()> {
    set_command(config, COMMAND_MEMORY | COMMAND_MASTER, 0)
}

/// Enables memory decoding.
pub(crate) fn decode(config: &impl ConfigSpace) -> Result<()> {
    set_command(config, COMMAND_MEMORY, 0)
}

/// Ends DMA.
pub(crate) fn stop_dma(config: &impl ConfigSpace) -> Result<()> {
    set_command(config, 0, COMMAND_MASTER)
}

/// Returns whether the function may master the bus; `None` if it does not respond.
pub(crate) fn masters_bus(config: &impl ConfigSpace) -> Option<bool> {
    let command = read16(config, COMMAND).ok().filter(|&command| command != u16::MAX)?;
    Some(command & COMMAND_MASTER != 0)
}

fn set_command(config: &impl ConfigSpace, on: u16, off: u16) -> Result<()> {
    let command = read16(config, COMMAND)?;
    config.put(COMMAND, (command & !off | on).to_le_bytes())
}
