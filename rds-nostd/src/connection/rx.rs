//! What a connection receives.

use dat_nostd::{Duration, Instant};

use crate::frames::{Arena, Ring};
use crate::ids::{FrameId, MessageId};

/// How long a peer that has receives posted may take for a message, beside so much for each of its fragments. The HCA repeats a lost packet
/// for about half a second before it gives the connection up.
pub(crate) const PARTIAL_LIMIT: Duration = Duration::from_secs(4);
const PER_FRAGMENT: Duration = Duration::from_millis(16);
/// Time from the last arrival to the acknowledgement of a burst's tail.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(100);

/// A cookie that no receive has.
const REFUSED: u64 = u64::MAX;

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Rx {
    /// Number after that of the last complete message; survives reconnections.
    pub(crate) next_sequence: u64,
    /// Highest number received complete on this endpoint: what we acknowledge.
    pub(crate) ack_value: u64,
    pub(crate) ack_wanted: bool,
    /// A message arrived after the last acknowledgement left.
    pub(crate) is_unsaid: bool,
    /// An earlier endpoint went before the peer certainly had the acknowledgement of all messages. Survives reconnections.
    pub(crate) is_unsettled: bool,
    /// One acknowledgement frame is in flight, in the memory kept for it.
    pub(crate) ack_in_flight: bool,
    /// Time of the next look at the delayed acknowledgement; [`Instant::ORIGIN`] while no look is planned.
    ack_at: Instant,
    /// A message that has arrived in part, its last frame so far, and when it is too late for the rest.
    pub(crate) partial: Option<MessageId>,
    pub(crate) partial_last: Option<FrameId>,
    pub(crate) partial_until: Instant,
    /// Fragments of `partial` that were freed on arrival, because the message is too long. All of 256 but the first at most.
    pub(crate) discarded: u8,
    /// Until then the reserve is not for it: it was given it, and did not go on. This outlives the endpoint.
    pub(crate) barred_until: Instant,
    pub(crate) ring: Ring,
    /// Cookie of the receives of this endpoint, without a frame; 0 without an endpoint, and [`REFUSED`] after the peer broke the protocol.
    cookie: u64,
    /// Short messages that wait to be read.
    pub(crate) arena: Arena,
    /// Frames that count against the share: those of the ring, of the unfinished message and of unread messages.
    pub(crate) used: u32,
}

impl Rx {
    pub(crate) const EMPTY: Self = Self {
        next_sequence: 0,
        ack_value: 0,
        ack_wanted: false,
        is_unsaid: false,
        is_unsettled: false,
        ack_at: Instant::ORIGIN,
        ack_in_flight: false,
        partial: None,
        partial_last: None,
        partial_until: Instant::ORIGIN,
        discarded: 0,
        barred_until: Instant::ORIGIN,
        ring: Ring::EMPTY,
        cookie: 0,
        arena: Arena::NONE,
        used: 0,
    };

    /// From here on receives have this cookie, but for the frame in it.
    pub(crate) const fn expect(&mut self, cookie: u64) {
        self.cookie = cookie;
    }

    /// The frame of a receive, if the receive counts: it is one of this endpoint, and the peer keeps to the protocol.
    #[inline]
    pub(crate) const fn frame_of(&self, cookie: u64) -> Option<FrameId> {
        let frame = cookie ^ self.cookie;
        if frame <= u16::MAX as u64 { FrameId::from_bits(frame as u16) } else { None }
    }

    /// The peer broke the protocol: nothing that arrives on this endpoint counts any more.
    pub(crate) const fn refuse(&mut self) {
        self.cookie = REFUSED;
    }

    /// A post carried `ack_value`.
    #[inline]
    pub(crate) const fn acknowledgement_left(&mut self) {
        (self.ack_wanted, self.is_unsaid) = (false, false);
    }

    /// Returns whether an acknowledgement has to leave or has not completed.
    pub(crate) const fn owes_acknowledgement(&self) -> bool {
        self.ack_wanted || self.is_unsaid || self.ack_in_flight
    }

    /// Returns whether the delayed acknowledgement needs no new look: nothing arrived, or the deadline of a connection that
    /// `is_armed` is early enough.
    #[inline]
    pub(crate) fn is_planned(&self, is_armed: bool, now: Instant) -> bool {
        if self.ack_at == Instant::ORIGIN { !self.is_unsaid } else { is_armed && now < self.ack_at }
    }

    /// Sets `ack_wanted` once nothing has arrived for [`ACK_DELAY`] and no message has carried the acknowledgement. Returns the
    /// time of the next look.
    ///
    /// One look per delay serves any number of arrivals, because `busy_at` is the time of the last one.
    pub(crate) fn delay_acknowledgement(&mut self, busy_at: Instant, now: Instant) -> Instant {
        if now >= self.ack_at {
            let quiet_at = busy_at + ACK_DELAY;
            self.ack_wanted |= self.is_unsaid && now >= quiet_at;
            let waits = self.is_unsaid && !self.ack_wanted;
            self.ack_at = if waits { quiet_at } else { Instant::ORIGIN };
        }
        if self.ack_at == Instant::ORIGIN { Instant::MAX } else { self.ack_at }
    }

    /// Returns whether a look at the delayed acknowledgement is planned.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.ack_at != Instant::ORIGIN
    }

    /// A message of so many fragments has begun to arrive.
    pub(crate) fn begin(&mut self, message: MessageId, fragments: usize, now: Instant) {
        (self.partial, self.partial_last, self.discarded) = (Some(message), Some(message.first()), 0);
        self.partial_until = now + PARTIAL_LIMIT + PER_FRAGMENT * fragments as u32;
    }

    /// While it has no receive its peer cannot be late.
    pub(crate) fn excuse(&mut self, now: Instant) {
        if self.partial.is_some() && self.ring.waiting() == 0 {
            self.partial_until = self.partial_until.max(now + PARTIAL_LIMIT);
        }
    }

    /// Frames that wait for messages to come.
    pub(crate) const fn waiting(&self) -> u32 {
        self.ring.waiting() as u32
    }

    /// Frames of the unfinished message and of those that wait to be read.
    pub(crate) const fn held(&self) -> u32 {
        self.used.saturating_sub(self.waiting())
    }

    /// A peer that restarted would take an old acknowledgement for one of its new messages, so there is none at first.
    pub(crate) const fn reset(&mut self) {
        (self.ack_value, self.ack_in_flight) = (0, false);
        self.acknowledgement_left();
        self.ack_at = Instant::ORIGIN;
        (self.partial, self.partial_last) = (None, None);
        self.cookie = 0;
    }
}
