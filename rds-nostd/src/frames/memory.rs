//! DMA memory of frames.

use dat_nostd::{DmaBlocks, DmaBuffer, DmaSlice, DmaWord};

use crate::wire::FRAME_LEN;

/// Distance between frames in bytes, a multiple of the cache line.
pub(crate) const STRIDE: usize = FRAME_LEN.next_multiple_of(64);
/// Distance between frames in quadwords.
const WORDS: usize = STRIDE / 8;
/// Headers without payload per frame, one cache line each.
pub(crate) const HEADERS_PER_FRAME: usize = STRIDE / 64;

/// Memory of a frame as quadwords: the header's six, then the payload's.
pub(crate) type Block = [DmaWord; WORDS];

/// DMA memory in blocks of [`STRIDE`] bytes; ordinary memory in unit tests.
pub(crate) struct Memory {
    blocks: DmaBlocks<WORDS>,
    #[cfg(test)]
    plain: std::vec::Vec<Block>,
}

impl Memory {
    pub(crate) fn new(buffer: DmaBuffer) -> Self {
        Self {
            blocks: DmaBlocks::new(buffer),
            #[cfg(test)]
            plain: std::vec::Vec::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn plain(count: usize) -> Self {
        let plain = (0..count).map(|_| [const { DmaWord::new(0) }; WORDS]).collect();
        Self { blocks: DmaBlocks::empty(), plain }
    }

    #[inline]
    pub(crate) fn block(&self, index: usize) -> Option<&Block> {
        #[cfg(test)]
        if !self.plain.is_empty() {
            return self.plain.get(index);
        }
        self.blocks.block(index)
    }

    pub(crate) fn as_slice(&self) -> Option<DmaSlice<'_>> {
        self.blocks.as_slice()
    }

    pub(crate) fn take(&mut self) -> Option<DmaBuffer> {
        self.blocks.take()
    }
}

/// Returns the virtual address of a block.
#[inline]
pub(crate) fn address_of(block: &Block) -> u64 {
    block.as_ptr().addr() as u64
}
