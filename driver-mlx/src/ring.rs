//! Ring memory: the device's queues, doorbell records and the slots beside them, written once and in place.
//!
//! Everything here is masked to a power of two, so no index leads outside, and atomic with relaxed ordering, so memory that
//! is aliased by a stale [`DmaMemory`] gives wrong data at worst. Ordering is the caller's, with [`crate::barrier`].

use crate::dma::DmaMemory;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Units in a block of 64 bytes: a send basic block, a CQE, an EQE.
pub(crate) const BLOCK_UNITS: usize = 4;

/// A ring of 16-byte units, the grain of mlx5 work queue entries.
#[derive(Debug)]
pub(crate) struct Units {
    base: *mut u8,
    /// Bytes less one.
    mask: usize,
    /// Units less one.
    unit_mask: usize,
}

// SAFETY: the memory lives to the end of the program (contract of `DmaMemory`), and all accesses are atomic.
unsafe impl Send for Units {}

impl Units {
    /// `None` unless `memory` is aligned to 8 and its length is 64 times a power of two.
    pub(crate) fn new(memory: DmaMemory) -> Option<Self> {
        let units = memory.len() / 16;
        let fits = memory.len().is_multiple_of(16) && units.is_power_of_two() && units >= BLOCK_UNITS;
        let base = memory.as_ptr();
        (fits && base.cast::<u64>().is_aligned()).then(|| Self {
            base,
            mask: memory.len() - 1,
            unit_mask: units - 1,
        })
    }

    /// Quadword `half` (0 or 1) of unit `index`, modulo the ring.
    #[inline(always)]
    fn quad(&self, index: usize, half: usize) -> &AtomicU64 {
        let offset = (index & self.unit_mask) * 16;
        // SAFETY: the ring is a power of two of bytes, at least 64 (checked by `new`), so the masked unit lies
        // inside the memory, which is aligned, mapped and accessed only atomically; the masked half is one of its two.
        unsafe { AtomicU64::from_ptr(self.base.add(offset + (half & 1) * 8).cast()) }
    }

    /// The two quadwords of unit `index`, modulo the ring, as they lie in memory.
    #[inline(always)]
    pub(crate) fn unit(&self, index: usize) -> &[AtomicU64; 2] {
        let offset = (index & self.unit_mask) * 16;
        // SAFETY: as in `quad`: the masked unit lies inside the memory.
        unsafe { &*self.base.add(offset).cast::<[AtomicU64; 2]>() }
    }

    /// Writes a unit as two big-endian quadwords.
    #[inline(always)]
    pub(crate) fn put(&mut self, index: usize, first: u64, second: u64) {
        self.quad(index, 0).store(first.to_be(), Ordering::Relaxed);
        self.quad(index, 1).store(second.to_be(), Ordering::Relaxed);
    }

    /// The two big-endian quadwords of a unit.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> (u64, u64) {
        (u64::from_be(self.quad(index, 0).load(Ordering::Relaxed)), self.second(index))
    }

    /// The second big-endian quadword of a unit.
    #[inline(always)]
    pub(crate) fn second(&self, index: usize) -> u64 {
        u64::from_be(self.quad(index, 1).load(Ordering::Relaxed))
    }

    /// Writes a unit as two quadwords in the processor's byte order: for what the device does not read.
    #[inline(always)]
    pub(crate) fn put_native(&mut self, index: usize, first: u64, second: u64) {
        self.quad(index, 0).store(first, Ordering::Relaxed);
        self.quad(index, 1).store(second, Ordering::Relaxed);
    }

    /// What [`Units::put_native`] wrote.
    #[inline(always)]
    pub(crate) fn get_native(&self, index: usize) -> (u64, u64) {
        (self.quad(index, 0).load(Ordering::Relaxed), self.quad(index, 1).load(Ordering::Relaxed))
    }

    /// The eight quadwords of block `index` of 64 bytes, modulo the ring, as they lie in memory.
    #[inline(always)]
    pub(crate) fn block(&self, index: usize) -> &[AtomicU64; 8] {
        let offset = (index * (16 * BLOCK_UNITS)) & self.mask & !(16 * BLOCK_UNITS - 1);
        // SAFETY: as in `quad`: the masked multiple of 64 begins a whole block inside the memory.
        unsafe { &*self.base.add(offset).cast::<[AtomicU64; 8]>() }
    }

    /// Number of units.
    pub(crate) fn len(&self) -> usize {
        self.unit_mask + 1
    }

    /// Zeroes everything.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.len() {
            self.put_native(index, 0, 0);
        }
    }
}

/// A doorbell record: two big-endian dwords that the device reads.
#[derive(Debug)]
pub(crate) struct DoorbellRecord {
    base: *mut u32,
}

// SAFETY: as for `Units`.
unsafe impl Send for DoorbellRecord {}

impl DoorbellRecord {
    /// `None` unless `memory` holds 8 bytes aligned to 8.
    pub(crate) fn new(memory: DmaMemory) -> Option<Self> {
        let base = memory.as_ptr().cast::<u32>();
        (memory.len() >= 8 && base.cast::<u64>().is_aligned()).then_some(Self { base })
    }

    #[inline(always)]
    fn word(&self, second: bool) -> &AtomicU32 {
        // SAFETY: both dwords lie inside the memory checked by `new`, aligned, mapped and accessed only atomically.
        unsafe { AtomicU32::from_ptr(self.base.add(usize::from(second))) }
    }

    /// Word 0: receive counter of a QP, consumer index of a CQ.
    #[inline(always)]
    pub(crate) fn store_first(&mut self, value: u32) {
        self.word(false).store(value.to_be(), Ordering::Relaxed);
    }

    /// Word 1: send counter of a QP, arm value of a CQ.
    #[inline(always)]
    pub(crate) fn store_second(&mut self, value: u32) {
        self.word(true).store(value.to_be(), Ordering::Relaxed);
    }
}
