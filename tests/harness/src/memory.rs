//! A node's DMA region.

use dat_nostd::SoleAccess;
use driver_mlx::{DmaRegion, DmaSlice, HostRegion};
use hca_model::{DmaFault, GuestMemory};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ops::Range;

/// Distance of the regions of two nodes in the device's address space.
const DEVICE_STRIDE: u64 = 0x10_0000_0000;
/// Device address of the first region: far from any virtual address, so that mixing them up shows.
const DEVICE_BASE: u64 = 0x7_0000_0000;

/// Alignment of a region: at least its size, or the pages that the driver finds in it, and with them the steps of the device, would depend
/// on where the allocator put it. (The interpreter's memory is not that cheap.)
const ALIGNMENT: usize = if cfg!(miri) { 1 << 21 } else { 1 << 26 };

/// Memory that a node shares with its HCA: the HCA reaches it at other addresses than the node, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    all: DmaSlice<'static>,
}

/// Memory for what a driver remembers of its work requests: enough for a thousand endpoints.
#[must_use]
pub fn host_region() -> HostRegion {
    // Its map costs an interpreter more than anything else.
    let len = if cfg!(miri) { 1 << 17 } else { 4 << 20 };
    let words = Box::leak(vec![0; len >> 3].into_boxed_slice());
    crate::kept::remember(words.as_mut_ptr());
    HostRegion::from_static(words).expect("large enough")
}

/// What a test's nodes may do with memory that is registered: a test and its nodes are one thread.
// SAFETY: what is registered with a node of a test stays in the test's thread; the emulated devices run in that one, too.
pub const SOLE_ACCESS: SoleAccess = unsafe { SoleAccess::promised() };

/// Zeroed memory of a program's own, outside any region. It stays for the rest of the process.
///
/// # Panics
/// If `len` is 0 or more than there is.
#[must_use]
pub fn foreign(len: usize) -> DmaSlice<'static> {
    let layout = Layout::from_size_align(len, 16).expect("a size");
    assert!(len != 0);
    // SAFETY: the layout's size is not 0.
    let va = unsafe { alloc_zeroed(layout) };
    if va.is_null() {
        handle_alloc_error(layout);
    }
    crate::kept::remember(va);
    va.expose_provenance();
    // SAFETY: it was just allocated and is never freed; only slices and devices reach it, in one thread.
    unsafe { DmaSlice::foreign(va, len) }
}

impl Memory {
    /// `len` bytes for node `node`, zeroed, and the driver's view of them. The addresses stay for the rest of the process, as
    /// queues and slices may outlive whatever was made of them; the world takes the bytes with it.
    ///
    /// # Panics
    /// If `len` is no multiple of 4096, or 0.
    #[must_use]
    pub fn new(node: usize, len: usize) -> (Self, DmaRegion) {
        assert!(len != 0 && len.is_multiple_of(4096), "whole pages");
        // Aligned as a large allocation of an embedder would be, so that the driver can use large pages. The allocator itself
        // is not asked for the alignment: it would write the zeros, and a region would cost all its pages, used or not.
        let layout = Layout::from_size_align(len + ALIGNMENT, 16).expect("a small alignment");
        // SAFETY: the layout's size is not 0.
        let allocation = unsafe { alloc_zeroed(layout) };
        if allocation.is_null() {
            handle_alloc_error(layout);
        }
        crate::kept::remember(allocation);
        let before = allocation.addr().wrapping_neg() % ALIGNMENT;
        // SAFETY: `before` is less than the `ALIGNMENT` bytes that were allocated beyond `len`.
        let va = unsafe { allocation.add(before) };
        let device = DEVICE_BASE + DEVICE_STRIDE * node as u64;
        va.expose_provenance();
        // SAFETY: the memory was just allocated and is never freed. Only the driver and the model (which is "the device" and gets the same
        // bytes at `device`) reach it, in one thread.
        let (all, region) = unsafe { (DmaSlice::from_raw(va, device, len), DmaRegion::new(va, device, len)) };
        (Self { all }, region.expect("aligned, not null"))
    }

    /// Where it is in this process.
    #[must_use]
    pub fn addresses(&self) -> Range<usize> {
        self.all.va()..self.all.va() + self.all.len()
    }

    /// Gives the pages back to the system. The addresses stay good, as slices may be left: they find zeros.
    pub(crate) fn discard(&self) {
        // The interpreter has no such call; what it runs is short.
        #[cfg(not(miri))]
        {
            let start = std::ptr::with_exposed_provenance_mut(self.all.va());
            // SAFETY: the range is whole pages of a private anonymous mapping, which stays mapped. Whoever can still reach it is in
            // the world's thread, and finds zeros as if the device had written them.
            let result =
                unsafe { rustix::mm::madvise(start, self.all.len(), rustix::mm::Advice::LinuxDontNeed) };
            debug_assert!(result.is_ok(), "{result:?}");
        }
    }

    /// The same memory once more, for the next driver on it.
    ///
    /// The driver that had it must be gone: torn down, dropped, or its HCA reset; and so must its buffers and queues.
    #[must_use]
    pub fn region_again(&self) -> DmaRegion {
        // SAFETY: as in `new`; this function's callers see to it that nothing of the last driver is used any more.
        unsafe {
            DmaRegion::new(
                std::ptr::with_exposed_provenance_mut(self.all.va()),
                self.all.device_address(),
                self.all.len(),
            )
        }
        .expect("was a region before")
    }

    /// All of it.
    #[must_use]
    pub fn as_slice(&self) -> DmaSlice<'static> {
        self.all
    }

    fn at(&self, address: u64, len: usize) -> Result<usize, DmaFault> {
        let fault = DmaFault { address, len };
        let offset = address.checked_sub(self.all.device_address()).ok_or(fault)?;
        usize::try_from(offset).map_err(|_| fault)
    }
}

impl GuestMemory for Memory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let offset = self.at(address, buf.len())?;
        self.all.read(offset, buf).map_err(|_| DmaFault { address, len: buf.len() })
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        let offset = self.at(address, data.len())?;
        self.all.write(offset, data).map_err(|_| DmaFault { address, len: data.len() })
    }

    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        self.all.load_be32(self.at(address, 4)?).map_err(|_| DmaFault { address, len: 4 })
    }

    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        self.all.load_be64(self.at(address, 8)?).map_err(|_| DmaFault { address, len: 8 })
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.all.store_be32(self.at(address, 4)?, value).map_err(|_| DmaFault { address, len: 4 })
    }

    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.all.store_be64(self.at(address, 8)?, value).map_err(|_| DmaFault { address, len: 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_sees_the_same_bytes_elsewhere_and_nothing_else() {
        let (memory, _) = Memory::new(3, 8192);
        let slice = memory.as_slice();
        assert_ne!(slice.va() as u64, slice.device_address());
        slice.write(4096, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("inside");
        let at = slice.device_address() + 4096;
        assert_eq!(memory.load64(at), Ok(0x0102_0304_0506_0708));
        assert_eq!(memory.store32(at + 4, 0xa0b0_c0d0), Ok(()));
        assert_eq!(slice.load_be64(4096), Ok(0x0102_0304_a0b0_c0d0));
        let mut bytes = [0; 3];
        memory.read(at + 1, &mut bytes).expect("inside");
        assert_eq!(bytes, [2, 3, 4]);

        assert_eq!(memory.load32(slice.va() as u64), Err(DmaFault { address: slice.va() as u64, len: 4 }));
        let end = slice.device_address() + 8192;
        assert_eq!(memory.write(end - 1, &[0; 2]), Err(DmaFault { address: end - 1, len: 2 }));
        assert_eq!(memory.load64(at + 4), Err(DmaFault { address: at + 4, len: 8 }), "unaligned");
        assert_eq!(memory.read(u64::MAX, &mut [0; 2]), Err(DmaFault { address: u64::MAX, len: 2 }));
    }
}
