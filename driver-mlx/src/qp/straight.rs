//! Messages in good order: sends of one piece, receives posted many at a time, and receives retired in turn.

use super::queues::{control_first, data_first};
use super::{Kept, Qp};
use crate::barrier;
use crate::cq::QpnInEntry;
use crate::platform::Bar;
use crate::ring::Units;
use crate::types::{LKey, Sge};
use crate::wqe::SendFlags;
use core::sync::atomic::Ordering;
use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, INLINE_SEG, SendOpcode};

/// The outstanding receives of a queue pair, for the completion queue that retires them from the oldest on.
pub(crate) struct Oldest<'q> {
    pub(crate) slots: &'q Units,
    /// Index of the oldest; of the next to be posted; entries less one.
    pub(crate) tail: &'q mut u16,
    pub(crate) head: u16,
    pub(crate) mask: u16,
    pub(crate) qpn: QpnInEntry,
}

impl<B: Bar> Qp<B> {
    /// Posts a send of one piece and rings at once, if there is nothing unusual about it; else does nothing and says `false`: then
    /// [`Qp::post_send`] and [`Qp::ring`] tell why, or do it.
    #[inline(always)]
    #[must_use]
    pub fn send_plain(&mut self, sge: Sge, kept: Kept, flags: SendFlags) -> bool {
        let sq = &mut self.sq;
        let head = sq.head;
        if sq.plain_limit < 2 || head == sq.end || sge.length.wrapping_sub(1) >= INLINE_SEG - 1 {
            return false;
        }
        sq.keep(head, kept, 1);
        let next = head.wrapping_add(1);
        let block = sq.ring.block(usize::from(head));
        block[2].store(data_first(&sge).to_be(), Ordering::Relaxed);
        block[3].store(sge.address.to_be(), Ordering::Relaxed);
        let first = control_first(head, SendOpcode::SEND, sq.qpn_shifted, 2);
        block[0].store(first.to_be(), Ordering::Relaxed);
        block[1].store((u64::from(flags.bits()) << 32).to_be(), Ordering::Relaxed);
        (sq.head, sq.rung) = (next, next);
        barrier::publish();
        self.record.store_second(u32::from(next));
        barrier::before_doorbell();
        self.doorbell.bar.write64(self.doorbell.offset, first);
        true
    }

    /// Posts receives of one piece of `length` bytes each, for as long as there is room, and tells the device of all of them at once.
    /// Each comes with where its piece is, which `accept` is asked of, and its cookie; one that is not accepted ends it. Gives their
    /// number; 0 for lengths that [`Qp::post_recv`] refuses or leaves out.
    #[inline(always)]
    pub fn post_receives(
        &mut self,
        (length, lkey): (u32, LKey),
        note: u64,
        receives: &[(u64, u64)],
        accept: impl Fn(u64) -> bool,
    ) -> u16 {
        let Some(rq) = &mut self.rq else { return 0 };
        if rq.max_sge == 0 || length.wrapping_sub(1) >= INLINE_SEG - 1 {
            return 0;
        }
        let data = data_first(&Sge { address: 0, length, lkey }).to_be();
        let (first, log_stride) = (rq.head, rq.log_stride);
        let room = rq.size.wrapping_sub(rq.outstanding());
        let mut head = first;
        for &(address, cookie) in receives.get(..usize::from(room)).unwrap_or(receives) {
            if !accept(address) {
                break;
            }
            let at = usize::from(head) << log_stride;
            let unit = rq.ring.unit(at);
            unit[0].store(data, Ordering::Relaxed);
            unit[1].store(address.to_be(), Ordering::Relaxed);
            if log_stride > 0 {
                let terminator = rq.ring.unit(at + 1);
                terminator[0].store(u64::from(DATA_LKEY_TERMINATOR).to_be(), Ordering::Relaxed);
                terminator[1].store(0, Ordering::Relaxed);
            }
            let slot = rq.slots.unit(usize::from(head));
            slot[0].store(cookie, Ordering::Relaxed);
            slot[1].store(note, Ordering::Relaxed);
            head = head.wrapping_add(1);
        }
        rq.head = head;
        barrier::publish();
        self.record.store_first(u32::from(head));
        head.wrapping_sub(first)
    }

    /// What is outstanding of its own receives.
    #[inline(always)]
    pub(crate) fn oldest(&mut self) -> Option<Oldest<'_>> {
        let rq = self.rq.as_mut()?;
        let (head, mask, qpn) = (rq.head, rq.size.wrapping_sub(1), self.qpn_in_entry);
        Some(Oldest { slots: &rq.slots, tail: &mut rq.tail, head, mask, qpn })
    }
}
