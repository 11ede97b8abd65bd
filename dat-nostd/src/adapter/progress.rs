//! Pending work of an adapter besides that of its EVDs and CNOs, and its counters.

use core::mem;

use crate::adapter::census::AdapterCounters;
use crate::base::list::List;
use crate::conn::pending::Pending;
use crate::ep::WatchedEp;

/// Dequeues that find nothing for each of them that polls the adapter: a few microseconds of them. A power of two.
const POLL_EVERY: u16 = 1 << 9;

/// Pending work, and counters. The lists go through the objects, so that a poll visits those with work and no others.
#[derive(Debug)]
pub(crate) struct Progress {
    counters: AdapterCounters,
    /// Objects and completions that polls and waits have looked at.
    visits: u64,
    pending: Pending,
    /// EPs with a high watermark.
    watched: List<WatchedEp>,
    /// Something happened since [`Progress::take_happened`].
    happened: bool,
    /// Dequeues that found nothing, in steps of which [`POLL_EVERY`] make it 0 again.
    empty_dequeues: u16,
}

impl Progress {
    pub(super) fn new(pending: Pending) -> Self {
        Self {
            counters: AdapterCounters::default(),
            visits: 0,
            pending,
            watched: List::default(),
            happened: false,
            empty_dequeues: 0,
        }
    }

    /// Connections that are being made and closed.
    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    pub(crate) fn pending_mut(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// EPs with a high watermark.
    pub(crate) fn watched_mut(&mut self) -> &mut List<WatchedEp> {
        &mut self.watched
    }

    pub(super) fn counters(&self) -> AdapterCounters {
        self.counters
    }

    /// Counts an EVD that lost an event.
    pub(crate) fn count_overflow(&mut self) {
        self.counters.overflows += 1;
    }

    /// Counts a completion of a QP that is gone.
    pub(crate) fn count_stale(&mut self, is_stale: bool) {
        self.counters.stale_completions += u64::from(is_stale);
    }

    /// Counts a completion that the device cannot have meant. Returns whether it is the first.
    pub(crate) fn count_bad(&mut self) -> bool {
        self.counters.bad_completions += 1;
        self.counters.bad_completions == 1
    }

    /// Counts a look at an object or a completion.
    pub(crate) fn visit(&mut self) {
        self.visits += 1;
    }

    pub(super) fn visits(&self) -> u64 {
        self.visits
    }

    /// Something happened, so the loop must not idle yet.
    pub(crate) fn set_happened(&mut self) {
        self.happened = true;
    }

    /// Returns whether something happened since the last call.
    pub(super) fn take_happened(&mut self) -> bool {
        mem::take(&mut self.happened)
    }

    /// A dequeue has found nothing. Whether it is to poll the adapter, as one in [`POLL_EVERY`] does, for consumers who do nothing but dequeue.
    #[inline]
    pub(crate) fn is_poll_due(&mut self) -> bool {
        self.empty_dequeues = self.empty_dequeues.wrapping_add(u16::MAX / POLL_EVERY + 1);
        self.empty_dequeues == 0
    }
}
