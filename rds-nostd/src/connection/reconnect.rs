//! When a connection is made, and why it ended.

use dat_nostd::{Duration, Instant};

use crate::reason::DownReason;
use crate::slot::Slot;

/// Time between attempts is drawn from a range that doubles from the first to the second.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long from a request of a peer that is accepted to the next one, whether its connection still stands or not; it doubles with each up
/// to the second, and begins anew after the third without one. Whoever asks all the time, or hangs up to ask again, does not get a
/// connection made and torn down for each request; and a request that was overtaken by the answer to ours does no harm.
pub(crate) const STANDS: Duration = Duration::from_millis(10);
const STANDS_MAX: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(4);
/// Time between two looks whether a peer is there that somebody waits for.
pub(crate) const PROBE: Duration = Duration::from_secs(1);
#[derive(Debug)]
pub(crate) struct Reconnect {
    /// It came up at least once, last at this time.
    pub(crate) was_up: bool,
    pub(crate) up_at: Instant,
    /// This node's numbers went on from what the peer expects.
    pub(crate) numbers_raised: bool,
    /// A request of the peer was accepted, last at this time, and how long from then on further ones are refused.
    pub(crate) was_accepted: bool,
    accepted_at: Instant,
    stands: Duration,
    /// A request of the peer that waits for what becomes of ours; 0 if none does.
    pub(crate) held_request: u64,
    /// When to connect next, and how long the wait was drawn from. The next one is drawn from twice that, unless the connection stood for
    /// a while or moved something in between.
    pub(crate) retry_at: Instant,
    backoff: Duration,
    /// It came up and has not gone down since; and the number of the first message that the peer had not acknowledged then.
    is_up: bool,
    first_sent: u64,
    /// Since it came up the peer acknowledged a message.
    has_moved: bool,
    /// While it is up and somebody waits for the peer: when to see whether it is there.
    pub(crate) probe_at: Option<Instant>,
    /// Time at which the peer was last known to be reachable, or got its entry.
    pub(crate) reachable_at: Instant,
    /// When it last had something to do.
    pub(crate) busy_at: Instant,
    /// Its endpoint failed, for this reason; it goes down as soon as all completions of requests were looked at.
    pub(crate) broken_by: Option<Broken>,
    /// How often it went down or an attempt ended, and why it last did.
    pub(crate) downs: u64,
    pub(crate) last_down: Slot<DownReason>,
}

/// A reason that may be missing, which is then all zero bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(core::num::NonZeroU8);

impl Broken {
    pub(crate) fn by(reason: DownReason) -> Self {
        Self(core::num::NonZeroU8::MIN.saturating_add(reason as u8))
    }

    pub(crate) fn reason(self) -> DownReason {
        let index = usize::from(self.0.get() - 1);
        DownReason::ALL.get(index).copied().unwrap_or(DownReason::Broken)
    }
}

impl Reconnect {
    pub(crate) const EMPTY: Self = Self {
        was_up: false,
        up_at: Instant::ORIGIN,
        numbers_raised: false,
        was_accepted: false,
        accepted_at: Instant::ORIGIN,
        stands: Duration::ZERO,
        held_request: 0,
        retry_at: Instant::ORIGIN,
        backoff: Duration::ZERO,
        is_up: false,
        first_sent: 0,
        has_moved: false,
        probe_at: None,
        reachable_at: Instant::ORIGIN,
        busy_at: Instant::ORIGIN,
        broken_by: None,
        downs: 0,
        last_down: Slot::empty(DownReason::NoResources),
    };

    /// Whether a request of the peer was accepted less than `apart` ago.
    pub(crate) fn accepted_within(&self, now: Instant, apart: Duration) -> bool {
        self.was_accepted && now < self.accepted_at + apart
    }

    /// How long the accepted connection stands.
    pub(crate) const fn stands(&self) -> Duration {
        self.stands
    }

    pub(crate) fn accepted(&mut self, now: Instant) {
        let calm = !self.accepted_within(now, CALM);
        self.stands = if calm { STANDS } else { (self.stands * 2).clamp(STANDS, STANDS_MAX) };
        (self.was_accepted, self.accepted_at) = (true, now);
    }

    pub(crate) const fn came_up(&mut self, now: Instant, first_sent: u64) {
        (self.was_up, self.is_up, self.up_at) = (true, true, now);
        (self.first_sent, self.has_moved) = (first_sent, false);
        self.probe_at = None;
    }

    /// The endpoint is gone, on which the peer acknowledged messages up to this number. If it had any, the next connection is made at once:
    /// a peer that only connects and hangs up would have that without end.
    pub(crate) const fn acknowledged(&mut self, highest: u64) {
        if self.is_up && highest >= self.first_sent {
            (self.backoff, self.has_moved) = (Duration::ZERO, true);
        }
    }

    /// Whether a request of the peer was accepted a short time ago.
    pub(crate) fn is_new(&self, now: Instant) -> bool {
        self.accepted_within(now, CALM)
    }

    /// Chooses when to connect next. Answers whether a connection has ended that was good for nothing: it neither stood for a while nor
    /// moved anything.
    pub(crate) fn wait(&mut self, now: Instant, random: u64) -> bool {
        let (ended, stood) = (core::mem::take(&mut self.is_up), now >= self.up_at + CALM);
        if ended {
            self.reachable_at = now;
        }
        if ended && stood {
            self.backoff = Duration::ZERO;
        }
        let most = self.backoff.as_nanos() as u64;
        self.retry_at = now + Duration::from_nanos(random.checked_rem(most).unwrap_or(0));
        self.backoff = (self.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        self.probe_at = None;
        ended && !stood && !self.has_moved
    }

    /// The entry is that of a peer that has been unreachable since `reachable_at`: attempts stay rare.
    pub(crate) const fn returns(&mut self, reachable_at: Instant) {
        (self.reachable_at, self.backoff) = (reachable_at, BACKOFF_MAX);
    }

    /// Whether so many attempts in a row came to nothing that the peer may never come back.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.backoff == BACKOFF_MAX
    }

    /// Remembers why the endpoint failed. That requests and receives were flushed says less than anything else.
    pub(crate) fn breaks(&mut self, reason: DownReason) {
        let before = self.broken_by.map(Broken::reason);
        if before.is_none() || !reason.is_flush() {
            self.broken_by = Some(Broken::by(reason));
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
        assert_eq!(state.broken_by.map(Broken::reason), Some(DownReason::Broken));
        state.breaks(DownReason::Disconnected);
        state.breaks(DownReason::Broken);
        assert_eq!(state.broken_by.map(Broken::reason), Some(DownReason::Disconnected));
        for reason in DownReason::ALL {
            assert_eq!(Broken::by(reason).reason(), reason);
        }
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

    /// A connection that neither stands nor moves anything is made no sooner than if it had not come up.
    #[test]
    fn coming_up_is_not_enough() {
        let (now, mut state) = (Instant::from_nanos(5), Reconnect::EMPTY);
        for _ in 0..15 {
            state.came_up(now, 7);
            state.acknowledged(6);
            state.wait(now, u64::MAX);
        }
        assert!(state.retry_at > now + BACKOFF_MAX / 4 && state.is_in_vain());
        // Nor is what was acknowledged before.
        state.acknowledged(7);
        assert!(state.is_in_vain());
        state.came_up(now, 7);
        state.acknowledged(7);
        state.wait(now, u64::MAX);
        assert_eq!(state.retry_at, now, "at once");
    }
}
