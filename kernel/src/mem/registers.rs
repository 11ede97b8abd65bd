//! Device registers behind a window: little-endian, 32 bits wide, bounds-checked.

use core::ptr::NonNull;

use volatile::VolatilePtr;

use super::map_device;
use crate::paging::{Caching, MapError, PAGE_BYTES};
use crate::pci::MemoryBar;

/// All of a BAR, uncached.
#[derive(Debug)]
pub struct Registers {
    base: NonNull<u8>,
    len: u64,
}

impl Registers {
    /// Makes a window on `bar`.
    pub fn map(bar: &MemoryBar) -> Result<Registers, MapError> {
        let page = bar.address - bar.address % PAGE_BYTES;
        let len = (bar.address - page + bar.len).next_multiple_of(PAGE_BYTES);
        let window = map_device(page, len, Caching::Uncached)?;
        let base = window + (bar.address - page) as usize;
        Ok(Registers { base: NonNull::new(base as *mut u8).ok_or(MapError::BadRange)?, len: bar.len })
    }

    fn register(&self, offset: u32) -> Option<VolatilePtr<'_, u32>> {
        if !offset.is_multiple_of(4) || u64::from(offset) + 4 > self.len {
            return None;
        }
        // SAFETY: `map` made a window on all `len` bytes from `base`, uncached, which stays; the register is aligned and
        // inside it.
        Some(unsafe { VolatilePtr::new(self.base.add(offset as usize).cast()) })
    }

    /// Reads a register; all ones, as from a device that is not there, when the offset is none.
    pub fn read32(&self, offset: u32) -> u32 {
        self.register(offset).map_or(u32::MAX, |register| u32::from_le(register.read()))
    }

    /// Writes a register; an offset that is none is ignored.
    pub fn write32(&self, offset: u32, value: u32) {
        if let Some(register) = self.register(offset) {
            register.write(value.to_le());
        }
    }
}

impl crate::iommu::Registers for Registers {
    fn read(&self, offset: u32) -> u32 {
        self.read32(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.write32(offset, value);
    }
}
