//! Memory beside a queue, for what its owner keeps of each work request.

use crate::dma::DmaSlice;
use crate::ring::Units;
use core::sync::atomic::Ordering;

/// A ring of cells of two big-endian quadwords each, in memory that the device could reach too: indexes wrap, so none leads outside, and
/// what is read may be anything.
#[derive(Debug)]
pub struct DmaCells(Units);

impl DmaCells {
    /// `None` unless `memory` is aligned to 8 and its length is 64 times a power of two.
    #[must_use]
    pub fn new(memory: DmaSlice) -> Option<Self> {
        Units::new(memory).map(Self)
    }

    /// Writes a cell.
    #[inline(always)]
    pub fn put(&self, index: u32, first: u64, second: u64) {
        let cell = self.0.unit(index as usize);
        cell[0].store(first.to_be(), Ordering::Relaxed);
        cell[1].store(second.to_be(), Ordering::Relaxed);
    }

    /// The first quadword of a cell.
    #[inline(always)]
    #[must_use]
    pub fn first(&self, index: u32) -> u64 {
        u64::from_be(self.0.unit(index as usize)[0].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::memory;

    #[test]
    fn cells_wrap_and_lie_as_slices_see_them() {
        let slice = memory(4096);
        let cells = slice.slice(64, 128).and_then(DmaCells::new).expect("eight cells");
        for index in 0..16 {
            cells.put(index, u64::from(index) << 56 | 7, 9);
        }
        assert_eq!(slice.load_be64(64), Ok(8 << 56 | 7));
        assert_eq!(slice.load_be64(64 + 127 - 7), Ok(9));
        assert_eq!((cells.first(3), cells.first(11)), (11 << 56 | 7, 11 << 56 | 7));
        assert_eq!((slice.load_be64(56), slice.load_be64(192)), (Ok(0), Ok(0)));
        assert!(slice.slice(0, 32).and_then(DmaCells::new).is_none());
        assert!(slice.slice(0, 192).and_then(DmaCells::new).is_none());
        assert!(slice.slice(4, 64).and_then(DmaCells::new).is_none());
    }
}
