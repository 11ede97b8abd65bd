//! Host memory: where the driver remembers work requests, out of the device's reach.
//!
//! What comes back to the consumer with a completion (its [`WrId`](crate::WrId)) and how many WQEBBs a work request takes must not
//! be in memory that the device can write: a faulty device could then hand one request's `wr_id` to another.

use crate::buddy::Buddy;
use crate::ring::{Slot, Slots};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// Slots in a block of the allocator.
const BLOCK_SLOTS: usize = 16;
/// Bytes of a block.
const BLOCK_BYTES: usize = BLOCK_SLOTS * size_of::<Slot>();

/// Memory for what the driver remembers of work requests, handed in at bring-up beside the [`DmaRegion`](crate::DmaRegion). The
/// device needs no access to it and should have none.
///
/// It takes 16 bytes for each WQEBB (64 bytes) of a send queue, 16 for each receive and 32 for each receive of a shared queue, each
/// queue rounded up to a power of two and to 256 bytes, and 1 to 2 % for the allocator. A sixteenth of the DMA region is enough for
/// most; a region that is used for queues alone needs up to as much again.
#[derive(Debug)]
pub struct HostRegion {
    base: NonNull<Slot>,
    blocks: usize,
    epoch: NonNull<AtomicU64>,
    map: NonNull<[u8]>,
}

// SAFETY: the memory is used by the owner of the region alone (contract of `new`).
unsafe impl Send for HostRegion {}

impl HostRegion {
    /// `len` bytes at `va`.
    ///
    /// `None` unless `va` is a multiple of 8 and not null, and at least 512 bytes fit.
    ///
    /// # Safety
    /// `va` to `va + len` must be mapped memory that no other code uses. This must hold until the
    /// end of the program, or until neither the [`Hca`](crate::Hca) that the memory is given to nor
    /// any queue made by that HCA is used any more. Dropping the HCA is a use.
    #[must_use]
    pub unsafe fn new(va: *mut u8, len: usize) -> Option<Self> {
        let base = NonNull::new(va.cast::<Slot>()).filter(|base| base.is_aligned())?;
        let most = len / BLOCK_BYTES;
        let map_bytes = 2 * most.checked_next_power_of_two()?;
        let blocks = len.checked_sub(map_bytes + size_of::<AtomicU64>())? / BLOCK_BYTES;
        if blocks == 0 {
            return None;
        }
        let map_bytes = 2 * blocks.next_power_of_two();
        // SAFETY: blocks, epoch and map together are at most `len` bytes, so epoch and map lie inside the caller's memory.
        let (epoch, map) = unsafe {
            let epoch = base.add(blocks * BLOCK_SLOTS).cast::<AtomicU64>();
            (epoch, epoch.add(1).cast::<u8>())
        };
        Some(Self { base, blocks, epoch, map: NonNull::slice_from_raw_parts(map, map_bytes) })
    }

    /// All of `memory`. `None` for less than 512 bytes.
    #[must_use]
    pub fn from_static(memory: &'static mut [u64]) -> Option<Self> {
        let len = size_of_val(memory);
        // SAFETY: an exclusive reference for good.
        unsafe { Self::new(memory.as_mut_ptr().cast(), len) }
    }
}

/// Gives out the slots of a [`HostRegion`].
#[derive(Debug)]
pub(crate) struct HostMemory {
    base: NonNull<Slot>,
    buddy: Buddy<'static>,
    epoch: NonNull<AtomicU64>,
}

// SAFETY: as for `HostRegion`.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// All of `region` free.
    pub(crate) fn new(region: HostRegion) -> Option<Self> {
        let HostRegion { base, blocks, epoch, mut map } = region;
        // SAFETY: the epoch lies inside the region, aligned to 8, beside its blocks and the map.
        unsafe { epoch.write(AtomicU64::new(0)) };
        // SAFETY: the map lies inside the region's memory, beside its blocks, and only this value uses it from now on; it is written
        // before a reference to it is made.
        let map: &'static mut [u8] = unsafe {
            map.cast::<u8>().write_bytes(0, map.len());
            map.as_mut()
        };
        Some(Self { base, buddy: Buddy::new(map, blocks)?, epoch })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `new` wrote the word, inside the region. All accesses from then on are atomic.
        unsafe { self.epoch.as_ref() }
    }

    /// The present epoch, for a queue that is being made.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch { word: self.epoch, made: self.word().load(Ordering::Relaxed) }
    }

    /// Ends the present epoch and begins the next: all queues made so far are stale.
    pub(crate) fn end_epoch(&mut self) {
        self.word().fetch_add(1, Ordering::Release);
    }

    /// `count` slots, all zero, rounded up to a power of two.
    pub(crate) fn alloc(&mut self, count: usize) -> Option<Slots> {
        let count = count.max(1).checked_next_power_of_two()?;
        let order = count.div_ceil(BLOCK_SLOTS).next_power_of_two().ilog2();
        let block = self.buddy.alloc(order)?;
        // SAFETY: the run of blocks lies inside the region, holds `count` slots, and is nobody else's until it is given back.
        Some(unsafe { Slots::new(self.base.add(block * BLOCK_SLOTS), count) })
    }

    /// Gives back what [`HostMemory::alloc`] gave. Slots of another region stay where they are.
    pub(crate) fn free(&mut self, slots: Slots) {
        let offset = slots.address().wrapping_sub(self.base.addr().get());
        if offset.is_multiple_of(BLOCK_BYTES) {
            self.buddy.free(offset / BLOCK_BYTES);
        }
    }

    /// Bytes that are free.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.buddy.free_blocks() * BLOCK_BYTES
    }
}

/// When a queue was made: before or after a recovery. Queues do not see their HCA, so that they
/// learn of its recovery, and of its end, from a word in the region.
#[derive(Debug)]
pub(crate) struct Epoch {
    word: NonNull<AtomicU64>,
    made: u64,
}

// SAFETY: the word lives as long as any queue is used (contract of `HostRegion::new`), and all accesses are atomic.
unsafe impl Send for Epoch {}

impl Epoch {
    /// Returns whether the HCA has recovered since, or is gone.
    pub(crate) fn has_ended(&self) -> bool {
        // SAFETY: `HostMemory::new` wrote the word, which lives as long as any queue is used. All accesses are atomic.
        let now = unsafe { self.word.as_ref() }.load(Ordering::Acquire);
        now != self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::keep;
    use std::vec;

    fn region(bytes: usize) -> Option<HostRegion> {
        HostRegion::from_static(keep(vec![0xaaaa_aaaa_aaaa_aaaa; bytes / 8].into_boxed_slice()))
    }

    #[test]
    fn slots_are_zeroed_apart_and_come_back() {
        let mut memory = HostMemory::new(region(8192).expect("large enough")).expect("a map");
        let free = memory.free_bytes();
        assert!(free >= 7680);
        let mut a = memory.alloc(17).expect("room");
        let mut b = memory.alloc(1).expect("room");
        for index in 0..32 {
            assert_eq!(a.get(index), Slot::default());
            a.set(index, Slot { id: index as u64, tag: 1 });
        }
        b.set(0, Slot { id: 99, tag: 2 });
        for index in 0..32 {
            assert_eq!(a.get(index), Slot { id: index as u64, tag: 1 });
        }
        assert_eq!(a.get(32), a.get(0), "indices wrap");
        memory.free(a);
        memory.free(b);
        assert_eq!(memory.free_bytes(), free);
    }

    #[test]
    fn all_of_it_can_be_had_and_not_more() {
        let mut memory = HostMemory::new(region(4096).expect("large enough")).expect("a map");
        let mut taken = vec![];
        while let Some(slots) = memory.alloc(16) {
            taken.push(slots);
        }
        assert_eq!(taken.len(), 15);
        assert!(memory.alloc(usize::MAX).is_none());
        taken.drain(..).for_each(|slots| memory.free(slots));
        let other =
            HostMemory::new(region(4096).expect("large enough")).expect("a map").alloc(1).expect("room");
        let free = memory.free_bytes();
        memory.free(other);
        assert_eq!(memory.free_bytes(), free, "slots of another region");
    }

    #[test]
    fn epoch_ends_for_those_made_in_it() {
        let mut memory = HostMemory::new(region(4096).expect("large enough")).expect("a map");
        while memory.alloc(1).is_some() {}
        let first = memory.epoch();
        assert!(!first.has_ended());
        memory.end_epoch();
        let second = memory.epoch();
        assert!(first.has_ended() && !second.has_ended());
    }

    #[test]
    fn too_little_is_refused() {
        assert!(region(256).is_none() && region(0).is_none());
        assert!(region(512).is_some());
    }
}
