//! What is read and written by RDMA: for each request under way memory that it offers, and memory that the operation of an answer is
//! done from or into.

use dat_nostd::{Adapter, DmaBuffer, DmaSlice, Platform};
use rds_nostd::RdsError;

use super::error::{InCall, StressError};
use super::options::Options;

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Offered with a request.
    Offered = 0,
    /// The local side of the operation that goes with an answer.
    Local = 1,
}

pub(super) struct Memory {
    buffer: DmaBuffer,
    /// Bytes of either part of a request, and those of each piece.
    len: usize,
    piece: usize,
    alignment: usize,
}

impl Memory {
    /// None without RDMA.
    pub(super) fn alloc<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        options: &Options,
    ) -> Result<Option<Self>, StressError> {
        if options.rdma_len == 0 {
            return Ok(None);
        }
        let (piece, alignment) = (options.rdma_len as usize, options.alignment as usize);
        let len = piece * options.vector as usize;
        let bytes = len.checked_mul(2 * options.slots()).and_then(|bytes| bytes.checked_add(alignment));
        let bytes = bytes.ok_or(RdsError::NoMemory).in_call("memory for RDMA")?;
        let buffer = adapter.dma_alloc(bytes, 4096).map_err(RdsError::Dat).in_call("memory for RDMA")?;
        Ok(Some(Self { buffer, len, piece, alignment }))
    }

    pub(super) fn free<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), StressError> {
        adapter.dma_free(self.buffer).map_err(|kept| RdsError::Dat(kept.reason)).in_call("dma_free")
    }

    /// All pieces of a part.
    pub(super) fn part(&self, slot: usize, part: Part) -> Option<DmaSlice<'_>> {
        self.buffer.slice(self.alignment + (2 * slot + part as usize) * self.len, self.len)
    }

    /// All parts of so many requests from this one on.
    pub(super) fn parts(&self, slot: usize, count: usize) -> Option<DmaSlice<'_>> {
        self.buffer.slice(self.alignment + 2 * slot * self.len, 2 * count * self.len)
    }

    /// One of them.
    pub(super) fn piece(&self, slot: usize, index: usize) -> Option<DmaSlice<'_>> {
        self.part(slot, Part::Local)?.slice(index * self.piece, self.piece)
    }

    /// Fills the first piece with eight bytes again and again.
    pub(super) fn fill(&self, slot: usize, part: Part, pattern: u64) {
        let Some(memory) = self.part(slot, part) else { return };
        let bytes = pattern.to_le_bytes();
        for at in (0..self.piece).step_by(8) {
            // Both lie inside.
            let _ = memory.write(at, bytes.get(..self.piece - at).unwrap_or(&bytes));
        }
    }

    /// The first byte of the first piece that is not as [`fill`](Self::fill) left it; a last part of less than eight is not looked at.
    pub(super) fn mismatch(&self, slot: usize, part: Part, pattern: u64) -> Option<usize> {
        let memory = self.part(slot, part)?;
        let wrong = |at: &usize| {
            let mut found = [0; 8];
            memory.read(*at, &mut found).is_ok() && u64::from_le_bytes(found) != pattern
        };
        (0..self.piece / 8 * 8).step_by(8).find(wrong)
    }
}
