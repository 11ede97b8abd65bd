//! Where doorbell records lie: 64 bytes for each queue, many to a run of memory, so that a ring takes exactly its own size.

use crate::buddy::BLOCK;
use crate::dma::DmaMemory;
use crate::ring::Slots;

/// Bytes of a record: a cache line, of which 8 are used.
pub(super) const RECORD: usize = 64;
/// Records of the first run; each other run has twice those of the one before it.
pub(super) const FIRST: usize = BLOCK / RECORD;
/// Runs: 65,472 records in all.
pub(super) const PAGE_RUNS: usize = 10;
/// Records that a slot has bits for.
pub(super) const BITS: usize = 128;

/// The runs, each taken when those before it are full, and given back when it is empty.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) runs: [Option<RecordPages>; PAGE_RUNS],
}

#[derive(Debug)]
pub(super) struct RecordPages {
    pub(super) memory: DmaMemory,
    /// A bit for each record: taken.
    pub(super) taken: Slots,
    pub(super) count: usize,
}

impl RecordPages {
    fn records(&self) -> usize {
        self.memory.len() / RECORD
    }

    /// Takes the first record that is free.
    pub(super) fn take(&mut self) -> Option<DmaMemory> {
        let index = (0..self.records()).step_by(BITS).find_map(|first| {
            let slot = self.taken.get(first / BITS);
            let bits = u128::from(slot.tag) << 64 | u128::from(slot.id);
            let index = first + bits.trailing_ones() as usize;
            (bits != u128::MAX && index < self.records()).then_some(index)
        })?;
        self.flip(index);
        self.count += 1;
        self.memory.slice(index * RECORD, RECORD)
    }

    pub(super) fn flip(&mut self, index: usize) {
        let mut slot = self.taken.get(index / BITS);
        let bit = 1 << (index % 64);
        let word = if index % BITS < 64 { &mut slot.id } else { &mut slot.tag };
        *word ^= bit;
        self.taken.set(index / BITS, slot);
    }
}
