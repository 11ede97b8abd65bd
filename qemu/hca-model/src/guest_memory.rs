//! Guest memory as a device reaches it.

use std::any::Any;
use std::fmt;

/// An access to guest memory that cannot be made: nothing mapped there, not writable, not aligned, or bus mastering off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// The device's address.
    pub address: u64,
    /// Bytes of the access.
    pub len: usize,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DMA fault: {} bytes at {:#x}", self.len, self.address)
    }
}

impl std::error::Error for DmaFault {}

/// Guest memory as the device's DMA sees it. Addresses are the device's (guest-physical).
///
/// The 4- and 8-byte accesses are single and ordered; their values are the big-endian numbers in memory, as the PRM prints
/// them.
pub trait GuestMemory: Any {
    /// Copies from memory.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte of the range is inaccessible.
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
    /// Copies to memory.
    ///
    /// # Errors
    /// [`DmaFault`] when any byte of the range is inaccessible or read-only.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault>;
    /// One 32-bit load with acquire ordering.
    ///
    /// # Errors
    /// [`DmaFault`] when inaccessible or not 4-byte aligned.
    fn load32(&self, address: u64) -> Result<u32, DmaFault>;
    /// One 64-bit load with acquire ordering.
    ///
    /// # Errors
    /// [`DmaFault`] when inaccessible or not 8-byte aligned.
    fn load64(&self, address: u64) -> Result<u64, DmaFault>;
    /// One 32-bit store with release ordering.
    ///
    /// # Errors
    /// [`DmaFault`] when inaccessible, read-only or not 4-byte aligned.
    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault>;
    /// One 64-bit store with release ordering.
    ///
    /// # Errors
    /// [`DmaFault`] when inaccessible, read-only or not 8-byte aligned.
    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault>;
    /// Writes a queue entry of 64 bytes. Software that sees the last 8 bytes sees all of it.
    ///
    /// # Errors
    /// [`DmaFault`] when inaccessible, read-only or not 8-byte aligned.
    fn publish(&self, address: u64, entry: &[u8; 64]) -> Result<(), DmaFault> {
        let [.., a, b, c, d, e, f, g, h] = *entry;
        self.write(address, &entry[..56])?;
        self.store64(address.wrapping_add(56), u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
    /// Copies `len` bytes at `from` to `to` of `target`, the memory of another guest.
    ///
    /// Memories of one kind override this, find each other by [`Any`], and copy without a buffer.
    ///
    /// # Errors
    /// [`DmaFault`] when a byte of the source is inaccessible, or one of the target is inaccessible
    /// or read-only. A part may have been copied.
    fn copy(&self, from: u64, target: &dyn GuestMemory, to: u64, len: usize) -> Result<(), DmaFault> {
        copy_in_parts(self, from, target, to, len)
    }
}

/// Copies between memories of two kinds, through a small buffer.
///
/// # Errors
/// As [`GuestMemory::copy`].
pub fn copy_in_parts(
    source: &(impl GuestMemory + ?Sized),
    from: u64,
    target: &dyn GuestMemory,
    to: u64,
    len: usize,
) -> Result<(), DmaFault> {
    let mut buffer = [0; 1024];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(buffer.len());
        let part = buffer.get_mut(..count).unwrap_or_default();
        source.read(from.wrapping_add(done as u64), part)?;
        target.write(to.wrapping_add(done as u64), part)?;
        done += count;
    }
    Ok(())
}

/// Memory of a device whose bus mastering is off: every access fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl GuestMemory for NoMemory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        Err(DmaFault { address, len: buf.len() })
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        Err(DmaFault { address, len: data.len() })
    }
    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        Err(DmaFault { address, len: 4 })
    }
    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        Err(DmaFault { address, len: 8 })
    }
    fn store32(&self, address: u64, _: u32) -> Result<(), DmaFault> {
        Err(DmaFault { address, len: 4 })
    }
    fn store64(&self, address: u64, _: u64) -> Result<(), DmaFault> {
        Err(DmaFault { address, len: 8 })
    }
}
