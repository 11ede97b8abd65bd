//! What a guest may make its HCA cost: work per call, and host memory.
//!
//! Work is counted in steps of some tens of instructions. A call has [`STEPS_PER_CALL`] of them; what was begun is finished, and
//! what it took beyond is a debt that later calls pay before they do anything. So no call does more than its steps and one bounded
//! operation, nothing is lost, and the HCAs of other guests have the calls in between to themselves.

use rdma_fabric::work::STEPS_PER_CALL;
use std::fmt;

/// Of them, steps that register writes and commands leave to packets and queues.
pub(crate) const FOR_PACKETS: u64 = STEPS_PER_CALL / 2;
/// Of them, steps that packets which arrive leave to queues.
pub(crate) const FOR_QUEUES: u64 = STEPS_PER_CALL / 4;
/// Steps that neighbours may have a device do beyond its own: half of its next call's, so that it gets on with its own work.
pub(crate) const FOR_NEIGHBOURS: u64 = STEPS_PER_CALL / 2;
/// Bytes copied that count as one step.
pub const BYTES_PER_STEP: u64 = 256;

/// What pieces of work count.
pub(crate) mod price {
    pub(crate) use rdma_fabric::work::PACKET;

    /// A register write.
    pub(crate) const REGISTER: u64 = 4;
    /// A command, without its mailboxes and lists.
    pub(crate) const COMMAND: u64 = 64;
    /// A mailbox of a command.
    pub(crate) const MAILBOX: u64 = 4;
    /// A work queue entry fetched or flushed.
    pub(crate) const WQE: u64 = 16;
    /// A QP's turn, or a look at one.
    pub(crate) const LOOK: u64 = 2;
}

/// Work done, against what a call may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Steps left of this call; negative is the debt.
    left: i64,
    steps: u64,
    bytes: u64,
    /// Steps when this call began, and the most that any took.
    began: u64,
    most: u64,
}

impl Meter {
    /// Begins a call. Answers whether work can be done in it: not while there is a debt.
    pub(crate) fn begin(&mut self) -> bool {
        self.most = self.most_in_call();
        self.began = self.steps;
        self.left = self.left.min(0).saturating_add(STEPS_PER_CALL as i64);
        self.left > 0
    }

    /// A call without work: it pays like any other.
    #[inline]
    pub(crate) fn idle(&mut self) {
        let _ = self.begin();
    }

    /// Counts work that was done or is about to be.
    #[inline]
    pub(crate) fn charge(&mut self, steps: u64) {
        self.steps = self.steps.wrapping_add(steps);
        self.left = self.left.wrapping_sub_unsigned(steps);
    }

    /// Counts bytes copied.
    #[inline]
    pub(crate) fn charge_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.wrapping_add(bytes);
        self.charge(bytes / BYTES_PER_STEP);
    }

    /// Whether nothing more may be begun in this call.
    #[inline]
    pub(crate) const fn is_spent(&self) -> bool {
        self.left <= 0
    }

    /// Whether so little is left of this call that the kinds of work that come later should have it.
    #[inline]
    pub(crate) const fn leaves(&self, for_later: u64) -> bool {
        self.left <= for_later as i64
    }

    /// Whether a neighbour may have something done now.
    #[inline]
    pub(crate) const fn serves_neighbours(&self) -> bool {
        self.left > -(FOR_NEIGHBOURS as i64)
    }

    /// Steps since the device was made.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The most steps that were taken from the beginning of one call to that of the next.
    #[must_use]
    pub fn most_in_call(&self) -> u64 {
        self.most.max(self.steps.wrapping_sub(self.began))
    }

    /// Bytes copied since the device was made.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A charge that the budget has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes left.
    pub left: u64,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of the device's memory, {} are left", self.asked, self.left)
    }
}

/// The host memory that a guest holds through its HCA: objects with their page lists, contexts and translations, commands that
/// wait, work requests that are not completed. Buffers of fixed size (registers, log, packets on their way) are beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    limit: u64,
    held: u64,
    most: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, held: 0, most: 0 }
    }

    /// Holds `bytes` more.
    ///
    /// # Errors
    /// [`OverBudget`]; nothing is held then.
    pub(crate) fn hold(&mut self, bytes: u64) -> Result<(), OverBudget> {
        let left = self.limit.saturating_sub(self.held);
        if bytes > left {
            return Err(OverBudget { asked: bytes, left });
        }
        self.held += bytes;
        self.most = self.most.max(self.held);
        Ok(())
    }

    /// As [`hold`](Self::hold), for what can be done without: a quarter of the budget stays for the rest.
    pub(crate) fn hold_spare(&mut self, bytes: u64) -> Result<(), OverBudget> {
        let most = self.limit - self.limit / 4;
        if bytes > most.saturating_sub(self.held) {
            return Err(OverBudget { asked: bytes, left: most.saturating_sub(self.held) });
        }
        self.hold(bytes)
    }

    /// Gives back what [`hold`](Self::hold) took.
    pub(crate) fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.held, "{bytes} of {} bytes given back", self.held);
        self.held = self.held.saturating_sub(bytes);
    }

    /// Nothing is held any more.
    pub(crate) fn clear(&mut self) {
        self.held = 0;
    }

    /// Bytes held now.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// The most bytes that were ever held at once.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// The most that may be held.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_paid_before_anything_is_done() {
        let mut meter = Meter::default();
        assert!(meter.begin() && !meter.is_spent());
        meter.charge(STEPS_PER_CALL - 1);
        assert!(!meter.is_spent());
        meter.charge(1 + 2 * STEPS_PER_CALL);
        assert!(meter.is_spent());
        assert!(!meter.begin() && meter.is_spent(), "one call's steps of two are paid");
        assert!(!meter.begin());
        assert!(meter.begin(), "and nothing is saved up");
        meter.charge_bytes(BYTES_PER_STEP * STEPS_PER_CALL);
        assert!(meter.is_spent());
        assert_eq!(meter.bytes(), BYTES_PER_STEP * STEPS_PER_CALL);
        assert!(meter.begin());
    }

    #[test]
    fn a_budget_refuses_what_does_not_fit_and_takes_back() {
        let mut budget = Budget::new(100);
        assert_eq!(budget.hold(60), Ok(()));
        assert_eq!(budget.hold(41), Err(OverBudget { asked: 41, left: 40 }));
        assert_eq!(budget.hold(40), Ok(()));
        budget.release(60);
        assert_eq!((budget.held(), budget.most(), budget.hold(u64::MAX).is_err()), (40, 100, true));
    }
}
