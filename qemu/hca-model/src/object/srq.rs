//! Shared receive queues: SRQ, XRC SRQ and RMP (PRM, SRQ and RMP contexts).

use super::mkey::User;
use super::pages::PageList;
use crate::seams::{DmaFault, GuestMemory};

/// Which command made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqKind {
    /// CREATE_SRQ.
    Srq,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_RMP.
    Rmp,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {
    /// Its number; one range for all kinds.
    pub(crate) srqn: u32,
    /// Which command made it.
    pub(crate) kind: SrqKind,
    /// Protection domain.
    pub(crate) pd: u32,
    /// CQ of receive completions; 0 for an RMP, whose QPs use their own.
    pub(crate) cqn: u32,
    /// XRC domain.
    pub(crate) xrcd: u32,
    /// The ring.
    pub(crate) buffer: PageList,
    /// log2 of its entries.
    pub(crate) log_size: u32,
    /// log2 of bytes of an entry.
    pub(crate) log_stride: u32,
    /// Linked list or cyclic.
    pub(crate) linked: bool,
    /// Doorbell record: word 0 counts entries posted.
    pub(crate) dbr_addr: u64,
    /// May use the reserved L_Key.
    pub(crate) reserved_lkey: bool,
    /// Comes back in completions.
    pub(crate) user_index: u32,
    /// Limit event armed at this number of entries left; 0 is not armed.
    pub(crate) limit: u16,
    /// Entries taken so far, 16 bits.
    pub(crate) taken: u16,
    /// Index of the next entry to take.
    pub(crate) head: u16,
    /// It cannot be read, or its record lied: it serves nobody any more.
    pub(crate) failed: bool,
    /// The context as given, for queries.
    pub(crate) context: Vec<u8>,
}

impl Srq {
    /// Host memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (size_of::<Self>() + self.context.len()) as u64 + self.buffer.memory()
    }

    /// Returns the user of its entries' keys when `qp` takes them: of the queue's protection domain (IBTA
    /// 10.2.9), but bound to that QP. Linux posts the reserved L_Key to queues without `rlky`, for QPs
    /// with it.
    pub(crate) const fn user(&self, qp: User) -> User {
        User { pd: self.pd, qpn: qp.qpn, reserved_lkey: self.reserved_lkey || qp.reserved_lkey }
    }

    /// Entries that are posted and not taken, by the doorbell record.
    ///
    /// # Errors
    /// [`DmaFault`] when the record cannot be read.
    pub fn left(&self, memory: &dyn GuestMemory) -> Result<u16, DmaFault> {
        Ok((memory.load32(self.dbr_addr)? as u16).wrapping_sub(self.taken))
    }

    /// Whether entries begin with a next segment: those of a linked list do, and those of an RMP, where nobody follows it.
    pub const fn has_next_segment(&self) -> bool {
        self.linked || matches!(self.kind, SrqKind::Rmp)
    }

    /// Whether the limit event is due with `left` entries; it then is armed no more.
    pub const fn limit_reached(&mut self, left: u16) -> bool {
        let reached = self.limit != 0 && left < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }
}
