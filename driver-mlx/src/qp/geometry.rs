//! How the rings of a queue pair share one buffer.

use crate::ring::OCTOWORDS_PER_ENTRY;

/// How the rings of a queue pair lie in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpGeometry {
    /// log2 of the receive entries; meaningless without a receive queue.
    pub(crate) log_rq_size: u32,
    /// log2 of the octowords in a receive entry.
    pub(crate) log_rq_stride: u32,
    /// Bytes of the receive ring, 0 without one.
    pub(crate) rq_bytes: usize,
    /// log2 of the WQEBBs in the send ring.
    pub(crate) log_sq_size: u32,
    /// Bytes of the send ring, 0 without one.
    pub(crate) sq_bytes: usize,
}

impl QpGeometry {
    /// Least bytes of a receive ring before the send ring of one work queue buffer.
    pub(crate) const WQEBB: usize = OCTOWORDS_PER_ENTRY * 16;
    /// The same where the send ring has a page list of its own.
    pub(crate) const PAGE: usize = 4096;

    /// Sizes for these limits; `None` if a size does not fit a `usize` or the 16-bit counters.
    pub(crate) fn new(
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_octowords: usize,
        max_recv_sge: u32,
        least_rq_bytes: usize,
    ) -> Option<Self> {
        let mut geometry =
            Self { log_rq_size: 0, log_rq_stride: 0, rq_bytes: 0, log_sq_size: 0, sq_bytes: 0 };
        let mut rq_entries = 0;
        if max_recv_wr > 0 {
            let stride_octowords = (max_recv_sge.max(1) as usize).checked_next_power_of_two()?;
            // The send ring after it stays aligned.
            let least = (least_rq_bytes / 16).div_ceil(stride_octowords);
            rq_entries = (max_recv_wr as usize).max(least).checked_next_power_of_two()?;
            geometry.log_rq_size = rq_entries.ilog2();
            geometry.log_rq_stride = stride_octowords.ilog2();
            geometry.rq_bytes = rq_entries.checked_mul(stride_octowords)?.checked_mul(16)?;
        }
        let mut blocks = 0;
        if max_send_wr > 0 {
            let each = max_send_octowords.div_ceil(OCTOWORDS_PER_ENTRY);
            blocks = (max_send_wr as usize).checked_mul(each)?.checked_next_power_of_two()?;
            geometry.log_sq_size = blocks.ilog2();
            geometry.sq_bytes = blocks.checked_mul(64)?;
        }
        if blocks > 1 << 15 || rq_entries > 1 << 15 {
            return None;
        }
        Some(geometry)
    }

    /// Bytes that the device sees as the work queues' buffer.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.rq_bytes + self.sq_bytes
    }

    /// WQEBBs of the send ring, 0 without one.
    pub(crate) fn send_wqebbs(&self) -> usize {
        self.sq_bytes / 64
    }

    /// Entries of the receive ring, none without one.
    pub(crate) fn receives(&self) -> Option<usize> {
        (self.rq_bytes > 0).then_some(1 << self.log_rq_size)
    }
}
