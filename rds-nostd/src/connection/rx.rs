//! The receiving half of a connection.

use dat_nostd::{Duration, Instant};

use crate::frames::{Arena, Ring};
use crate::ids::{FrameId, MessageId};
use crate::quota::Used;

/// Time limit of a message while receives are posted, plus a time per fragment. The HCA retries a
/// lost packet for about half a second before it breaks the connection.
pub(crate) const PARTIAL_LIMIT: Duration = Duration::from_secs(4);
const PER_FRAGMENT: Duration = Duration::from_millis(16);
/// Delay from the last arrival to the acknowledgement of a burst's tail.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(100);

/// Sentinel that matches no receive's cookie.
const REFUSED: u64 = u64::MAX;

with_empty! {
    /// The receiving half of a connection.
    #[derive(Debug)]
    pub(crate) struct Rx {
        /// Highest sequence number completely received on this endpoint: the value of our
        /// acknowledgements.
        pub(crate) ack_value: u64 = 0,
        /// Acknowledgement in the last message of the current run.
        pub(crate) heard: u64 = 0,
        pub(crate) ack_wanted: bool = false,
        /// A message has arrived since the last acknowledgement was sent.
        pub(crate) is_unsaid: bool = false,
        /// The connection's acknowledgement frame is in flight.
        pub(crate) ack_in_flight: bool = false,
        /// Time of the next check of the delayed acknowledgement; [`Instant::ORIGIN`] if none is
        /// scheduled.
        ack_at: Instant = Instant::ORIGIN,
        /// The unfinished message, its last frame so far, and its deadline.
        pub(crate) partial: Option<MessageId> = None,
        pub(crate) partial_last: Option<FrameId> = None,
        pub(crate) partial_until: Instant = Instant::ORIGIN,
        /// Fragments of `partial` that were freed on arrival, because the message is too long. At
        /// most 255 of 256.
        pub(crate) discarded: u8 = 0,
        pub(crate) ring: Ring = Ring::EMPTY,
        /// Cookie of the endpoint's receives, without a frame; 0 without an endpoint, and
        /// [`REFUSED`] after a protocol violation.
        cookie: u64 = 0,
        /// Arena for short unread messages.
        pub(crate) arena: Arena = Arena::NONE,
        /// Frames that count against the share: in the ring, in the unfinished message, and in
        /// unread messages.
        pub(crate) used: Used = Used::NONE,
    }
}

impl Rx {
    /// Sets the cookie of receives, without the frame.
    pub(crate) const fn expect(&mut self, cookie: u64) {
        self.cookie = cookie;
    }

    /// Returns the frame of a receive, if the receive belongs to this endpoint and the peer has not
    /// violated the protocol.
    #[inline]
    pub(crate) const fn frame_of(&self, cookie: u64) -> Option<FrameId> {
        let frame = cookie ^ self.cookie;
        if frame.wrapping_sub(1) < u16::MAX as u64 { FrameId::from_bits(frame as u16) } else { None }
    }

    /// Records the sequence number of a complete message, and its request for an acknowledgement.
    #[inline]
    pub(crate) const fn completed(&mut self, sequence: u64, is_asked: bool) {
        (self.ack_value, self.is_unsaid) = (sequence, true);
        self.ack_wanted |= is_asked;
    }

    /// Ignores everything that arrives on this endpoint from now on, after a protocol violation.
    pub(crate) const fn refuse(&mut self) {
        self.cookie = REFUSED;
    }

    /// Records that a post carried `ack_value`.
    #[inline]
    pub(crate) const fn acknowledgement_left(&mut self) {
        (self.ack_wanted, self.is_unsaid) = (false, false);
    }

    /// Returns whether an acknowledgement must be sent, or has not completed.
    pub(crate) const fn owes_acknowledgement(&self) -> bool {
        self.ack_wanted || self.is_unsaid || self.ack_in_flight
    }

    /// Sets `ack_wanted` once nothing has arrived for [`ACK_DELAY`] and no message has carried the
    /// acknowledgement. Returns the time of the next check.
    ///
    /// A single check per delay serves any number of arrivals, because `busy_at` is the time of the
    /// last one.
    pub(crate) fn delay_acknowledgement(&mut self, busy_at: Instant, now: Instant) -> Instant {
        if now >= self.ack_at {
            let quiet_at = busy_at + ACK_DELAY;
            self.ack_wanted |= self.is_unsaid && now >= quiet_at;
            let waits = self.is_unsaid && !self.ack_wanted;
            self.ack_at = if waits { quiet_at } else { Instant::ORIGIN };
        }
        if self.ack_at == Instant::ORIGIN { Instant::MAX } else { self.ack_at }
    }

    /// Returns whether a check of the delayed acknowledgement is scheduled.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.ack_at != Instant::ORIGIN
    }

    /// Starts an unfinished message with this number of fragments.
    pub(crate) fn begin(&mut self, message: MessageId, fragments: usize, now: Instant) {
        (self.partial, self.partial_last, self.discarded) = (Some(message), Some(message.first()), 0);
        self.partial_until = now + PARTIAL_LIMIT + PER_FRAGMENT * fragments as u32;
    }

    /// Extends the deadline of the unfinished message while no receive is posted.
    pub(crate) fn excuse(&mut self, now: Instant) {
        if self.partial.is_some() && self.ring.waiting() == 0 {
            self.partial_until = self.partial_until.max(now + PARTIAL_LIMIT);
        }
    }

    /// Returns the number of frames of the unfinished message and of unread messages.
    pub(crate) const fn held(&self) -> u32 {
        self.used.count().saturating_sub(self.ring.waiting() as u32)
    }

    /// No acknowledgement at first: a restarted peer would take an old one for one of its new
    /// messages.
    pub(crate) const fn reset(&mut self) {
        (self.ack_value, self.ack_in_flight) = (0, false);
        self.acknowledgement_left();
        (self.ack_at, self.cookie) = (Instant::ORIGIN, 0);
        (self.partial, self.partial_last) = (None, None);
    }
}
