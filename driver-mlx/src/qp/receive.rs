//! The receive queue: what is outstanding, and the bytes of receives.

use crate::barrier;
use crate::completion::WrId;
use crate::cq::Cqe;
use crate::ring::{DoorbellRecord, OctowordRing, Slot, Slots, data_segment};
use crate::types::{LKey, QpNumber, Sge};
use crate::wqe::PostError;
use mlx5_prm::datapath::{CqeOpcode, INLINE_SEG};

/// Of the last quadword of a completion: opcode, format and QP number.
const SEND_OF_QP: u64 = 0x00ff_ffff_0000_00fc;
/// Where the index begins in it.
const INDEX_SHIFT: u32 = 16;

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: OctowordRing,
    /// The [`WrId`] of each receive.
    pub(super) slots: Slots,
    /// Receives posted, circular.
    pub(super) head: u16,
    /// Receives retired.
    tail: u16,
    /// What the last quadword of a completion says, as far as `oldest_mask` goes, if a send without more brought the message of the
    /// oldest receive: its index modulo the ring in bits 31:16, opcode and format in bits 7:2, the QP number in bits 55:32.
    oldest: u64,
    oldest_mask: u64,
    /// Entries less one.
    mask: u16,
    /// log2 of the octowords of an entry.
    log_stride: u8,
    max_sge: u8,
    /// The key that ends a scatter list.
    terminator: LKey,
    /// Whether small messages may arrive in the completion.
    inline_receive: bool,
}

impl ReceiveQueue {
    /// An empty queue.
    pub(super) fn new(
        ring: OctowordRing,
        slots: Slots,
        log_stride: u8,
        max_sge: u8,
        terminator: LKey,
        inline_receive: bool,
    ) -> Self {
        let mask = (slots.len() - 1) as u16;
        let oldest_mask = u64::from(mask) << INDEX_SHIFT | SEND_OF_QP;
        let (head, tail, oldest) = (0, 0, 0);
        Self {
            ring,
            slots,
            head,
            tail,
            oldest,
            oldest_mask,
            mask,
            log_stride,
            max_sge,
            terminator,
            inline_receive,
        }
    }

    /// Forgets everything posted.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.slots.clear();
        self.head = 0;
        self.settle(0);
    }

    /// The queue is that of this QP.
    pub(super) fn set_number(&mut self, number: QpNumber) {
        self.oldest = u64::from(number.get()) << 32 | u64::from(CqeOpcode::RESP_SEND.0) << 4;
        self.settle(self.tail);
    }

    /// As if so many receives had been posted and retired.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, index: u16) {
        self.head = index;
        self.settle(index);
    }

    /// With the tail at `tail`.
    fn settle(&mut self, tail: u16) {
        self.tail = tail;
        self.oldest = (self.oldest & SEND_OF_QP | u64::from(tail) << INDEX_SHIFT) & self.oldest_mask;
    }

    /// Receives posted and not yet retired.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u16 {
        self.head.wrapping_sub(self.tail)
    }

    /// Writes a receive; the device learns of it with the doorbell record.
    #[inline(always)]
    pub(super) fn post(&mut self, sges: &[Sge], wr_id: WrId) -> Result<(), PostError> {
        match sges {
            [sge] if self.post_ordinary(sge, wr_id) => Ok(()),
            _ => self.post_rare(sges, wr_id),
        }
    }

    /// Writes a receive of one SGE that is not empty, while there is room. False for any other: nothing was posted.
    #[inline(always)]
    pub(super) fn post_ordinary(&mut self, sge: &Sge, wr_id: WrId) -> bool {
        if self.outstanding() > self.mask || self.max_sge == 0 || sge.length as i32 <= 0 {
            return false;
        }
        let end = (self.log_stride > 0).then_some(self.terminator);
        put_one(&mut self.ring, usize::from(self.head) << self.log_stride, end, sge);
        self.keep(wr_id);
        true
    }

    #[cold]
    #[inline(never)]
    fn post_rare(&mut self, sges: &[Sge], wr_id: WrId) -> Result<(), PostError> {
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        if self.outstanding() > self.mask {
            return Err(PostError::Full);
        }
        let first = usize::from(self.head) << self.log_stride;
        put_receive(&mut self.ring, first, 1 << self.log_stride, self.terminator, sges)?;
        self.keep(wr_id);
        Ok(())
    }

    #[inline(always)]
    fn keep(&mut self, wr_id: WrId) {
        self.slots.set(usize::from(self.head), Slot { id: wr_id.id, tag: wr_id.tag });
        self.head = self.head.wrapping_add(1);
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
        self.settle(tail.wrapping_add(1));
        Some(self.wr_id(tail))
    }

    /// [`ReceiveQueue::retire`] of the oldest receive, if a completion with this last quadword reports that a send without more brought its
    /// message.
    #[inline(always)]
    pub(super) fn retire_oldest(&mut self, tail: u64) -> Option<WrId> {
        let oldest = self.tail;
        if tail & self.oldest_mask != self.oldest || oldest == self.head {
            return None;
        }
        self.tail = oldest.wrapping_add(1);
        // A ring has at most 2^15 entries, so the carry of the index is cut off.
        self.oldest = self.oldest.wrapping_add(1 << INDEX_SHIFT) & self.oldest_mask;
        Some(self.wr_id(oldest))
    }

    /// Retires the oldest receive.
    pub(super) fn flush_next(&mut self) -> Option<WrId> {
        if self.outstanding() == 0 {
            return None;
        }
        let wr_id = self.wr_id(self.tail);
        self.settle(self.tail.wrapping_add(1));
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
    /// As that of the queue will be.
    head: u16,
    /// Receives that there is room for.
    room: u16,
}

impl<'q> ReceiveBatch<'q> {
    #[inline(always)]
    pub(super) fn new(rq: &'q mut ReceiveQueue, record: &'q mut DoorbellRecord) -> Self {
        let room = if rq.max_sge == 0 { 0 } else { (rq.mask + 1).saturating_sub(rq.outstanding()) };
        Self { head: rq.head, rq, record, room }
    }

    /// Receives that there is still room for.
    #[inline(always)]
    pub fn room(&self) -> u16 {
        self.room
    }

    /// Posts a receive of one SGE. False, and nothing was posted, where there is no room, or if the SGE is empty or longer than 2^31 − 1.
    #[inline(always)]
    #[must_use]
    pub fn post(&mut self, sge: &Sge, wr_id: WrId) -> bool {
        if self.room == 0 || sge.length as i32 <= 0 {
            return false;
        }
        let end = (self.rq.log_stride > 0).then_some(self.rq.terminator);
        put_one(&mut self.rq.ring, usize::from(self.head) << self.rq.log_stride, end, sge);
        self.rq.slots.set(usize::from(self.head), Slot { id: wr_id.id, tag: wr_id.tag });
        self.head = self.head.wrapping_add(1);
        self.room -= 1;
        true
    }

    /// Tells the device. Gives how many were posted.
    #[inline(always)]
    pub fn finish(self) -> u16 {
        let posted = self.head.wrapping_sub(self.rq.head);
        self.rq.head = self.head;
        barrier::publish();
        self.record.store_first(u32::from(self.head));
        posted
    }
}

/// Writes the data segment of a receive of one SGE into the octoword `first`, and `end`, if there is more room, behind it.
#[inline(always)]
pub(crate) fn put_one(ring: &mut OctowordRing, first: usize, end: Option<LKey>, sge: &Sge) {
    let (head, address) = data_segment(sge);
    ring.put(first, head, address);
    if let Some(end) = end {
        ring.put(first + 1, u64::from(end.get()), 0);
    }
}

/// Writes the data segments of a receive into the `room` octowords from `first` on, without those of length 0, and ends them.
pub(crate) fn put_receive(
    ring: &mut OctowordRing,
    first: usize,
    room: usize,
    end: LKey,
    sges: &[Sge],
) -> Result<(), PostError> {
    let mut used = 0;
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        if sge.length & INLINE_SEG != 0 {
            return Err(PostError::TooLong);
        }
        put_one(ring, first + used, None, sge);
        used += 1;
    }
    if used < room {
        ring.put(first + used, u64::from(end.get()), 0);
    }
    Ok(())
}
