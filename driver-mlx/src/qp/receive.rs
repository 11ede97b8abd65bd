//! The receive queue: what is outstanding, and the bytes of receives.

use crate::barrier;
use crate::completion::{ReceiveOpcode, Received, WrId};
use crate::cq::Cqe;
use crate::ring::{DoorbellRecord, OctowordRing, Slot, Slots, data_segment};
use crate::types::{LKey, QpNumber, Sge};
use crate::wqe::PostError;
use mlx5_prm::datapath::{CqeOpcode, INLINE_SEG};

/// QP number in the last quadword of a completion.
const QPN: u64 = 0x00ff_ffff_0000_0000;
/// Format in it: whether the message is in the completion.
const FORMAT: u64 = 0xc;
/// Opcode in it, and that of a message that came by a send without more.
const OPCODE: u64 = 0xf0;
const SENT: u64 = (CqeOpcode::RESP_SEND.0 as u64) << 4;
/// Where the index begins in it.
const INDEX_SHIFT: u32 = 16;

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: OctowordRing,
    /// The [`WrId`] of each receive.
    slots: Slots,
    /// Receives posted, circular.
    head: u16,
    /// Receives retired.
    tail: u16,
    /// Bits of `oldest_mask` in the last quadword of the oldest receive's completion: index modulo the
    /// ring in 31:16, QP number in 55:32, opcode in 7:4. Bits 3:2 are 0, and are compared unless
    /// messages may arrive in the completion.
    oldest: u64,
    oldest_mask: u64,
    /// Entries, at most 2^15.
    size: u16,
    /// Octowords of an entry.
    stride: u16,
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
        log_stride: u32,
        (max_sge, terminator): (u8, LKey),
        inline_receive: bool,
    ) -> Self {
        let size = slots.len() as u16;
        let format = if inline_receive { 0 } else { FORMAT };
        let oldest_mask = u64::from(size - 1) << INDEX_SHIFT | format | OPCODE | QPN;
        let (head, tail, oldest, stride) = (0, 0, SENT, 1 << log_stride);
        Self {
            ring,
            slots,
            head,
            tail,
            oldest,
            oldest_mask,
            size,
            stride,
            max_sge,
            terminator,
            inline_receive,
        }
    }

    pub(super) fn into_slots(self) -> Slots {
        self.slots
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
        self.oldest = u64::from(number.get()) << 32 | SENT;
        self.settle(self.tail);
    }

    pub(super) fn number(&self) -> QpNumber {
        QpNumber::new((self.oldest >> 32) as u32 & 0xff_ffff)
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
        self.oldest = (self.oldest & (QPN | OPCODE) | u64::from(tail) << INDEX_SHIFT) & self.oldest_mask;
    }

    /// Receives posted and not yet retired.
    #[inline]
    pub(super) fn outstanding(&self) -> u16 {
        self.head.wrapping_sub(self.tail)
    }

    /// Receives posted, circular: what the doorbell record is to say.
    #[inline]
    pub(super) fn head(&self) -> u16 {
        self.head
    }

    /// Writes receives until one is refused. Returns their number, and the refusal. The device sees
    /// them in the doorbell record.
    #[inline(always)]
    pub(super) fn post<S: AsRef<[Sge]>>(
        &mut self,
        receives: impl IntoIterator<Item = (S, WrId)>,
    ) -> (usize, Result<(), PostError>) {
        // Copies, because the compiler would read the fields again after each store to the ring.
        let (mut ring, stride, max_sge) = (self.ring, usize::from(self.stride), usize::from(self.max_sge));
        let end = self.tail.wrapping_add(self.size);
        let mut posted = 0;
        for (sges, wr_id) in receives {
            let (sges, head) = (sges.as_ref(), self.head);
            if sges.len() > max_sge {
                return (posted, Err(PostError::TooManySges));
            }
            if head == end {
                return (posted, Err(PostError::Full));
            }
            let first = usize::from(head) * stride;
            if let Err(error) = put_receive(&mut ring, first, stride, self.terminator, sges) {
                return (posted, Err(error));
            }
            self.slots.set(usize::from(head), Slot { id: wr_id.id, tag: wr_id.tag });
            self.head = head.wrapping_add(1);
            posted += 1;
        }
        (posted, Ok(()))
    }

    /// Posts up to `count` receives again, each entry as it was written one lap before. Returns the number posted: 0 if
    /// an entry was never written.
    #[inline]
    fn repost(&mut self, count: u16) -> u16 {
        let count = count.min(self.size - self.outstanding());
        // Entries are written in order, so the unwritten ones begin at the head. They have no length.
        let segment = self.ring.first(usize::from(self.head) * usize::from(self.stride));
        if count == 0 || segment >> 32 == 0 {
            return 0;
        }
        self.head = self.head.wrapping_add(count);
        count
    }

    #[inline]
    fn wr_id(&self, index: u16) -> WrId {
        let Slot { id, tag } = self.slots.get(usize::from(index));
        WrId { id, tag }
    }

    /// The outstanding receive that `cqe` reports done.
    pub(super) fn find(&self, cqe: &Cqe<'_>) -> Option<WrId> {
        let older = cqe.wqe_counter().wrapping_sub(self.tail) & (self.size - 1);
        let possible = self.inline_receive || !cqe.is_inline();
        let ours = (cqe.tail() ^ self.oldest) & QPN == 0;
        (ours && possible && older < self.outstanding()).then(|| self.wr_id(self.tail.wrapping_add(older)))
    }

    /// Retires the oldest receive, if `cqe` reports that one done: they complete in order.
    pub(super) fn retire(&mut self, cqe: &Cqe<'_>) -> Option<WrId> {
        self.retire_like(cqe, self.oldest_mask & !OPCODE)
    }

    /// As [`retire`](Self::retire), if a message came by a send without more.
    #[inline(always)]
    pub(super) fn retire_sent(&mut self, cqe: &Cqe<'_>) -> Option<WrId> {
        self.retire_like(cqe, self.oldest_mask)
    }

    /// Retires the oldest receive, if its completion has the last quadword of `cqe` in these bits.
    #[inline(always)]
    fn retire_like(&mut self, cqe: &Cqe<'_>, compared: u64) -> Option<WrId> {
        let oldest = self.tail;
        if (cqe.tail() ^ self.oldest) & compared != 0 || oldest == self.head {
            return None;
        }
        self.tail = oldest.wrapping_add(1);
        // A ring has at most 2^15 entries, so the carry of the index is cut off.
        self.oldest = self.oldest.wrapping_add(1 << INDEX_SHIFT) & self.oldest_mask;
        Some(self.wr_id(oldest))
    }

    /// Retires the oldest receive.
    pub(super) fn flush_next(&mut self) -> Option<WrId> {
        let wr_id = (self.outstanding() != 0).then(|| self.wr_id(self.tail))?;
        self.settle(self.tail.wrapping_add(1));
        Some(wr_id)
    }

    /// The SGEs of an outstanding receive (`nth` from 0, the oldest), read back into `out`: their number, and its name.
    pub(super) fn posted(&self, nth: u16, out: &mut [Sge]) -> Option<(usize, WrId)> {
        if nth >= self.outstanding() {
            return None;
        }
        let index = self.tail.wrapping_add(nth);
        let stride = usize::from(self.stride);
        let first = usize::from(index) * stride;
        let mut count = 0;
        for (sge, octoword) in out.iter_mut().zip(first..first + stride) {
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

/// The receive queue of a [`Qp`](crate::Qp), to take many messages.
#[derive(Debug)]
pub struct Receiver<'q> {
    queue: &'q mut ReceiveQueue,
    record: &'q mut DoorbellRecord,
}

impl<'q> Receiver<'q> {
    #[inline]
    pub(super) fn new(queue: &'q mut ReceiveQueue, record: &'q mut DoorbellRecord) -> Self {
        Self { queue, record }
    }

    /// As [`Qp::retire_common`](crate::Qp::retire_common) of a message.
    #[inline(always)]
    pub fn retire(&mut self, cqe: &Cqe<'_>) -> Option<Received> {
        let wr_id = self.queue.retire_sent(cqe)?;
        Some(Received { wr_id, opcode: ReceiveOpcode::Send, length: cqe.byte_len() })
    }

    /// Posts up to `count` receives again, each with the SGEs and name of the receive one lap before, and updates the doorbell
    /// record. Writes no WQE. A lap has the receives that the queue was created for, rounded up to a power of two, and at least 64
    /// bytes.
    ///
    /// Returns the number posted: 0 if one of these entries was never written, or if the first one has an empty first SGE.
    #[inline]
    pub fn repost(&mut self, count: u16) -> u16 {
        let posted = self.queue.repost(count);
        barrier::publish();
        self.record.store_first(u32::from(self.queue.head()));
        posted
    }
}

/// Writes the data segments of a receive into the `room` octowords from `first` on, without those of length 0, and ends them.
#[inline(always)]
pub(crate) fn put_receive(
    ring: &mut OctowordRing,
    first: usize,
    room: usize,
    end: LKey,
    sges: &[Sge],
) -> Result<(), PostError> {
    let mut used = 0;
    for sge in sges {
        if sge.length & INLINE_SEG != 0 {
            return Err(PostError::TooLong);
        }
        if sge.length != 0 {
            let (head, address) = data_segment(sge);
            ring.put(first + used, head, address);
            used += 1;
        }
    }
    if used < room {
        ring.put(first + used, u64::from(end.get()), 0);
    }
    Ok(())
}
