//! Memory of a card.

use driver_mlx::{DmaRegion, HostRegion};
use platform_uefi::{Device, DmaMemory, Firmware, HostMemory};

/// Bytes of memory for a card, the first that firmware has. Newer cards want up to 200 MiB.
const SIZES: [usize; 3] = [256 << 20, 128 << 20, 64 << 20];
/// Bytes that the driver remembers of work requests.
const HOST: usize = 4 << 20;

/// Text for a machine without such memory.
pub const TOO_LITTLE: &str = "firmware has no 64 MiB for the card";

/// Allocates memory for the card and for its driver.
pub fn of_card(firmware: Firmware, device: &Device) -> Option<(DmaMemory, HostMemory)> {
    let dma = SIZES.into_iter().find_map(|bytes| device.dma(bytes).ok())?;
    match firmware.memory(HOST) {
        Ok(host) => Some((dma, host)),
        Err(_) => {
            // SAFETY: no region was made of it, so the card cannot access it.
            unsafe { dma.free() };
            None
        }
    }
}

/// The regions that the driver takes.
///
/// # Safety
/// As [`DmaMemory::region`].
#[must_use]
pub unsafe fn regions((dma, host): &(DmaMemory, HostMemory)) -> Option<(DmaRegion, HostRegion)> {
    // SAFETY: the caller's promise.
    unsafe { Some((dma.region()?, host.region()?)) }
}
