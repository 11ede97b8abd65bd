//! Memory that the firmware donates: for the HCA, for the driver's records, and for the tables of
//! its blocks.

use crate::abi::MlxPlatform;
use core::ffi::c_void;
use core::ptr::NonNull;
use driver_mlx::{DmaRegion, HostRegion};

/// Unit of donated memory, in bytes.
pub(crate) const PAGE: usize = 4096;
/// Upper bound of the driver's records while they take a quarter of the HCA's memory. Beyond it a
/// sixteenth is enough, because queues do not dominate large memory.
const RECORDS: usize = 16 << 20;

/// The function `memory` of the platform.
pub(crate) type Source = unsafe extern "C" fn(*mut c_void, usize, *mut u64) -> *mut c_void;

/// Memory donated by the firmware, reused by each device opened in turn.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    dma: *mut u8,
    device_address: u64,
    dma_len: usize,
    own: NonNull<u8>,
    sizes: Sizes,
}

/// Sizes of the driver's own memory beside `dma_len` bytes for the HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// Bytes of the driver's records.
    records: usize,
    /// Blocks of 4 KiB, rounded up to a power of two.
    blocks: usize,
    /// All bytes, in whole pages.
    own: usize,
}

impl Sizes {
    /// `None` if the numbers are too large to be memory.
    fn of(dma_len: usize) -> Option<Self> {
        let records = (dma_len / 16).max((dma_len / 4).min(RECORDS)).next_multiple_of(PAGE);
        let blocks = (dma_len / PAGE).checked_next_power_of_two()?;
        let tables = blocks.checked_mul(size_of::<[u8; 2]>() + size_of::<u16>())?;
        let own = records.checked_add(tables)?.checked_next_multiple_of(PAGE)?;
        Some(Self { records, blocks, own })
    }
}

/// Memory in the form that opening a device takes.
pub(crate) struct Regions {
    pub(crate) dma: DmaRegion,
    pub(crate) host: HostRegion,
    /// Tables of the region's blocks.
    pub(crate) map: &'static mut [[u8; 2]],
    pub(crate) users: &'static mut [u16],
}

impl Given {
    /// Requests memory from the firmware: `dma_len` bytes for the HCA, and the driver's own.
    pub(crate) fn ask(given: &MlxPlatform, source: Source, dma_len: usize) -> Option<Self> {
        let sizes = Sizes::of(dma_len)?;
        let mut device_address = 0;
        // SAFETY: the firmware's function.
        let dma = unsafe { source(given.context, dma_len, &mut device_address) };
        let dma = NonNull::new(dma)?.as_ptr().cast();
        // SAFETY: as above.
        let own = unsafe { source(given.context, sizes.own, core::ptr::null_mut()) };
        let own = NonNull::new(own)?.cast();
        Some(Self { dma, device_address, dma_len, own, sizes })
    }

    /// Bytes that the HCA reaches.
    pub(crate) fn dma_len(&self) -> usize {
        self.dma_len
    }

    /// Converts the memory for a device. Returns `None` if its address or alignment is unusable.
    ///
    /// # Safety
    /// 1. The memory has this length and no other user, as the header requires.
    /// 2. No device accesses it, and all earlier [`Regions`] are dropped.
    pub(crate) unsafe fn regions(&self) -> Option<Regions> {
        let Sizes { records, blocks, .. } = self.sizes;
        let own = self.own.as_ptr();
        if !own.addr().is_multiple_of(align_of::<u64>()) {
            return None;
        }
        // SAFETY: the records and both tables are side by side in `own`, which has room for them by
        // `Sizes::of` and is the library's by this function's contract. `records` is whole pages,
        // so that the tables are aligned. They are written before references to them are made.
        unsafe {
            let dma = DmaRegion::new(self.dma, self.device_address, self.dma_len)?;
            let host = HostRegion::new(own, records)?;
            let users = own.add(records).cast::<u16>();
            users.write_bytes(0, blocks);
            let map = users.add(blocks).cast::<[u8; 2]>();
            map.write_bytes(0, blocks);
            let users = core::slice::from_raw_parts_mut(users, blocks);
            let map = core::slice::from_raw_parts_mut(map, blocks);
            Some(Regions { dma, host, map, users })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_beside_is_in_proportion() {
        let own = |dma_len| Sizes::of(dma_len).map(|sizes| sizes.own);
        // A quarter and 1 KiB for each MiB up to 64 MiB, then a sixteenth, but not less than
        // before.
        assert_eq!(own(64 << 20), Some((16 << 20) + (64 << 10)));
        assert_eq!(own(256 << 20), Some((16 << 20) + (256 << 10)));
        assert_eq!(own(1 << 30), Some((64 << 20) + (1 << 20)));
        assert_eq!(own(PAGE), Some(2 * PAGE));
        assert_eq!(own(3 << 20), Some((768 << 10) + PAGE));
        #[cfg(target_pointer_width = "64")]
        assert_eq!(own(1 << 40), Some((1 << 36) + (1 << 30)), "no bound but memory");
    }
}
