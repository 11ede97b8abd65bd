//! The usual completion where much is received: a message of a peer has arrived.

use super::completion::{QPN_MASK, QpnInEntry};
use super::{BATCH, Cq};
use crate::barrier;
use crate::platform::Bar;
use crate::qp::{Kept, Qp};
use core::sync::atomic::Ordering;
use mlx5_prm::datapath::CqeOpcode;

/// The last byte of an entry but for the bit that says whether the sender asked for an event.
const OPCODE_MASK: u64 = 0xfd;
/// The bits of an entry's last quadword, as a number, that say whose it is and what kind.
const KIND_MASK: u64 = u64::from_be(QPN_MASK) | OPCODE_MASK;

impl QpnInEntry {
    /// [`KIND_MASK`] of the arrival of a message without immediate data, and without data in the entry.
    #[inline(always)]
    fn message(self, owner: u8) -> u64 {
        u64::from_be(self.0) | u64::from(CqeOpcode::RESP_SEND.0 << 4 | owner)
    }
}

impl<B: Bar> Cq<B> {
    /// The user index (as [`Completion::user_index`](crate::Completion::user_index)) of the next completion if it is the arrival of a
    /// message, the usual case where much is received. It stays in place: [`Cq::take_messages`] takes it. `None` if it is not that, or
    /// if there is none: [`Cq::poll`] tells.
    #[must_use]
    #[inline(always)]
    pub fn next_message(&self) -> Option<u32> {
        let entry = self.ring.block(self.ci as usize);
        let at_38 = u64::from_be(entry[7].load(Ordering::Relaxed));
        if at_38 & OPCODE_MASK != QpnInEntry::default().message(self.owner) {
            return None;
        }
        barrier::acquire();
        Some((u64::from_be(entry[4].load(Ordering::Relaxed)) >> 32) as u32 & 0xff_ffff)
    }

    /// Takes completions, while `out` has room, for as long as they are arrivals of messages without immediate data for the oldest
    /// receives of this queue pair, and retires those. `each` makes of what was kept with the receive and of how many bytes arrived, as
    /// the device claims, what is put down. Gives their number.
    #[inline(always)]
    pub fn take_messages<T>(&mut self, qp: &mut Qp<B>, out: &mut [T], each: impl Fn(Kept, u32) -> T) -> u16 {
        let Some(oldest) = qp.oldest() else { return 0 };
        let first = *oldest.tail;
        let (mut ci, mut tail) = (self.ci, first);
        let mut expected = oldest.qpn.message(self.owner);
        // The entry's number of the receive, in the same quadword, counts modulo the entries.
        let mask = KIND_MASK | u64::from(oldest.mask) << 16;
        let outstanding = usize::from(oldest.head.wrapping_sub(first));
        let room = out.len().min(outstanding);
        for place in out.iter_mut().take(room) {
            let entry = self.ring.block(ci as usize);
            let at_38 = u64::from_be(entry[7].load(Ordering::Relaxed));
            if (at_38 ^ (expected | u64::from(tail) << 16)) & mask != 0 {
                break;
            }
            barrier::acquire();
            let length = u64::from_be(entry[5].load(Ordering::Relaxed)) as u32;
            let slot = oldest.slots.unit(usize::from(tail));
            let kept =
                Kept { cookie: slot[0].load(Ordering::Relaxed), note: slot[1].load(Ordering::Relaxed) };
            *place = each(kept, length);
            tail = tail.wrapping_add(1);
            ci = ci.wrapping_add(1);
            if ci & (BATCH - 1) == 0 {
                self.ci = ci;
                self.turn();
                expected = oldest.qpn.message(self.owner);
            }
        }
        self.ci = ci;
        *oldest.tail = tail;
        tail.wrapping_sub(first)
    }

    /// Whether no completion is there now.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entry(self.ci).is_none()
    }
}
