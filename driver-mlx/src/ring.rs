//! Ring memory: the device's queues and doorbell records, and the driver's own slots beside them.
//!
//! Everything here is masked to a power of two, so no index leads outside. What the device sees is atomic with relaxed ordering, so
//! memory that is aliased by a stale [`DmaMemory`] gives wrong data at worst. Ordering is the caller's, with [`crate::barrier`].

use crate::dma::DmaMemory;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Octowords (16 bytes) in a WQEBB, a CQE, an EQE (64 bytes).
pub(crate) const BLOCK_UNITS: usize = 4;

/// What is remembered of a work request, in memory that the device does not reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) id: u64,
    pub(crate) tag: u64,
}

/// A power of two of slots.
#[derive(Debug)]
pub(crate) struct Slots {
    base: NonNull<Slot>,
    /// Slots less one.
    mask: usize,
}

// SAFETY: the slots are this value's own (contract of `new`).
unsafe impl Send for Slots {}

impl Slots {
    /// Zeroed slots.
    ///
    /// # Safety
    /// `count` must be a power of two, and so many slots from `base` on must be mapped memory that nobody else uses while this value
    /// is used.
    pub(crate) unsafe fn new(base: NonNull<Slot>, count: usize) -> Self {
        let mut slots = Self { base, mask: count - 1 };
        slots.clear();
        slots
    }

    /// Where they begin.
    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.mask + 1
    }

    /// Slot `index`, modulo their number.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Slot {
        // SAFETY: the masked index is one of the slots that `new`'s caller promised; all were written by `new`.
        unsafe { self.base.add(index & self.mask).read() }
    }

    /// Fills slot `index`, modulo their number.
    #[inline(always)]
    pub(crate) fn set(&mut self, index: usize, slot: Slot) {
        // SAFETY: as in `get`, and `&mut self` is the only way to write.
        unsafe { self.base.add(index & self.mask).write(slot) };
    }

    /// Zeroes everything.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.len() {
            self.set(index, Slot::default());
        }
    }
}

/// A ring of 64-byte entries that is read from one entry to the next, as a CQ is.
#[derive(Debug)]
pub(crate) struct EntryRing {
    base: *mut u8,
    /// Offset of the current entry: a multiple of 64 inside the ring.
    offset: u32,
    /// Bytes less one: of a power of two of entries, [`EntryRing::BATCH`] at least.
    mask: u32,
}

// SAFETY: the memory lives to the end of the program (contract of `DmaMemory`), and all accesses are atomic.
unsafe impl Send for EntryRing {}

impl EntryRing {
    /// Entries in a batch; a ring holds whole batches.
    pub(crate) const BATCH: u32 = 16;

    /// At its first entry. `None` unless `memory` is aligned to 8 and holds a power of two of entries, whole batches, below 4 GiB.
    pub(crate) fn new(memory: DmaMemory) -> Option<Self> {
        let bytes = u32::try_from(memory.len()).ok()?;
        let base = memory.as_ptr();
        let fits = bytes.is_power_of_two() && bytes >= 64 * Self::BATCH && base.cast::<u64>().is_aligned();
        fits.then(|| Self { base, offset: 0, mask: bytes - 1 })
    }

    /// The current entry as it lies in memory.
    #[inline(always)]
    pub(crate) fn current(&self) -> &[AtomicU64; 8] {
        // SAFETY: the offset is a multiple of 64 below the ring's length (masked by `step` and `seek`), so a whole entry lies there, inside
        // memory that is aligned, mapped and accessed only atomically.
        unsafe { &*self.base.add(self.offset as usize).cast::<[AtomicU64; 8]>() }
    }

    /// Entry `index`, modulo the ring, as it lies in memory.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> &[AtomicU64; 8] {
        let offset = index.wrapping_mul(64) & self.mask;
        // SAFETY: as in `current`: the masked multiple of 64 is below the ring's length.
        unsafe { &*self.base.add(offset as usize).cast::<[AtomicU64; 8]>() }
    }

    /// Goes to the next entry. Gives what `read` makes of the one that was the current one, and whether a batch has ended, which may be
    /// the end of the ring.
    #[inline(always)]
    pub(crate) fn step<T>(&mut self, read: impl FnOnce(&[AtomicU64; 8]) -> T) -> (T, bool) {
        let offset = self.offset;
        let found = read(self.current());
        let next = offset.wrapping_add(64);
        self.offset = next;
        if next & (64 * Self::BATCH - 1) != 0 {
            // Inside a batch is inside the ring: it has whole batches.
            return (found, false);
        }
        if next > self.mask {
            self.offset = 0;
        }
        (found, true)
    }

    /// Goes to entry `index`, modulo the ring.
    pub(crate) fn seek(&mut self, index: u32) {
        self.offset = index.wrapping_mul(64) & self.mask;
    }

    /// The current entry's place in the ring.
    #[inline(always)]
    pub(crate) fn position(&self) -> u32 {
        self.offset / 64
    }

    /// Writes the entry at `index`, modulo the ring, as it is to lie in memory.
    pub(crate) fn put(&mut self, index: u32, words: [u64; 8]) {
        for (to, word) in self.entry(index).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.mask / 64 + 1
    }
}

/// A ring of octowords (16 bytes), the grain of mlx5 work queue entries.
#[derive(Debug)]
pub(crate) struct Units {
    base: *mut u8,
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
        (fits && base.cast::<u64>().is_aligned()).then(|| Self { base, unit_mask: units - 1 })
    }

    /// Quadword `half` (0 or 1) of unit `index`, modulo the ring.
    #[inline(always)]
    fn quad(&self, index: usize, half: usize) -> &AtomicU64 {
        let offset = (index & self.unit_mask) * 16;
        // SAFETY: the ring is a power of two of bytes, at least 64 (checked by `new`), so the masked unit lies
        // inside the memory, which is aligned, mapped and accessed only atomically; the masked half is one of its two.
        unsafe { AtomicU64::from_ptr(self.base.add(offset + (half & 1) * 8).cast()) }
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

    /// Number of units.
    pub(crate) fn len(&self) -> usize {
        self.unit_mask + 1
    }

    /// Zeroes everything.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.len() {
            self.put(index, 0, 0);
        }
    }
}

/// A send queue: its WQEBBs, and a slot beside each.
#[derive(Debug)]
pub(crate) struct SendRing {
    blocks: *mut [AtomicU64; 8],
    slots: NonNull<Slot>,
    /// WQEBBs less one, and slots.
    mask: usize,
}

// SAFETY: as for `Units` and `Slots`.
unsafe impl Send for SendRing {}

impl SendRing {
    /// `None` unless `memory` is aligned to 8 and holds as many WQEBBs as there are slots.
    pub(crate) fn new(memory: DmaMemory, slots: &Slots) -> Option<Self> {
        let base = memory.as_ptr();
        (memory.len() == slots.len() * 64 && base.cast::<u64>().is_aligned()).then_some(Self {
            blocks: base.cast(),
            slots: slots.base,
            mask: slots.mask,
        })
    }

    #[inline(always)]
    fn at(&self, index: u16) -> usize {
        usize::from(index) & self.mask
    }

    /// WQEBB `index`, modulo the ring, as it lies in memory.
    #[inline(always)]
    pub(crate) fn block(&self, index: u16) -> &[AtomicU64; 8] {
        // SAFETY: `new` checked that so many blocks of 64 bytes lie inside the memory, which is aligned, mapped and accessed only
        // atomically; the masked index is one of them.
        unsafe { &*self.blocks.add(self.at(index)) }
    }

    /// The slot beside WQEBB `index`, modulo the ring.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u16) -> Slot {
        // SAFETY: there is a slot for each block (checked by `new`), and the queue that owns this ring owns the slots.
        unsafe { self.slots.add(self.at(index)).read() }
    }

    /// Fills the slot beside WQEBB `index`, modulo the ring.
    #[inline(always)]
    pub(crate) fn keep(&mut self, index: u16, slot: Slot) {
        // SAFETY: as in `slot`.
        unsafe { self.slots.add(self.at(index)).write(slot) };
    }

    /// Writes octoword `octoword` counted from WQEBB `index` on, modulo the ring, as two big-endian quadwords.
    #[inline(always)]
    pub(crate) fn put(&mut self, index: u16, octoword: usize, first: u64, second: u64) {
        let block = self.block(index.wrapping_add((octoword / BLOCK_UNITS) as u16));
        let place = octoword % BLOCK_UNITS * 2;
        block[place & 7].store(first.to_be(), Ordering::Relaxed);
        block[(place + 1) & 7].store(second.to_be(), Ordering::Relaxed);
    }

    /// Zeroes everything.
    pub(crate) fn clear(&mut self) {
        for index in 0..=self.mask {
            for octoword in 0..BLOCK_UNITS {
                self.put(index as u16, octoword, 0, 0);
            }
            self.keep(index as u16, Slot::default());
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
