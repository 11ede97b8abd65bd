//! Memory that processor and device share.
//!
//! The [`DmaRegion`] is handed in at bring-up. What consumers get of it is a [`DmaBuffer`], which they own; a [`DmaSlice`] borrows a
//! range of one. Whatever else lies in the region (rings, mailboxes, firmware's pages) has no name outside this crate.

mod blocks;
mod buffer;
mod memory;

pub use blocks::{DmaBlocks, DmaWord};
pub use buffer::{DmaBuffer, DmaSlice};
pub(crate) use memory::DmaMemory;

use core::fmt;

/// An access outside a [`DmaSlice`], or not aligned as its width needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OutOfBounds;

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("access outside a DMA slice, or unaligned")
    }
}

impl core::error::Error for OutOfBounds {}

/// The memory handed to the driver at start, already mapped for the device. Everything the driver shares with the device is
/// carved from it: firmware's pages, command mailboxes, queues, and what [`Hca::alloc`](crate::Hca::alloc) gives out.
///
/// Its bytes cannot be reached through it:
///
/// ```compile_fail,E0599
/// fn rings(region: &driver_mlx::DmaRegion) -> driver_mlx::DmaSlice<'_> {
///     region.as_slice()
/// }
/// ```
///
/// ```compile_fail,E0603
/// fn ring(memory: driver_mlx::dma::DmaMemory) {}
/// ```
#[derive(Debug)]
pub struct DmaRegion(DmaMemory);

impl DmaRegion {
    /// A region of `len` bytes at `va`, which the device reaches at `device_address`.
    ///
    /// `None` unless both addresses are multiples of 4096, neither range wraps, `device_address` is not zero (firmware
    /// refuses page 0) and at least one page fits.
    ///
    /// # Safety
    /// - From now on `va` to `va + len` is mapped memory that nobody else uses: no Rust reference covers it, and nothing made from an
    ///   earlier region over it (an [`Hca`](crate::Hca), a queue, a [`DmaBuffer`]) is used any more.
    /// - This lasts to the end of the program, and at least until the device has lost bus mastering or was reset for good. An `Hca` that
    ///   is dropped stops the device, but it can also be forgotten, and then the device goes on writing here.
    /// - `device_address` leads the device to it, and DMA there is coherent: the driver's rings are read and written without cache
    ///   maintenance. (Memory whose caches need care belongs behind [`Platform::map`](crate::Platform::map).)
    #[must_use]
    pub unsafe fn new(va: *mut u8, device_address: u64, len: usize) -> Option<Self> {
        let aligned = va.addr().is_multiple_of(4096) && device_address.is_multiple_of(4096);
        let ends = va.addr().checked_add(len).is_some() && device_address.checked_add(len as u64).is_some();
        if va.is_null() || device_address == 0 || len < 4096 || !aligned || !ends {
            return None;
        }
        // SAFETY: this function's own contract is stricter than that of `from_raw`.
        Some(Self(unsafe { DmaMemory::from_raw(va, device_address, len) }))
    }

    /// All of it.
    pub(crate) fn into_memory(self) -> DmaMemory {
        self.0
    }
}
