//! Where frames lie.

use driver_mlx::{DmaBlocks, DmaBuffer, DmaSlice, DmaWord};

use crate::wire::FRAME_LEN;

/// Distance between frames: whole cache lines.
pub(crate) const STRIDE: usize = FRAME_LEN.next_multiple_of(64);
/// The same in quadwords.
pub(crate) const WORDS: usize = STRIDE / 8;
/// Headers of acknowledgements in the memory of one frame, a cache line each.
pub(crate) const ACKS_PER_FRAME: usize = STRIDE / 64;

/// DMA memory in blocks of [`STRIDE`] bytes; ordinary memory where the protocol is tested alone.
pub(crate) enum Memory {
    Dma {
        blocks: DmaBlocks<WORDS>,
        /// Virtual address of the first.
        start: u64,
    },
    /// Given back.
    None,
    #[cfg(test)]
    Plain(std::vec::Vec<[DmaWord; WORDS]>),
}

impl Memory {
    pub(crate) fn new(buffer: DmaBuffer) -> Self {
        let start = buffer.va() as u64;
        Self::Dma { blocks: DmaBlocks::new(buffer), start }
    }

    #[cfg(test)]
    pub(crate) fn plain(count: usize) -> Self {
        Self::Plain((0..count).map(|_| [const { DmaWord::new(0) }; WORDS]).collect())
    }

    #[inline(always)]
    pub(crate) fn block(&self, index: usize) -> Option<&[DmaWord; WORDS]> {
        match self {
            Self::Dma { blocks, .. } => blocks.block(index),
            Self::None => None,
            #[cfg(test)]
            Self::Plain(blocks) => blocks.get(index),
        }
    }

    /// Virtual address of a block; in ordinary memory its distance from the first.
    #[inline(always)]
    pub(crate) fn address(&self, index: usize) -> u64 {
        match self {
            Self::Dma { start, .. } => start + (index * STRIDE) as u64,
            Self::None => 0,
            #[cfg(test)]
            Self::Plain(_) => (index * STRIDE) as u64,
        }
    }

    pub(crate) fn as_slice(&self) -> Option<DmaSlice<'_>> {
        match self {
            Self::Dma { blocks, .. } => Some(blocks.as_slice()),
            _ => None,
        }
    }

    pub(crate) fn take(&mut self) -> Option<DmaBuffer> {
        match core::mem::replace(self, Self::None) {
            Self::Dma { blocks, .. } => Some(blocks.into_buffer()),
            _ => None,
        }
    }
}
