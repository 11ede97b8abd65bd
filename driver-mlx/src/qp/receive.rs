//! The receive queue: what is outstanding, and the bytes of receives.

use crate::barrier;
use crate::completion::WrId;
use crate::cq::Cqe;
use crate::ring::{DoorbellRecord, Slot, Slots, Units, data_segment};
use crate::types::{LKey, Sge};
use crate::wqe::PostError;
use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, INLINE_SEG};

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    pub(super) ring: Units,
    /// The [`WrId`] of each receive.
    pub(super) slots: Slots,
    /// Receives posted, circular.
    pub(super) head: u16,
    /// Receives retired.
    pub(super) tail: u16,
    /// Entries less one.
    pub(super) mask: u16,
    /// log2 of the octowords of an entry.
    pub(super) log_stride: u8,
    pub(super) max_sge: u8,
    /// Whether small messages may arrive in the completion.
    pub(super) inline_receive: bool,
}

impl ReceiveQueue {
    /// Forgets everything posted.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.slots.clear();
        (self.head, self.tail) = (0, 0);
    }

    /// Receives posted and not yet retired.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u16 {
        self.head.wrapping_sub(self.tail)
    }

    /// Writes a receive; the device learns of it with the doorbell record.
    #[inline(always)]
    pub(super) fn post(&mut self, sges: &[Sge], wr_id: WrId) -> Result<(), PostError> {
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        if self.outstanding() > self.mask {
            return Err(PostError::Full);
        }
        put_receive(&mut self.ring, usize::from(self.head) << self.log_stride, 1 << self.log_stride, sges)?;
        self.slots.set(usize::from(self.head), Slot { id: wr_id.id, tag: wr_id.tag });
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    #[inline(always)]
    fn wr_id(&self, index: u16) -> WrId {
        let Slot { id, tag } = self.slots.get(usize::from(index));
        WrId { id, tag }
    }

    /// The outstanding receive that `cqe` reports done, and how many are older.
    #[inline(always)]
    pub(super) fn find(&self, cqe: &Cqe) -> Option<(WrId, u16)> {
        let older = cqe.wqe_counter().wrapping_sub(self.tail) & self.mask;
        let possible = self.inline_receive || !cqe.is_inline();
        (older < self.outstanding() && possible).then(|| (self.wr_id(self.tail.wrapping_add(older)), older))
    }

    /// Retires the oldest receive, if `cqe` reports that one done: they complete in order.
    #[inline(always)]
    pub(super) fn retire(&mut self, cqe: &Cqe) -> Option<WrId> {
        let tail = self.tail;
        let oldest = (cqe.wqe_counter() ^ tail) & self.mask == 0 && tail != self.head;
        if !oldest || cqe.is_inline() && !self.inline_receive {
            return None;
        }
        self.tail = tail.wrapping_add(1);
        Some(self.wr_id(tail))
    }

    /// Retires the oldest receive.
    pub(super) fn flush_next(&mut self) -> Option<WrId> {
        if self.outstanding() == 0 {
            return None;
        }
        let wr_id = self.wr_id(self.tail);
        self.tail = self.tail.wrapping_add(1);
        Some(wr_id)
    }

    /// The SGEs of an outstanding receive (`nth` from 0, the oldest), read back into `out`: their number, and its name.
    pub(super) fn posted(&self, nth: u16, out: &mut [Sge]) -> Option<(usize, WrId)> {
        if nth >= self.outstanding() {
            return None;
        }
        let index = self.tail.wrapping_add(nth);
        let first = usize::from(index) << self.log_stride;
        let mut count = 0;
        for (sge, octoword) in out.iter_mut().zip(first..first + (1 << self.log_stride)) {
            let (head, address) = self.ring.get(octoword);
            let (length, lkey) = ((head >> 32) as u32, LKey::new(head as u32));
            if length == 0 {
                break;
            }
            *sge = Sge { address, length, lkey };
            count += 1;
        }
        Some((count, self.wr_id(index)))
    }
}

/// Receives that are posted together: see [`Qp::post_recvs`](crate::Qp::post_recvs).
#[derive(Debug)]
#[must_use = "the device learns of the receives when they are finished"]
pub struct ReceiveBatch<'q> {
    rq: &'q mut ReceiveQueue,
    record: &'q mut DoorbellRecord,
    first: u16,
}

impl<'q> ReceiveBatch<'q> {
    #[inline(always)]
    pub(super) fn new(rq: &'q mut ReceiveQueue, record: &'q mut DoorbellRecord) -> Self {
        Self { first: rq.head, rq, record }
    }

    /// Posts a receive of one SGE, as [`Qp::post_recv`](crate::Qp::post_recv) does.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline(always)]
    pub fn post(&mut self, sge: Sge, wr_id: WrId) -> Result<(), PostError> {
        self.rq.post(&[sge], wr_id)
    }

    /// Tells the device. Gives how many were posted.
    #[inline(always)]
    pub fn finish(self) -> u16 {
        barrier::publish();
        self.record.store_first(u32::from(self.rq.head));
        self.rq.head.wrapping_sub(self.first)
    }
}

/// Writes the data segments of a receive into the `room` octowords from `first` on, without those of length 0, and ends them.
#[inline(always)]
pub(crate) fn put_receive(
    ring: &mut Units,
    first: usize,
    room: usize,
    sges: &[Sge],
) -> Result<(), PostError> {
    let mut used = 0;
    // Most receives are of one SGE.
    if let [sge] = sges
        && sge.length as i32 > 0
    {
        let (head, address) = data_segment(sge);
        ring.put(first, head, address);
        if room > 1 {
            ring.put(first + 1, u64::from(DATA_LKEY_TERMINATOR), 0);
        }
        return Ok(());
    }
    for sge in sges {
        if sge.length == 0 {
            continue;
        }
        if sge.length & INLINE_SEG != 0 {
            return Err(PostError::TooLong);
        }
        let (head, address) = data_segment(sge);
        ring.put(first + used, head, address);
        used += 1;
    }
    if used < room {
        ring.put(first + used, u64::from(DATA_LKEY_TERMINATOR), 0);
    }
    Ok(())
}
