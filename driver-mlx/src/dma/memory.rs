//! What every access to shared memory comes down to.

use super::OutOfBounds;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Memory of the driver's own: rings, mailboxes, firmware pages, and what buffers and slices are made of.
///
/// A copy of it is an address, not ownership, which is why nobody outside this crate can get one. Within the crate each piece
/// belongs to one object (a queue, a command slot, a buffer), and only the thread that has the object accesses the bytes.
/// Accesses are relaxed atomic ones, because the device writes at any time, and no reference is lent to the outside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DmaMemory {
    va: *mut u8,
    device_address: u64,
    len: usize,
}

// SAFETY: the memory lives as long as any copy (contract of `from_raw`) and does not depend on the thread. It is not `Sync`: accesses of
// different widths must not meet in two threads.
unsafe impl Send for DmaMemory {}

impl fmt::Debug for DmaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}, device {:#x}, {} bytes", self.va.addr(), self.device_address, self.len)
    }
}

impl DmaMemory {
    /// `len` bytes at `va`, which the device reaches at `device_address`.
    ///
    /// # Safety
    /// As long as any copy is used, `va` to `va + len` must be mapped memory that no Rust reference covers and that no other
    /// thread accesses at the same time.
    pub(crate) const unsafe fn from_raw(va: *mut u8, device_address: u64, len: usize) -> Self {
        Self { va, device_address, len }
    }

    /// Virtual address of the first byte.
    #[inline]
    pub(crate) fn va(&self) -> usize {
        self.va.addr()
    }

    /// Address of the first byte as the device sees it.
    #[inline]
    pub(crate) const fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Number of bytes.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The pointer itself, for rings and blocks.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.va
    }

    /// `len` bytes from `offset` on; `None` if they are not all inside.
    #[inline]
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // A wrapping add, because an empty slice may end one byte past the memory.
        let va = self.va.wrapping_add(offset);
        Some(Self { va, device_address: self.device_address.wrapping_add(offset as u64), len })
    }

    /// Whether `other` lies inside, by virtual address.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let (start, end) = (self.va.addr(), self.va.addr() + self.len);
        let from = other.va.addr();
        from >= start && from <= end && other.len <= end - from
    }

    /// Copies bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied.
    #[inline]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
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
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
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
    pub(crate) fn copy_from(
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
    pub(crate) fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), OutOfBounds> {
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
    pub(crate) fn load_be32(&self, offset: usize) -> Result<u32, OutOfBounds> {
        Ok(u32::from_be(self.dword(offset)?.load(Ordering::Acquire)))
    }

    /// Stores a big-endian dword at `offset` (a multiple of 4), with release ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub(crate) fn store_be32(&self, offset: usize, value: u32) -> Result<(), OutOfBounds> {
        self.dword(offset)?.store(value.to_be(), Ordering::Release);
        Ok(())
    }

    /// The big-endian quadword at `offset` (a multiple of 8), with acquire ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub(crate) fn load_be64(&self, offset: usize) -> Result<u64, OutOfBounds> {
        Ok(u64::from_be(self.quad(offset)?.load(Ordering::Acquire)))
    }

    /// Stores a big-endian quadword at `offset` (a multiple of 8), with release ordering.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub(crate) fn store_be64(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
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
        // Miri is slow: fewer there, with every alignment to 8 bytes still.
        let (offsets, step) = if cfg!(miri) { (8, 7) } else { (17, 1) };
        for offset in 0..offsets {
            for len in (0..40).step_by(step) {
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
        assert!(slice.slice(4096, 0).is_some_and(|s| s.len() == 0));
        assert!(slice.slice(4095, 2).is_none());
        slice.store_be64(8, 0x0102_0304_0506_0708).expect("inside");
        assert_eq!(slice.load_be32(12), Ok(0x0506_0708));
        assert_eq!(slice.slice(8, 8).map(|s| s.device_address()), Some(DEVICE + 8));
    }
}
