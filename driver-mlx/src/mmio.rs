//! [`MmioBar`], [`MmioDoorbellRegister`]: BAR0 as memory-mapped registers.

use crate::platform::{Bar, DoorbellRegister};
use core::ptr::NonNull;
use volatile::VolatilePtr;

/// A memory-mapped BAR0, for every platform whose registers are in the address space.
///
/// Offsets are cut to the size of the BAR, so that no value a device hands to the driver can lead outside the mapping.
#[derive(Clone, Copy, Debug)]
pub struct MmioBar {
    base: NonNull<u8>,
    /// Bytes less 8: what an offset of 64 bits is cut to.
    mask: usize,
}

impl MmioBar {
    /// A handle to `len` bytes of registers at `base`.
    ///
    /// `None` if `len` is not a power of two of at least 8 (as PCI has them) or `base` is not 8-byte aligned.
    ///
    /// # Safety
    /// `base` to `base + len` must be mapped (uncached or write-combining) to a BAR or to memory that nothing else uses, for as
    /// long as any copy of the handle is used, and reads and writes of 32 and 64 bits there must be allowed from any thread.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Option<Self> {
        (len.is_power_of_two() && len >= 8 && base.as_ptr().addr().is_multiple_of(8))
            .then(|| Self { base, mask: len - 8 })
    }

    #[inline]
    fn register<T>(&self, offset: usize) -> VolatilePtr<'_, T> {
        let inside = offset & (self.mask | (8 - size_of::<T>()));
        // SAFETY: the length is a power of two of at least 8, so the offset, cut to a multiple of the size of `T` (4 or 8) below it, is
        // aligned to `T` (`base` is aligned to 8) and what it begins ends inside the mapping that `new`'s caller promised.
        unsafe { VolatilePtr::new(self.base.add(inside).cast::<T>()) }
    }
}

// SAFETY: `new`'s caller promised that registers may be accessed from any thread.
unsafe impl Send for MmioBar {}
// SAFETY: as above; the handle itself holds no state.
unsafe impl Sync for MmioBar {}

/// A doorbell register in a memory-mapped BAR0: its address, checked when it was made.
#[derive(Debug)]
pub struct MmioDoorbellRegister {
    base: NonNull<u64>,
    /// Bytes less 8: what an offset is cut to.
    mask: usize,
}

// SAFETY: `MmioBar::new`'s caller promised that registers may be accessed from any thread.
unsafe impl Send for MmioDoorbellRegister {}

impl DoorbellRegister for MmioDoorbellRegister {
    #[inline]
    fn ring(&mut self, value: u64) {
        // SAFETY: `MmioBar::doorbell_register` took the pointer from inside the mapping, aligned to 8.
        unsafe { VolatilePtr::new(self.base) }.write(value.to_be());
    }

    #[inline]
    fn write(&mut self, offset: usize, value: u64) {
        // SAFETY: the offset, cut to the mask, is a multiple of 8 inside the register, which `MmioBar::doorbell_register` took from
        // inside the mapping.
        unsafe { VolatilePtr::new(self.base.byte_add(offset & self.mask)) }.write(value.to_be());
    }
}

impl Bar for MmioBar {
    type DoorbellRegister = MmioDoorbellRegister;

    #[inline]
    fn len(&self) -> usize {
        self.mask + 8
    }

    #[inline]
    fn read32(&self, offset: usize) -> u32 {
        u32::from_be(self.register::<u32>(offset).read())
    }

    #[inline]
    unsafe fn write32(&self, offset: usize, value: u32) {
        self.register::<u32>(offset).write(value.to_be());
    }

    /// A `len` that is no power of two, or an `offset` that is no multiple of it, is cut to one.
    unsafe fn doorbell_register(&self, offset: usize, len: usize) -> MmioDoorbellRegister {
        let mask = (len.max(8).checked_next_power_of_two().unwrap_or(8) - 8) & self.mask;
        // SAFETY: the BAR's length is a power of two of at least 8. The offset, cut to a multiple
        // of the register's length below it, therefore leaves room for the register inside the
        // mapping that `new`'s caller promised. `base` is aligned to 8.
        let base = unsafe { self.base.add(offset & self.mask & !mask) }.cast();
        MmioDoorbellRegister { base, mask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(8))]
    struct Registers([u8; 64]);

    #[test]
    fn values_are_big_endian_and_offsets_stay_inside() {
        let mut memory = Registers([0; 64]);
        // SAFETY: the array outlives the handle and is touched only through it until the end.
        let bar = unsafe { MmioBar::new(NonNull::from(&mut memory.0).cast(), 64) }.expect("a power of two");
        // SAFETY: `bar` is memory.
        let (mut first, mut last) = unsafe {
            bar.write32(64 + 4, 0xa0b0_c0d0);
            (bar.doorbell_register(8, 8), bar.doorbell_register(0xffff_fff8, 8))
        };
        first.ring(0x0102_0304_0506_0708);
        last.ring(0x1112_1314_1516_1718);
        assert_eq!(bar.read64(8), 0x0102_0304_0506_0708);
        assert_eq!(bar.read32(4), 0xa0b0_c0d0);
        assert_eq!(memory.0[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(memory.0[56..64], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    }

    #[test]
    fn doorbell_register_keeps_writes_inside_itself() {
        let mut memory = Registers([0; 64]);
        // SAFETY: the array outlives the handles and is touched only through them until the end.
        let mut register = unsafe {
            let bar = MmioBar::new(NonNull::from(&mut memory.0).cast(), 64).expect("a power of two");
            bar.doorbell_register(64 + 32, 16)
        };
        register.write(8, 1);
        register.write(16, 2);
        let written: std::vec::Vec<_> =
            memory.0.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().expect("8"))).collect();
        assert_eq!(written, [0, 0, 0, 0, 2, 1, 0, 0]);
        // SAFETY: as above.
        let longer = unsafe {
            let bar = MmioBar::new(NonNull::from(&mut memory.0).cast(), 64).expect("a power of two");
            bar.doorbell_register(24, 1 << 20)
        };
        assert_eq!((longer.base.addr().get(), longer.mask), (memory.0.as_ptr().addr(), 56));
    }
}
