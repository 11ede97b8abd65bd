//! A buffer in blocks of one size, for whoever writes and reads many of them.

use super::{DmaBuffer, DmaSlice};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

/// A quadword of a buffer, in the processor's byte order. Access is atomic and relaxed, and only from the thread that has the buffer:
///
/// ```compile_fail,E0277
/// fn elsewhere(words: &'static [driver_mlx::DmaWord]) {
///     std::thread::spawn(move || words[0].load());
/// }
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct DmaWord(AtomicU64, PhantomData<*const ()>);

impl DmaWord {
    /// A word outside of any buffer.
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value), PhantomData)
    }

    /// Its value.
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes it.
    #[inline]
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A buffer as blocks of `WORDS` quadwords, side by side. A block is lent as it lies in memory: one look at its bounds for everything
/// that is done with it.
#[derive(Debug)]
pub struct DmaBlocks<const WORDS: usize> {
    buffer: Option<DmaBuffer>,
    base: *const [DmaWord; WORDS],
    count: usize,
}

// SAFETY: the buffer may change threads, and `base` is nothing but its address.
unsafe impl<const WORDS: usize> Send for DmaBlocks<WORDS> {}

impl<const WORDS: usize> DmaBlocks<WORDS> {
    const SIZE: () = assert!(WORDS > 0, "a block has a size");

    /// As many blocks as the buffer holds.
    #[must_use]
    pub fn new(buffer: DmaBuffer) -> Self {
        const { Self::SIZE }
        let base = buffer.memory().as_ptr().cast_const().cast();
        let count = buffer.len() / (WORDS * 8);
        Self { buffer: Some(buffer), base, count }
    }

    /// No blocks.
    #[must_use]
    pub const fn empty() -> Self {
        Self { buffer: None, base: core::ptr::null(), count: 0 }
    }

    /// Number of blocks.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The block at `index`, if there is one. It lies where the reference points to.
    #[inline]
    pub fn block(&self, index: usize) -> Option<&[DmaWord; WORDS]> {
        if index >= self.count {
            return None;
        }
        // SAFETY: so many blocks lie inside the buffer, which begins at a page. Its memory is mapped, accessed only atomically, and only
        // by this thread as long as the buffer is borrowed.
        Some(unsafe { &*self.base.add(index) })
    }

    /// The bytes of all blocks, if there are any.
    #[inline]
    pub fn as_slice(&self) -> Option<DmaSlice<'_>> {
        self.buffer.as_ref().map(DmaBuffer::as_slice)
    }

    /// Takes the buffer out. No blocks are left.
    pub fn take(&mut self) -> Option<DmaBuffer> {
        self.count = 0;
        self.buffer.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::buffer;

    #[test]
    fn blocks_lie_side_by_side_and_no_further() {
        let mut blocks = DmaBlocks::<8>::new(buffer(200));
        assert_eq!(blocks.count(), 3);
        for index in 0..3 {
            let block = blocks.block(index).expect("one of three");
            for (at, word) in block.iter().enumerate() {
                word.store(((index as u64 + 1) << 8 | at as u64).to_be());
            }
            assert_eq!(block.as_ptr().addr(), blocks.as_slice().expect("a buffer").va() + 64 * index);
        }
        let bytes = blocks.as_slice().expect("a buffer");
        assert_eq!(bytes.load_be64(0), Ok(0x100));
        assert_eq!(bytes.load_be64(184), Ok(0x307));
        assert_eq!(bytes.load_be64(192), Ok(0));
        assert!(blocks.block(3).is_none() && blocks.block(usize::MAX).is_none());
        assert_eq!(blocks.take().map(|buffer| buffer.len()), Some(200));
        assert!(blocks.block(0).is_none() && blocks.as_slice().is_none());
    }

    #[test]
    fn a_buffer_shorter_than_a_block_has_none() {
        assert_eq!(DmaBlocks::<1024>::new(buffer(4096)).count(), 0);
    }
}
