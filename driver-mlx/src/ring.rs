//! Ring memory: the device's queues and doorbell records, and the driver's own slots beside them.
//!
//! Everything here is masked to a power of two, so no index leads outside. What the device sees is atomic with relaxed ordering, so
//! memory that is aliased by a stale [`DmaMemory`] gives wrong data at worst. Ordering is the caller's, with [`crate::barrier`].

use crate::dma::DmaMemory;
use crate::types::Sge;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Octowords (16 bytes) in a WQEBB, a CQE, an EQE (64 bytes).
pub(crate) const OCTOWORDS_PER_ENTRY: usize = 4;

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
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Slot {
        // SAFETY: the masked index is one of the slots that `new`'s caller promised; all were written by `new`.
        unsafe { self.base.add(index & self.mask).read() }
    }

    /// Fills slot `index`, modulo their number.
    #[inline]
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

/// What ended with an entry of an [`EntryRing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Inside,
    /// A batch.
    Batch,
    /// A batch, and the ring.
    Lap,
}

/// An entry that is, or was, the current one of its [`EntryRing`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry(*mut u8);

/// A ring of 64-byte entries that is read from one entry to the next, as a CQ is.
#[derive(Debug)]
pub(crate) struct EntryRing {
    /// The current entry: a multiple of 64 bytes from the ring's beginning, inside the ring.
    current: *mut u8,
    /// Where the ring ends.
    end: NonNull<u8>,
    /// Bytes less one: of a power of two of entries, [`EntryRing::BATCH`] at least.
    mask: u32,
}

// SAFETY: the memory lives to the end of the program (contract of `DmaMemory`), and all accesses are atomic.
unsafe impl Send for EntryRing {}

impl EntryRing {
    /// Entries in a batch; a ring holds whole batches.
    pub(crate) const BATCH: u32 = 16;
    /// Bytes of a batch: what a ring is aligned to, so that an entry's address says where in its batch it is.
    const BATCH_BYTES: usize = 64 * Self::BATCH as usize;

    /// At its first entry. `None` unless `memory` is aligned to a batch and holds a power of two of entries, whole batches, below 4 GiB.
    pub(crate) fn new(memory: DmaMemory) -> Option<Self> {
        let bytes = u32::try_from(memory.len()).ok()?;
        let base = memory.as_ptr();
        let fits = bytes.is_power_of_two()
            && bytes as usize >= Self::BATCH_BYTES
            && base.addr().is_multiple_of(Self::BATCH_BYTES);
        let end = NonNull::new(base.wrapping_add(bytes as usize))?;
        fits.then(|| Self { current: base, end, mask: bytes - 1 })
    }

    /// Where the ring begins.
    #[inline]
    fn base(&self) -> *mut u8 {
        self.end.as_ptr().wrapping_sub(self.mask as usize + 1)
    }

    /// The current entry.
    #[inline]
    pub(crate) fn current(&self) -> Entry {
        Entry(self.current)
    }

    /// An entry as it lies in memory.
    #[inline]
    pub(crate) fn at(&self, entry: Entry) -> &[AtomicU64; 8] {
        // SAFETY: `current` is a multiple of 64 below the ring's length from its base (`step` and `seek` keep it so), so a
        // whole entry lies there, inside memory that is aligned, accessed only atomically, and mapped to the end of the program.
        unsafe { &*entry.0.cast::<[AtomicU64; 8]>() }
    }

    /// Entry `index`, modulo the ring, as it lies in memory.
    #[inline]
    pub(crate) fn entry(&self, index: u32) -> &[AtomicU64; 8] {
        let offset = index.wrapping_mul(64) & self.mask;
        // SAFETY: the masked multiple of 64 is below the ring's length, and the memory is as in `current`.
        unsafe { &*self.base().add(offset as usize).cast::<[AtomicU64; 8]>() }
    }

    /// Goes to the entry after this one, which was the current one. Returns what has ended with it.
    #[inline]
    pub(crate) fn step(&mut self, entry: Entry) -> Step {
        let next = entry.0.wrapping_add(64);
        self.current = next;
        if next.addr() & (Self::BATCH_BYTES - 1) != 0 {
            // Inside a batch is inside the ring: it has whole batches, and is aligned to one.
            return Step::Inside;
        }
        if next != self.end.as_ptr() {
            return Step::Batch;
        }
        self.current = self.base();
        Step::Lap
    }

    /// Goes to entry `index`, modulo the ring.
    pub(crate) fn seek(&mut self, index: u32) {
        self.current = self.base().wrapping_add((index.wrapping_mul(64) & self.mask) as usize);
    }

    /// The current entry's place in its batch.
    #[inline]
    pub(crate) fn place_in_batch(&self) -> u32 {
        (self.current.addr() & (Self::BATCH_BYTES - 1)) as u32 / 64
    }

    /// Writes the entry at `index`, modulo the ring, as it is to lie in memory.
    pub(crate) fn put(&mut self, index: u32, words: [u64; 8]) {
        for (to, word) in self.entry(index).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Number of entries.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.mask / 64 + 1
    }
}

/// A ring of octowords (16 bytes), the grain of mlx5 work queue entries. A copy reaches the same memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OctowordRing {
    base: *mut u8,
    /// Octowords less one.
    mask: usize,
}

// SAFETY: the memory lives to the end of the program (contract of `DmaMemory`), and all accesses are atomic.
unsafe impl Send for OctowordRing {}

impl OctowordRing {
    /// `None` unless `memory` is aligned to 8 and its length is 64 times a power of two.
    pub(crate) fn new(memory: DmaMemory) -> Option<Self> {
        let octowords = memory.len() / 16;
        let fits = memory.len().is_multiple_of(16)
            && octowords.is_power_of_two()
            && octowords >= OCTOWORDS_PER_ENTRY;
        let base = memory.as_ptr();
        (fits && base.cast::<u64>().is_aligned()).then(|| Self { base, mask: octowords - 1 })
    }

    /// Quadword `half` (0 or 1) of octoword `index`, modulo the ring.
    #[inline]
    fn quad(&self, index: usize, half: usize) -> &AtomicU64 {
        let offset = (index & self.mask) * 16;
        // SAFETY: the ring is a power of two of bytes, at least 64 (checked by `new`), so the masked octoword lies
        // inside the memory, which is aligned, mapped and accessed only atomically; the masked half is one of its two.
        unsafe { AtomicU64::from_ptr(self.base.add(offset + (half & 1) * 8).cast()) }
    }

    /// Writes an octoword as two big-endian quadwords.
    #[inline]
    pub(crate) fn put(&mut self, index: usize, first: u64, second: u64) {
        self.quad(index, 0).store(first.to_be(), Ordering::Relaxed);
        self.quad(index, 1).store(second.to_be(), Ordering::Relaxed);
    }

    /// The two big-endian quadwords of an octoword.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> (u64, u64) {
        (self.first(index), self.second(index))
    }

    /// The first big-endian quadword of an octoword.
    #[inline]
    pub(crate) fn first(&self, index: usize) -> u64 {
        u64::from_be(self.quad(index, 0).load(Ordering::Relaxed))
    }

    /// The second big-endian quadword of an octoword.
    #[inline]
    pub(crate) fn second(&self, index: usize) -> u64 {
        u64::from_be(self.quad(index, 1).load(Ordering::Relaxed))
    }

    /// Number of octowords.
    pub(crate) fn len(&self) -> usize {
        self.mask + 1
    }

    /// Zeroes everything.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.len() {
            self.put(index, 0, 0);
        }
    }
}

/// A send queue: its WQEBBs, and a slot beside each. A copy reaches the same memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRing {
    blocks: *mut u8,
    slots: NonNull<Slot>,
    /// Bytes of the WQEBBs less one, of which there is a power of two.
    mask: usize,
}

/// Bytes of a WQEBB for each byte of its slot.
const BLOCK_PER_SLOT: usize = 64 / size_of::<Slot>();

// SAFETY: as for `OctowordRing` and `Slots`.
unsafe impl Send for SendRing {}

impl SendRing {
    /// `None` unless `memory` is aligned to 8 and holds as many WQEBBs as there are slots.
    pub(crate) fn new(memory: DmaMemory, slots: Slots) -> Option<Self> {
        let blocks = memory.as_ptr();
        (memory.len() == slots.len() * 64 && blocks.cast::<u64>().is_aligned()).then_some(Self {
            blocks,
            slots: slots.base,
            mask: slots.len() * 64 - 1,
        })
    }

    /// The slots alone.
    pub(crate) fn into_slots(self) -> Slots {
        Slots { base: self.slots, mask: self.mask / 64 }
    }

    /// Offset of WQEBB `index`, modulo the ring.
    #[inline]
    fn offset(&self, index: u64) -> usize {
        (index as usize).wrapping_mul(64) & self.mask
    }

    /// WQEBB `index`, modulo the ring, as it lies in memory.
    #[inline]
    pub(crate) fn block(&self, index: u64) -> &[AtomicU64; 8] {
        // SAFETY: the masked multiple of 64 leaves room for 64 bytes in the power of two of bytes that `new` checked, inside memory that
        // is aligned, mapped and accessed only atomically.
        unsafe { &*self.blocks.add(self.offset(index)).cast::<[AtomicU64; 8]>() }
    }

    /// Quadword `quad`, counted from WQEBB `index` on, modulo the ring.
    #[inline]
    pub(crate) fn quad(&self, index: u64, quad: usize) -> &AtomicU64 {
        &self.block(index + (quad / 8) as u64)[quad % 8]
    }

    /// What the slot beside WQEBB `index`, modulo the ring, says.
    #[inline]
    pub(crate) fn slot(&self, index: u64) -> Slot {
        // SAFETY: there is a slot for each WQEBB; the queue that owns this ring owns the slots, and `Slots::new` has written all.
        unsafe { self.slots.byte_add(self.offset(index) / BLOCK_PER_SLOT).read() }
    }

    /// Fills the slot beside WQEBB `index`, modulo the ring.
    #[inline]
    pub(crate) fn keep(&mut self, index: u64, slot: Slot) {
        // SAFETY: as in `slot`, and `&mut self` is the only way to write.
        unsafe { self.slots.byte_add(self.offset(index) / BLOCK_PER_SLOT).write(slot) };
    }

    /// Writes octoword `octoword`, counted from WQEBB `index` on, modulo the ring, as two big-endian quadwords.
    #[inline]
    pub(crate) fn put(&mut self, index: u64, octoword: usize, (first, second): (u64, u64)) {
        let block = self.block(index + (octoword / OCTOWORDS_PER_ENTRY) as u64);
        let place = octoword % OCTOWORDS_PER_ENTRY * 2;
        block[place].store(first.to_be(), Ordering::Relaxed);
        block[place + 1].store(second.to_be(), Ordering::Relaxed);
    }

    /// Zeroes everything.
    pub(crate) fn clear(&mut self) {
        for index in 0..=(self.mask / 64) as u64 {
            for word in self.block(index) {
                word.store(0, Ordering::Relaxed);
            }
            self.keep(index, Slot::default());
        }
    }
}

/// An SGE as a data segment: length and key in one quadword, address.
#[inline]
pub(crate) fn data_segment(sge: &Sge) -> (u64, u64) {
    // SAFETY: an `Sge` is a quadword and two dwords in this order (`repr(C)`), so 16 bytes without padding.
    let [address, key_and_length] = unsafe { core::mem::transmute::<Sge, [u64; 2]>(*sge) };
    // In one load where the processor's order makes it so: the key comes first in memory.
    let first = if cfg!(target_endian = "big") { key_and_length.rotate_left(32) } else { key_and_length };
    (first, address)
}

/// A doorbell record: two big-endian dwords that the device reads.
#[derive(Debug)]
pub(crate) struct DoorbellRecord {
    base: *mut u32,
}

// SAFETY: as for `OctowordRing`.
unsafe impl Send for DoorbellRecord {}

impl DoorbellRecord {
    /// `None` unless `memory` holds 8 bytes aligned to 8.
    pub(crate) fn new(memory: DmaMemory) -> Option<Self> {
        let base = memory.as_ptr().cast::<u32>();
        (memory.len() >= 8 && base.cast::<u64>().is_aligned()).then_some(Self { base })
    }

    #[inline]
    fn word(&self, second: bool) -> &AtomicU32 {
        // SAFETY: both dwords lie inside the memory checked by `new`, aligned, mapped and accessed only atomically.
        unsafe { AtomicU32::from_ptr(self.base.add(usize::from(second))) }
    }

    /// Word 0: receive counter of a QP, consumer index of a CQ.
    #[inline]
    pub(crate) fn store_first(&mut self, value: u32) {
        self.word(false).store(value.to_be(), Ordering::Relaxed);
    }

    /// Word 1: send counter of a QP, arm value of a CQ.
    #[inline]
    pub(crate) fn store_second(&mut self, value: u32) {
        self.word(true).store(value.to_be(), Ordering::Relaxed);
    }
}
