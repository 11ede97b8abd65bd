//! Page lists of rings, as commands that create queues take them.

use crate::buddy;
use crate::dma::DmaMemory;

/// The pages of contiguous memory. They are the largest that the address is aligned to and that
/// are no longer than the memory taken for it.
#[derive(Clone, Copy)]
pub(super) struct PageList {
    log_page: u32,
    first: u64,
    count: usize,
}

impl PageList {
    /// The list of the first `bytes` bytes of `memory`, at least one page.
    pub(super) fn new(memory: DmaMemory, bytes: usize) -> Self {
        let first = memory.device_address();
        let longest = buddy::order_for(memory.len()).map_or(31, |order| order + 12);
        let log = first.trailing_zeros().min(longest).clamp(12, 31);
        Self { log_page: log - 12, first, count: bytes.max(1).div_ceil(1 << log) }
    }

    /// log2 of the page size relative to 4 KiB.
    pub(super) const fn log_page(&self) -> u32 {
        self.log_page
    }

    /// Pages.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Device address of a page.
    pub(super) fn entry(&self, index: usize) -> u64 {
        self.first + ((index as u64) << (self.log_page + 12))
    }
}
