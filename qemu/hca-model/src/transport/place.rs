//! A QP's places in the lists of the schedule.

/// A QP's places in the lists of [`Schedule`](super::schedule::Schedule).
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The run queue has it, or will have it in the next call.
    queued: bool,
    /// The earliest of its timers in the list.
    timer: Option<u64>,
}

impl Place {
    /// Notes that the run queue has the QP. Returns whether it had it before.
    #[inline]
    pub(super) const fn enter(&mut self) -> bool {
        std::mem::replace(&mut self.queued, true)
    }

    /// Notes that the run queue no longer has the QP.
    #[inline]
    pub(super) const fn leave(&mut self) {
        self.queued = false;
    }

    /// Returns whether the run queue has the QP.
    pub(super) const fn is_queued(&self) -> bool {
        self.queued
    }

    /// Returns the earliest of its timers in the list.
    pub(super) const fn timer(&self) -> Option<u64> {
        self.timer
    }

    /// Notes a timer in the list, or none. Returns the one before.
    pub(super) const fn set_timer(&mut self, timer: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.timer, timer)
    }
}
