//! Device registers in a window: little-endian, 32 bits wide, bounds-checked.

use core::ptr::NonNull;

use volatile::VolatilePtr;

use super::{map_device, map_in_window, reserve_window};
use crate::claims::Owner;
use crate::device::error::Error;
use crate::memory_map::Range;
use crate::paging::{Caching, MapError, PAGE_BYTES};

/// An uncached window on a range of registers, which stays for good.
#[derive(Debug)]
pub struct Registers {
    base: NonNull<u8>,
    len: u64,
}

impl Registers {
    /// Makes a window on `range` after claiming it for `owner`.
    pub(crate) fn claim(range: Range, owner: Owner) -> Result<Registers, Error> {
        super::claim(range, owner)?;
        Ok(Self::window(range)?)
    }

    /// Makes a window on `len` bytes of registers at the physical address `address`, without a
    /// claim.
    ///
    /// # Errors
    /// [`MapError`]: the range is empty, unaligned or not addressable, or there are no page tables
    /// left.
    ///
    /// # Safety
    /// 1. The range is registers, not memory.
    /// 2. Nothing else writes to them while the window is in use.
    /// 3. Writes through the window direct a device only to memory that is set aside for it.
    pub unsafe fn foreign(address: u64, len: u64) -> Result<Registers, MapError> {
        Self::window(Range { start: address, end: address.checked_add(len).ok_or(MapError::BadRange)? })
    }

    fn window(range: Range) -> Result<Registers, MapError> {
        let page = range.start - range.start % PAGE_BYTES;
        let end = range.end.checked_next_multiple_of(PAGE_BYTES).ok_or(MapError::BadRange)?;
        if range.is_empty() || !range.start.is_multiple_of(4) {
            return Err(MapError::BadRange);
        }
        let base = map_device(page, end - page, Caching::Uncached)? + (range.start - page) as usize;
        Ok(Registers { base: NonNull::new(base as *mut u8).ok_or(MapError::BadRange)?, len: range.len() })
    }

    fn register(&self, offset: u32) -> Option<VolatilePtr<'_, u32>> {
        if !offset.is_multiple_of(4) || u64::from(offset) + 4 > self.len {
            return None;
        }
        // SAFETY: `window` mapped all `len` bytes from `base`, uncached, for good. `base` is
        // aligned to 4, so that the register is aligned, and it is inside the window.
        Some(unsafe { VolatilePtr::new(self.base.add(offset as usize).cast()) })
    }

    /// Reads a register. Returns all ones, as from a device that is gone, for an offset outside the
    /// window.
    pub fn read32(&self, offset: u32) -> u32 {
        self.register(offset).map_or(u32::MAX, |register| u32::from_le(register.read()))
    }

    /// Writes a register. An offset outside the window is ignored.
    pub fn write32(&self, offset: u32, value: u32) {
        if let Some(register) = self.register(offset) {
            register.write(value.to_le());
        }
    }
}

/// Windows on the units that ACPI lists, side by side: one page table serves them all.
pub(crate) struct Units {
    next: usize,
    end: usize,
}

impl Units {
    /// Reserves addresses for `count` units.
    pub(crate) fn new(count: usize) -> Result<Self, MapError> {
        let len = count as u64 * PAGE_BYTES;
        let next = reserve_window(0, len.max(PAGE_BYTES))?;
        Ok(Self { next, end: next + len as usize })
    }

    /// Makes a window on the page of a unit's registers, and keeps it from devices. The unit may be
    /// among the chipset's registers, but not in memory.
    pub(crate) fn window(&mut self, page: Range) -> Result<Registers, Error> {
        super::check(page, Owner::Unikernel)?;
        super::keep(page);
        if self.next >= self.end || page.len() != PAGE_BYTES || !page.start.is_multiple_of(PAGE_BYTES) {
            return Err(MapError::BadRange.into());
        }
        map_in_window(self.next, page.start, PAGE_BYTES, Caching::Uncached)?;
        let base = NonNull::new(self.next as *mut u8).ok_or(MapError::BadRange)?;
        self.next += PAGE_BYTES as usize;
        Ok(Registers { base, len: PAGE_BYTES })
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
