//! Where the work queues of a QP are in guest memory.

use crate::object::pages::PageList;
use crate::seams::{DmaFault, GuestMemory};
use mlx5_prm::datapath::{DBR_RECEIVE, DBR_SEND, WQEBB_SIZE};

/// A send queue's place in the QP's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueue {
    offset: u64,
    log_size: u32,
}

impl SendQueue {
    /// A queue of `1 << log_size` basic blocks, `offset` bytes from the start of the buffer.
    #[must_use]
    pub const fn new(offset: u64, log_size: u32) -> Self {
        Self { offset, log_size }
    }

    /// Size in basic blocks.
    #[must_use]
    #[inline]
    pub const fn blocks(self) -> u32 {
        1 << self.log_size
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        (WQEBB_SIZE as u64) << self.log_size
    }

    /// Offset in the buffer of `at` bytes into the queue, which wraps at its end.
    #[must_use]
    #[inline]
    pub const fn offset(self, at: u64) -> u64 {
        self.offset + (at & (self.bytes() - 1))
    }

    /// Offset in the buffer of the basic block with this counter.
    #[must_use]
    #[inline]
    pub const fn block(self, counter: u16) -> u64 {
        self.offset(counter as u64 * WQEBB_SIZE as u64)
    }

    /// Basic blocks from the one with this counter to the end of the queue.
    #[must_use]
    #[inline]
    pub const fn straight(self, counter: u16) -> u32 {
        self.blocks() - (counter as u32 & (self.blocks() - 1))
    }
}

/// A receive queue's place in the QP's buffer, at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    log_size: u32,
    log_stride: u32,
}

impl ReceiveQueue {
    /// A queue of `1 << log_size` entries of `1 << log_stride` bytes.
    #[must_use]
    pub const fn new(log_size: u32, log_stride: u32) -> Self {
        Self { log_size, log_stride }
    }

    /// Number of entries.
    #[must_use]
    #[inline]
    pub const fn entries(self) -> u32 {
        1 << self.log_size
    }

    /// Bytes of an entry.
    #[must_use]
    #[inline]
    pub const fn stride(self) -> usize {
        1 << self.log_stride
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (self.log_size + self.log_stride)
    }

    /// Offset in the buffer of the entry with this counter.
    #[must_use]
    #[inline]
    pub const fn entry(self, counter: u16) -> u64 {
        (counter as u64 & (self.entries() - 1) as u64) << self.log_stride
    }
}

/// The work queues of a QP and their doorbell record.
#[derive(Clone, Debug)]
pub struct Rings {
    buffer: PageList,
    record: u64,
    send: Option<SendQueue>,
    receive: Option<ReceiveQueue>,
}

impl Rings {
    /// Queues in `buffer`, with a doorbell record at `record`.
    #[must_use]
    pub const fn new(
        buffer: PageList,
        record: u64,
        send: Option<SendQueue>,
        receive: Option<ReceiveQueue>,
    ) -> Self {
        Self { buffer, record, send, receive }
    }

    /// The send queue, if any.
    #[must_use]
    #[inline]
    pub const fn send(&self) -> Option<SendQueue> {
        self.send
    }

    /// The QP's own receive queue, if any.
    #[must_use]
    #[inline]
    pub const fn receive(&self) -> Option<ReceiveQueue> {
        self.receive
    }

    /// The pages of the buffer.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        self.buffer.pages()
    }

    /// Host memory that the list of pages takes, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.buffer.memory()
    }

    /// Reads the buffer at `offset`.
    ///
    /// # Errors
    /// [`DmaFault`] when guest memory does not answer.
    #[inline]
    pub fn read(&self, memory: &dyn GuestMemory, offset: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.buffer.read(memory, offset, out)
    }

    /// Loads the send queue's producer counter, in basic blocks.
    ///
    /// # Errors
    /// [`DmaFault`] when the record cannot be read.
    #[inline]
    pub fn posted_sends(&self, memory: &dyn GuestMemory) -> Result<u16, DmaFault> {
        Ok(memory.load32(self.record.wrapping_add(DBR_SEND as u64))? as u16)
    }

    /// Loads the receive queue's producer counter, in entries.
    ///
    /// # Errors
    /// [`DmaFault`] when the record cannot be read.
    #[inline]
    pub fn posted_receives(&self, memory: &dyn GuestMemory) -> Result<u16, DmaFault> {
        Ok(memory.load32(self.record.wrapping_add(DBR_RECEIVE as u64))? as u16)
    }

    /// Moves the doorbell record out of the device's reach, or back.
    pub(in crate::object) const fn toggle_record(&mut self) {
        const BEYOND: u64 = 1 << 62;
        self.record ^= BEYOND;
    }

    /// Leaves the QP without queues of its own.
    #[cfg(test)]
    pub(super) const fn take_queues(&mut self, send: bool) {
        self.receive = None;
        if send {
            self.send = None;
        }
    }
}
