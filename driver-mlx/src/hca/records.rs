//! Doorbell records: 64 bytes for each queue, many to a piece of memory, so that a ring takes exactly its own size.

use super::Hca;
use crate::buddy::BLOCK;
use crate::dma::DmaMemory;
use crate::error::Error;
use crate::platform::Platform;
use crate::ring::Slots;

/// Bytes of a record: a cache line, of which 8 are used.
const RECORD: usize = 64;
/// Records of the first piece; each other piece has twice those of the one before it.
const FIRST: usize = BLOCK / RECORD;
/// Pieces: 65,472 records in all.
const PIECES: usize = 10;
/// Records that a slot has bits for.
const BITS: usize = 128;

/// The pieces, each taken when those before it are full, and given back when it is empty.
#[derive(Debug, Default)]
pub(super) struct Records {
    pieces: [Option<Piece>; PIECES],
}

#[derive(Debug)]
struct Piece {
    memory: DmaMemory,
    /// A bit for each record: taken.
    taken: Slots,
    count: usize,
}

impl Piece {
    fn records(&self) -> usize {
        self.memory.len() / RECORD
    }

    /// Takes the first record that is free.
    fn take(&mut self) -> Option<DmaMemory> {
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

    fn flip(&mut self, index: usize) {
        let mut slot = self.taken.get(index / BITS);
        let bit = 1 << (index % 64);
        let word = if index % BITS < 64 { &mut slot.id } else { &mut slot.tag };
        *word ^= bit;
        self.taken.set(index / BITS, slot);
    }
}

impl<P: Platform> Hca<'_, P> {
    /// Takes a doorbell record.
    pub(super) fn take_record(&mut self) -> Result<DmaMemory, Error> {
        for index in 0..PIECES {
            if self.records.pieces.get(index).is_some_and(Option::is_none) {
                let memory = self.take_memory(BLOCK << index, BLOCK)?;
                let Some(taken) = self.host.alloc((FIRST << index).div_ceil(BITS)) else {
                    self.release(memory)?;
                    return Err(Error::OutOfHostMemory { bytes: FIRST << index >> 3 });
                };
                if let Some(place) = self.records.pieces.get_mut(index) {
                    *place = Some(Piece { memory, taken, count: 0 });
                }
            }
            let piece = self.records.pieces.get_mut(index).and_then(Option::as_mut);
            if let Some(record) = piece.and_then(Piece::take) {
                return Ok(record);
            }
        }
        Err(Error::OutOfMemory { bytes: RECORD })
    }

    /// Gives a doorbell record back.
    pub(super) fn give_record(&mut self, record: DmaMemory) -> Result<(), Error> {
        for place in &mut self.records.pieces {
            let Some(piece) = place.as_mut().filter(|piece| piece.memory.contains(&record)) else { continue };
            piece.flip((record.va() - piece.memory.va()) / RECORD);
            piece.count -= 1;
            if piece.count == 0
                && let Some(Piece { memory, taken, .. }) = place.take()
            {
                self.host.free(taken);
                self.release(memory)?;
            }
            return Ok(());
        }
        Err(Error::NotAllocated)
    }

    /// Gives a doorbell record back, or keeps it taken if destroying its queue did not succeed.
    pub(super) fn give_record_unless(&mut self, destroyed: &Result<(), Error>, record: DmaMemory) {
        if destroyed.is_err() || self.give_record(record).is_err() {
            self.leak(record);
        }
    }
}
