//! Where doorbell records lie: 64 bytes for each queue, many to a run of memory, so that a ring takes exactly its own size.

use crate::buddy::BLOCK;
use crate::dma::DmaMemory;
use crate::ring::{Slot, Slots};

/// Bytes of a record: a cache line, of which 8 are used.
pub(super) const RECORD: usize = 64;
/// Records of the first run; each other run has twice those of the one before it.
pub(super) const FIRST: usize = BLOCK / RECORD;
/// Runs: 65,472 records in all.
pub(super) const PAGE_RUNS: usize = 10;
/// Records that a slot has bits for.
const BITS: usize = 128;

#[derive(Debug)]
pub(super) struct RecordPages {
    memory: DmaMemory,
    /// A bit for each record, taken; and behind those of all records a second one, whether its queue could not be destroyed.
    marks: Slots,
    count: usize,
}

impl RecordPages {
    /// Free records in `memory`; `marks` are [`RecordPages::slots_for`] them.
    pub(super) const fn new(memory: DmaMemory, marks: Slots) -> Self {
        Self { memory, marks, count: 0 }
    }

    /// Returns whether all records are free.
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn into_parts(self) -> (DmaMemory, Slots) {
        (self.memory, self.marks)
    }

    /// Index of a record, if it is one of these.
    fn index_of(&self, record: DmaMemory) -> Option<usize> {
        self.memory.contains(&record).then(|| (record.va() - self.memory.va()) / RECORD)
    }

    fn records(&self) -> usize {
        self.memory.len() / RECORD
    }

    /// Takes the first record that is free.
    pub(super) fn take(&mut self) -> Option<DmaMemory> {
        let index = (0..self.records()).step_by(BITS).find_map(|first| {
            let slot = self.marks.get(first / BITS);
            let bits = u128::from(slot.tag) << 64 | u128::from(slot.id);
            let index = first + bits.trailing_ones() as usize;
            (bits != u128::MAX && index < self.records()).then_some(index)
        })?;
        self.flip(index);
        self.count += 1;
        self.memory.slice(index * RECORD, RECORD)
    }

    fn flip(&mut self, index: usize) {
        let mut slot = self.marks.get(index / BITS);
        let bit = 1 << (index % 64);
        let word = if index % BITS < 64 { &mut slot.id } else { &mut slot.tag };
        *word ^= bit;
        self.marks.set(index / BITS, slot);
    }

    /// Slots for the marks of `records` records.
    pub(super) const fn slots_for(records: usize) -> usize {
        2 * records.div_ceil(BITS)
    }

    /// Frees a record. Returns whether it is one of these.
    pub(super) fn release(&mut self, record: DmaMemory) -> bool {
        let Some(index) = self.index_of(record) else { return false };
        self.flip(index);
        self.count -= 1;
        true
    }

    /// Keeps a record whose queue could not be destroyed. Returns whether it is one of these.
    pub(super) fn quarantine(&mut self, record: DmaMemory) -> bool {
        let Some(index) = self.index_of(record) else { return false };
        self.flip(self.records().next_multiple_of(BITS) + index);
        true
    }

    /// Frees quarantined records.
    pub(super) fn release_quarantined(&mut self) {
        let slots = self.records().div_ceil(BITS);
        for slot in 0..slots {
            let held = self.marks.get(slots + slot);
            let taken = self.marks.get(slot);
            self.marks.set(slot, Slot { id: taken.id & !held.id, tag: taken.tag & !held.tag });
            self.marks.set(slots + slot, Slot::default());
            self.count -= (held.id.count_ones() + held.tag.count_ones()) as usize;
        }
    }
}
