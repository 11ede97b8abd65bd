//! Memory shared with the device in blocks of one size, for whoever writes and reads many of them.

use crate::dma::DmaSlice;
use core::sync::atomic::AtomicU64;

/// Blocks of `WORDS` quadwords, side by side. A block is lent as it lies in memory: one look at its bounds for everything that is done
/// with it.
#[derive(Debug)]
pub struct DmaBlocks<const WORDS: usize> {
    base: *mut [AtomicU64; WORDS],
    count: usize,
}

// SAFETY: the memory lives to the end of the program (contract of `DmaSlice`), and all accesses are atomic.
unsafe impl<const WORDS: usize> Send for DmaBlocks<WORDS> {}

impl<const WORDS: usize> DmaBlocks<WORDS> {
    /// As many blocks as `memory` holds. `None` unless it is aligned to 8 and a block has a size.
    #[must_use]
    pub fn new(memory: DmaSlice) -> Option<Self> {
        let base = memory.as_ptr();
        let count = memory.len().checked_div(WORDS * 8)?;
        base.cast::<u64>().is_aligned().then(|| Self { base: base.cast(), count })
    }

    /// Number of blocks.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The block at `index`, if there is one. It lies where the reference points to.
    #[inline(always)]
    #[must_use]
    pub fn block(&self, index: usize) -> Option<&[AtomicU64; WORDS]> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `new` checked that so many blocks lie inside the memory, which is aligned, mapped, and accessed only atomically.
        Some(unsafe { &*self.base.add(index) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::memory;
    use core::sync::atomic::Ordering;

    #[test]
    fn blocks_lie_side_by_side_and_no_further() {
        let slice = memory(4096);
        let inner = slice.slice(64, 200).expect("inside");
        let blocks = DmaBlocks::<8>::new(inner).expect("aligned");
        assert_eq!(blocks.count(), 3);
        for index in 0..3 {
            let block = blocks.block(index).expect("one of three");
            for (at, word) in block.iter().enumerate() {
                word.store(((index as u64 + 1) << 8 | at as u64).to_be(), Ordering::Relaxed);
            }
            assert_eq!(block.as_ptr().addr(), inner.va() + 64 * index);
        }
        assert_eq!(slice.load_be64(64), Ok(0x100));
        assert_eq!(slice.load_be64(64 + 191 - 7), Ok(0x307));
        assert_eq!((slice.load_be64(56), slice.load_be64(256)), (Ok(0), Ok(0)));
        assert!(blocks.block(3).is_none() && blocks.block(usize::MAX).is_none());
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let slice = memory(4096);
        assert!(DmaBlocks::<0>::new(slice).is_none());
        assert!(slice.slice(4, 64).and_then(DmaBlocks::<1>::new).is_none());
        assert_eq!(DmaBlocks::<1024>::new(slice).map(|blocks| blocks.count()), Some(0));
    }
}
