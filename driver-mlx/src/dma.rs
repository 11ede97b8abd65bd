//! Memory that processor and device share.

use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

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
#[derive(Debug)]
pub struct DmaRegion(DmaSlice);

impl DmaRegion {
    /// A region of `len` bytes at `va`, which the device reaches at `device_address`.
    ///
    /// `None` unless both addresses are multiples of 4096, neither range wraps, `device_address` is not zero (firmware
    /// refuses page 0) and at least one page fits.
    ///
    /// # Safety
    /// From now to the end of the program, `va` to `va + len` must be mapped memory that nobody else uses (no Rust
    /// reference covers it), with DMA coherent, and `device_address` must lead the device there.
    #[must_use]
    pub unsafe fn new(va: *mut u8, device_address: u64, len: usize) -> Option<Self> {
        let aligned = va.addr().is_multiple_of(4096) && device_address.is_multiple_of(4096);
        let ends = va.addr().checked_add(len).is_some() && device_address.checked_add(len as u64).is_some();
        if va.is_null() || device_address == 0 || len < 4096 || !aligned || !ends {
            return None;
        }
        // SAFETY: this function's own contract is that of `from_raw`.
        Some(Self(unsafe { DmaSlice::from_raw(va, device_address, len) }))
    }

    /// All of it.
    #[must_use]
    pub fn as_slice(&self) -> DmaSlice {
        self.0
    }
}

/// A piece of memory that the device can reach too.
///
/// A copy of it is an address, not ownership: what a stale copy reads is wrong data, never undefined behaviour, because every
/// access is a relaxed atomic one of the width of a byte, a dword or a quadword and no reference is ever lent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DmaSlice {
    va: *mut u8,
    device_address: u64,
    len: usize,
}

// SAFETY: all accesses through a slice are atomic, and the memory lives as long as any copy (contract of `from_raw`).
unsafe impl Send for DmaSlice {}
// SAFETY: as above.
unsafe impl Sync for DmaSlice {}

impl fmt::Debug for DmaSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaSlice({:#x}, device {:#x}, {} bytes)", self.va.addr(), self.device_address, self.len)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for DmaSlice {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(
            f,
            "DmaSlice({=usize:#x}, device {=u64:#x}, {} bytes)",
            self.va.addr(),
            self.device_address,
            self.len
        );
    }
}

impl DmaSlice {
    /// Foreign memory: `len` bytes at `va`, which the device reaches at `device_address`.
    ///
    /// # Safety
    /// As long as any copy of the slice is used, `va` to `va + len` must be mapped memory that no Rust reference covers and
    /// that is accessed, by others on this side, through atomics only.
    #[must_use]
    pub unsafe fn from_raw(va: *mut u8, device_address: u64, len: usize) -> Self {
        Self { va, device_address, len }
    }

    /// Virtual address of the first byte.
    #[must_use]
    #[inline]
    pub fn va(&self) -> usize {
        self.va.addr()
    }

    /// Address of the first byte as the device sees it.
    #[must_use]
    #[inline]
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Number of bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pointer itself, for the ring memory of this crate.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.va
    }

    /// `len` bytes from `offset` on; `None` if they are not all inside.
    #[must_use]
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // A wrapping add, because an empty slice may end one byte past the memory.
        let va = self.va.wrapping_add(offset);
        Some(Self { va, device_address: self.device_address.wrapping_add(offset as u64), len })
    }

    /// Whether `other` lies inside, by virtual address.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        let (start, end) = (self.va.addr(), self.va.addr() + self.len);
        let from = other.va.addr();
        from >= start && from <= end && other.len <= end - from
    }

    /// Copies bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.slice(offset, out.len()).ok_or(OutOfBounds)?.va;
        let head = from.addr().wrapping_neg() % 8;
        let (first, rest) = out.split_at_mut(head.min(out.len()));
        let mut at = from;
        for byte in first {
            // SAFETY: `at` runs over the bytes that `slice` checked; the memory is mapped and accessed atomically.
            *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            // SAFETY: as above, and `at` is a multiple of 8 from here on.
            let value = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
            at = at.wrapping_add(8);
        }
        for byte in words.into_remainder() {
            // SAFETY: as above.
            *byte = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.slice(offset, data.len()).ok_or(OutOfBounds)?.va;
        let head = to.addr().wrapping_neg() % 8;
        let (first, rest) = data.split_at(head.min(data.len()));
        let mut at = to;
        for &byte in first {
            // SAFETY: `at` runs over the bytes that `slice` checked; the memory is mapped and accessed atomically.
            unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        let (words, tail) = rest.as_chunks::<8>();
        for &word in words {
            // SAFETY: as above, and `at` is a multiple of 8 from here on.
            unsafe { AtomicU64::from_ptr(at.cast()) }.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            at = at.wrapping_add(8);
        }
        for &byte in tail {
            // SAFETY: as above.
            unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies `len` bytes from `from` at `from_offset` to `offset` here. Ranges that overlap give a mixture.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    pub fn copy_from(
        &self,
        offset: usize,
        from: &Self,
        from_offset: usize,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        let target = self.slice(offset, len).ok_or(OutOfBounds)?;
        let source = from.slice(from_offset, len).ok_or(OutOfBounds)?;
        let mut buffer = [0; 256];
        let mut done = 0;
        while done < len {
            let piece = &mut buffer[..(len - done).min(256)];
            source.read(done, piece)?;
            target.write(done, piece)?;
            done += piece.len();
        }
        Ok(())
    }

    /// Sets `len` bytes from `offset` on to `value`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was changed.
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), OutOfBounds> {
        let target = self.slice(offset, len).ok_or(OutOfBounds)?;
        let buffer = [value; 256];
        let mut done = 0;
        while done < len {
            let piece = &buffer[..(len - done).min(256)];
            target.write(done, piece)?;
            done += piece.len();
        }
        Ok(())
    }

    #[inline]
    fn dword(&self, offset: usize) -> Result<&AtomicU32, OutOfBounds> {
        let at = self.slice(offset, 4).ok_or(OutOfBounds)?.va;
        if !at.addr().is_multiple_of(4) {
            return Err(OutOfBounds);
        }
        // SAFETY: four mapped bytes inside the slice, aligned, only ever accessed atomically (contract of `from_raw`).
        Ok(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    #[inline]
    fn quad(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let at = self.slice(offset, 8).ok_or(OutOfBounds)?.va;
        if !at.addr().is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        // SAFETY: eight mapped bytes inside the slice, aligned, only ever accessed atomically (contract of `from_raw`).
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// The big-endian dword at `offset` (a multiple of 4), with acquire ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn load_be32(&self, offset: usize) -> Result<u32, OutOfBounds> {
        Ok(u32::from_be(self.dword(offset)?.load(Ordering::Acquire)))
    }

    /// Stores a big-endian dword at `offset` (a multiple of 4), with release ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn store_be32(&self, offset: usize, value: u32) -> Result<(), OutOfBounds> {
        self.dword(offset)?.store(value.to_be(), Ordering::Release);
        Ok(())
    }

    /// The big-endian quadword at `offset` (a multiple of 8), with acquire ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn load_be64(&self, offset: usize) -> Result<u64, OutOfBounds> {
        Ok(u64::from_be(self.quad(offset)?.load(Ordering::Acquire)))
    }

    /// Stores a big-endian quadword at `offset` (a multiple of 8), with release ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn store_be64(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        self.quad(offset)?.store(value.to_be(), Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DEVICE, memory};

    #[test]
    fn copies_at_every_alignment_and_length() {
        let slice = memory(4096);
        for offset in 0..17 {
            for len in 0..40 {
                let data: std::vec::Vec<u8> = (0..len).map(|i| (i * 7 + offset + 1) as u8).collect();
                slice.fill(0, 128, 0xee).expect("inside");
                slice.write(offset, &data).expect("inside");
                let mut back = std::vec![0; len];
                slice.read(offset, &mut back).expect("inside");
                assert_eq!(back, data);
                let mut around = [0; 128];
                slice.read(0, &mut around).expect("inside");
                assert!(around[..offset].iter().chain(&around[offset + len..]).all(|&b| b == 0xee));
            }
        }
    }

    #[test]
    fn wrong_offsets_are_refused() {
        let slice = memory(4096);
        assert_eq!(slice.read(4090, &mut [0; 7]), Err(OutOfBounds));
        assert_eq!(slice.write(usize::MAX, &[1]), Err(OutOfBounds));
        assert_eq!(slice.load_be32(2), Err(OutOfBounds));
        assert_eq!(slice.load_be64(4092), Err(OutOfBounds));
        assert_eq!(slice.store_be32(4096, 1), Err(OutOfBounds));
        assert!(slice.slice(4096, 0).is_some_and(|s| s.is_empty()));
        assert!(slice.slice(4095, 2).is_none());
        slice.store_be64(8, 0x0102_0304_0506_0708).expect("inside");
        assert_eq!(slice.load_be32(12), Ok(0x0506_0708));
        assert_eq!(slice.slice(8, 8).map(|s| s.device_address()), Some(DEVICE + 8));
    }
}
