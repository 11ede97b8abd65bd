//! End-to-end flow control of reliable connections (IBTA 9.7.7.2): a responder says how many receives are posted, and a
//! requester begins no more messages than find one. Shared receive queues promise nothing; there the requester feels its
//! way after it has met a receiver that was not ready.

use rdma_fabric::infiniband::packet::AethSyndrome;

use super::state::{Current, Requester, WINDOW, Work, Wqe};
use crate::object::qp::Qp;
use crate::seams::GuestMemory;

/// Receives that each credit code stands for (IBTA table "credit count encoding").
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The largest code that promises no more than `receives`.
fn code(receives: u16) -> u8 {
    CREDITS.partition_point(|promised| *promised <= receives).saturating_sub(1) as u8
}

/// Whether message `a` comes after `b`: 24-bit numbers, compared round the corner.
const fn after(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b) & 0x00ff_ffff;
    ahead != 0 && ahead < 0x0080_0000
}

impl Requester {
    /// An acknowledgement told of the responder's receives.
    pub(super) fn credited(&mut self, credits: u8, msn: u32) {
        self.limit = CREDITS
            .get(usize::from(credits))
            .map(|receives| msn.wrapping_add(u32::from(*receives)) & 0x00ff_ffff);
    }

    /// The responder was not ready: one message tries again, more follow as they get through.
    pub(super) fn not_ready(&mut self, msn: u32) {
        self.limit = Some(msn & 0x00ff_ffff);
        self.burst = 1;
    }

    /// Something got through.
    pub(super) fn got_through(&mut self) {
        self.burst = self.burst.saturating_mul(2).min(WINDOW);
    }

    /// Whether `wqe`, of which `done` packets are sent, would begin to use a receive that is not promised.
    pub(super) fn exceeds_credit(&self, wqe: &Wqe, done: u32) -> bool {
        let begins = match wqe.work {
            Work::Send | Work::SendImmediate | Work::SendInvalidate => done == 0,
            Work::WriteImmediate => wqe.psns == 1,
            _ => false,
        };
        begins && self.limit.is_some_and(|limit| after(wqe.message, limit))
    }
}

impl Qp {
    /// The credit code of an acknowledgement.
    pub(super) fn credits(&self, memory: &dyn GuestMemory) -> u8 {
        if self.rings().receive().is_none() {
            return AethSyndrome::NO_CREDITS;
        }
        // A record that cannot be read is found out when a receive is taken.
        let posted = self.receives_left(memory).unwrap_or(0);
        // The message under way holds its receive already, and is not among the finished ones.
        let begun = matches!(self.transport.responder.current, Some(Current::Send { .. }));
        code(posted.saturating_add(u16::from(begun)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_never_promise_too_much() {
        for receives in [0, 1, 4, 5, 6, 7, 127, 128, 30_000, 32_768, u16::MAX] {
            let promised = CREDITS[usize::from(code(receives))];
            assert!(promised <= receives, "{receives}");
            assert!(CREDITS.iter().all(|other| *other <= promised || *other > receives), "{receives}");
        }
        assert!(code(u16::MAX) < AethSyndrome::NO_CREDITS);
    }

    #[test]
    fn messages_are_compared_round_the_corner() {
        assert!(after(0, 0xff_ffff) && after(5, 4) && after(0x7f_ffff, 0));
        assert!(!after(4, 4) && !after(0xff_ffff, 0) && !after(3, 4));
    }
}
