//! Backoff of connection attempts, and reasons of failures.

use dat_nostd::{Duration, Instant};

use crate::reason::DownReason;
use crate::slot::Slot;

/// Minimum and maximum of the range from which the backoff is drawn. The range doubles after each failure.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Minimum interval between accepted requests from a peer. Doubles up to `STANDS_MAX`, and is reset
/// after `CALM` without a request. It bounds the work for a peer that requests, or disconnects and
/// requests, all the time. It also protects a new connection from a late request that crossed our
/// own.
pub(crate) const STANDS: Duration = Duration::from_millis(10);
const STANDS_MAX: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(4);
/// Interval of probes while the connection waits for the peer.
pub(crate) const PROBE: Duration = Duration::from_secs(1);
with_empty! {
    #[derive(Debug)]
    pub(crate) struct Reconnect {
        /// Time since which the connection is, or was last, up.
        pub(crate) up_at: Instant = Instant::ORIGIN,
        /// Whether a request of the peer was accepted, the last time, and the interval in which
        /// further ones are refused.
        pub(crate) was_accepted: bool = false,
        accepted_at: Instant = Instant::ORIGIN,
        stands: Duration = Duration::ZERO,
        /// A request of the peer that waits for the outcome of ours; 0 for none.
        pub(crate) held_request: u64 = 0,
        /// Time of the next attempt, and range of its backoff. The range doubles, unless the last
        /// connection lasted or transferred a message.
        pub(crate) retry_at: Instant = Instant::ORIGIN,
        backoff: Duration = Duration::ZERO,
        /// The connection has come up and not gone down since; and the sequence number of the first
        /// unacknowledged message at that time.
        is_up: bool = false,
        first_sent: u64 = 0,
        /// The peer has acknowledged a message since the connection came up.
        has_moved: bool = false,
        /// Time of the next probe while the connection is up and waits for the peer.
        pub(crate) probe_at: Option<Instant> = None,
        /// Time of the last activity.
        pub(crate) busy_at: Instant = Instant::ORIGIN,
        /// Reason why the endpoint failed. The connection goes down when all completions of
        /// requests were processed.
        pub(crate) broken_by: Slot<DownReason> = Slot::empty(DownReason::NoResources),
        /// Number of failures and abandoned attempts, and the last reason.
        pub(crate) downs: u64 = 0,
        pub(crate) last_down: Slot<DownReason> = Slot::empty(DownReason::NoResources),
    }
}

impl Reconnect {
    /// Returns whether a request of the peer was accepted less than `apart` ago.
    pub(crate) fn accepted_within(&self, now: Instant, apart: Duration) -> bool {
        self.was_accepted && now < self.accepted_at + apart
    }

    /// Returns the interval in which an accepted connection is not replaced.
    pub(crate) const fn stands(&self) -> Duration {
        self.stands
    }

    pub(crate) fn accepted(&mut self, now: Instant) {
        let calm = !self.accepted_within(now, CALM);
        self.stands = if calm { STANDS } else { (self.stands * 2).clamp(STANDS, STANDS_MAX) };
        (self.was_accepted, self.accepted_at) = (true, now);
    }

    pub(crate) const fn came_up(&mut self, now: Instant, first_sent: u64) {
        (self.is_up, self.up_at) = (true, now);
        (self.first_sent, self.has_moved) = (first_sent, false);
        self.probe_at = None;
    }

    /// Records the highest acknowledgement of a freed endpoint. If it is new, the next attempt is
    /// immediate. A peer that only connects and disconnects gains nothing.
    pub(crate) const fn acknowledged(&mut self, highest: u64) {
        if self.is_up && highest >= self.first_sent {
            (self.backoff, self.has_moved) = (Duration::ZERO, true);
        }
    }

    /// Returns whether a request of the peer was accepted recently.
    pub(crate) fn is_new(&self, now: Instant) -> bool {
        self.accepted_within(now, CALM)
    }

    /// Schedules the next attempt. Returns whether a connection ended, and whether it was useless:
    /// too short, and without progress.
    pub(crate) fn wait(&mut self, now: Instant, random: u64) -> (bool, bool) {
        let (ended, stood) = (core::mem::take(&mut self.is_up), now >= self.up_at + CALM);
        if ended && stood {
            self.backoff = Duration::ZERO;
        }
        let most = self.backoff.as_nanos() as u64;
        self.retry_at = now + Duration::from_nanos(random.checked_rem(most).unwrap_or(0));
        self.backoff = (self.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        self.probe_at = None;
        (ended, ended && !stood && !self.has_moved)
    }

    /// Returns the state of a new entry: at the maximum backoff for a peer that was unreachable.
    pub(crate) const fn new(now: Instant, was_unreachable: bool) -> Self {
        let backoff = if was_unreachable { BACKOFF_MAX } else { Duration::ZERO };
        Self { backoff, busy_at: now, ..Self::EMPTY }
    }

    /// Returns whether the backoff has reached its maximum, so that the peer may be dead.
    pub(crate) fn is_backoff_exhausted(&self) -> bool {
        self.backoff == BACKOFF_MAX
    }

    /// Records why the endpoint failed. A flush never replaces another reason.
    pub(crate) fn breaks(&mut self, reason: DownReason) {
        let before = self.broken_by.get();
        if before.is_none() || !reason.is_flush() {
            self.broken_by.set(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_more_is_remembered() {
        let mut state = Reconnect::EMPTY;
        state.breaks(DownReason::Broken);
        state.breaks(DownReason::ReceiveFailed);
        assert_eq!(state.broken_by.get(), Some(DownReason::Broken));
        state.breaks(DownReason::Disconnected);
        state.breaks(DownReason::Broken);
        assert_eq!(state.broken_by.get(), Some(DownReason::Disconnected));
    }

    #[test]
    fn waits_grow_and_begin_anew() {
        let (now, mut state) = (Instant::from_nanos(5), Reconnect::EMPTY);
        let mut longest = Duration::ZERO;
        for _ in 0..15 {
            state.wait(now, u64::MAX);
            longest = longest.max(state.retry_at - now);
        }
        assert!(longest > BACKOFF_MAX / 4 && longest < BACKOFF_MAX, "{longest:?}");
        state.came_up(now, 7);
        state.wait(now + CALM, u64::MAX);
        assert_eq!(state.retry_at, now + CALM, "at once");
    }

    /// A connection that is short and transfers nothing does not shorten the backoff.
    #[test]
    fn coming_up_is_not_enough() {
        let (now, mut state) = (Instant::from_nanos(5), Reconnect::EMPTY);
        for _ in 0..15 {
            state.came_up(now, 7);
            state.acknowledged(6);
            state.wait(now, u64::MAX);
        }
        assert!(state.retry_at > now + BACKOFF_MAX / 4 && state.is_backoff_exhausted());
        // Old acknowledgements do not count either.
        state.acknowledged(7);
        assert!(state.is_backoff_exhausted());
        state.came_up(now, 7);
        state.acknowledged(7);
        state.wait(now, u64::MAX);
        assert_eq!(state.retry_at, now, "at once");
    }
}
