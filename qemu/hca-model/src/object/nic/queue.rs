//! Send and receive queues of raw Ethernet.

use crate::object::pages::PageList;
use crate::seams::{DmaFault, GuestMemory};
use mlx5_prm::value::WqState;

/// The ring of a queue, and its counters. Counters wrap at 16 bits.
#[derive(Clone, Debug)]
pub(crate) struct Wq {
    pub(crate) pd: u32,
    pub(crate) buffer: PageList,
    /// log2 of entries.
    pub(crate) log_size: u32,
    /// log2 of bytes of an entry.
    pub(crate) log_stride: u32,
    pub(crate) dbr_addr: u64,
    /// Entries posted, as last read from the doorbell record.
    pub(crate) posted: u16,
    /// The next entry to take.
    pub(crate) next: u16,
}

impl Wq {
    /// Entries posted and not taken.
    pub(crate) const fn left(&self) -> u16 {
        self.posted.wrapping_sub(self.next)
    }

    /// Reads the doorbell record's word at `offset`.
    ///
    /// # Errors
    /// The record cannot be read, or claims more entries than the ring has.
    pub(crate) fn refresh(&mut self, memory: &dyn GuestMemory, offset: u64) -> Result<(), RecordError> {
        let posted = memory.load32(self.dbr_addr.wrapping_add(offset)).map_err(RecordError::Fault)? as u16;
        let left = posted.wrapping_sub(self.next);
        if u32::from(left) > 1 << self.log_size {
            return Err(RecordError::TooMany(left));
        }
        self.posted = posted;
        Ok(())
    }

    /// Copies `bytes.len()` bytes of entry `index` and those after it, around the ring's end.
    ///
    /// # Errors
    /// [`DmaFault`].
    pub(crate) fn read(
        &self,
        memory: &dyn GuestMemory,
        index: u16,
        bytes: &mut [u8],
    ) -> Result<(), DmaFault> {
        let size = 1u64 << (self.log_size + self.log_stride);
        let at = (u64::from(index) << self.log_stride) % size;
        let straight = bytes.len().min((size - at) as usize);
        let (first, wrapped) = bytes.split_at_mut(straight);
        self.buffer.read(memory, at, first)?;
        self.buffer.read(memory, 0, wrapped)
    }

    /// As new.
    pub(crate) const fn reset(&mut self) {
        (self.posted, self.next) = (0, 0);
    }
}

/// Error of a doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordError {
    Fault(DmaFault),
    /// Entries outstanding by the record.
    TooMany(u16),
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault}"),
            Self::TooMany(left) => write!(f, "{left} entries outstanding, more than the ring has"),
        }
    }
}

/// A send queue.
#[derive(Clone, Debug)]
pub(crate) struct Sq {
    pub(crate) sqn: u32,
    pub(crate) state: WqState,
    pub(crate) wq: Wq,
    pub(crate) cqn: u32,
    pub(crate) user_index: u32,
    pub(crate) uar_page: u32,
    /// The TIS that it sends through; none for a queue that sends nothing.
    pub(crate) tisn: Option<u32>,
    pub(crate) reserved_lkey: bool,
    /// Posted entries complete with a flush in ERR.
    pub(crate) flushes: bool,
    /// The doorbell was rung since the record was last read.
    pub(crate) rung: bool,
    /// The queue is in the list of queues with work.
    pub(crate) scheduled: bool,
    /// The context, for queries.
    pub(crate) context: Vec<u8>,
}

impl Sq {
    /// Host memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        (size_of::<Self>() + self.context.len()) as u64 + self.wq.buffer.memory()
    }
}

/// A receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Rq {
    pub(crate) rqn: u32,
    pub(crate) state: WqState,
    pub(crate) wq: Wq,
    /// Entries are a linked list and begin with a next segment; otherwise they are taken in order.
    pub(crate) linked: bool,
    pub(crate) cqn: u32,
    pub(crate) user_index: u32,
    pub(crate) counter_set_id: u8,
    pub(crate) reserved_lkey: bool,
    /// VLAN tags stay in the frame.
    pub(crate) keeps_vlan: bool,
    /// Posted entries complete with a flush in ERR.
    pub(crate) flushes: bool,
    /// Of a linked list: the entry to take next.
    pub(crate) head: u16,
    /// The context, for queries.
    pub(crate) context: Vec<u8>,
}

impl Rq {
    /// Host memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        (size_of::<Self>() + self.context.len()) as u64 + self.wq.buffer.memory()
    }
}
