//! What a connection sends.

use dat_nostd::Instant;

use crate::frames::Queue;
use crate::ids::{FrameId, MessageId};
use crate::wire::{FRAGMENT_LEN, MAX_MESSAGE_LEN, fragments};

/// After so many messages one asks for an acknowledgement, as Linux does.
const MESSAGES_PER_ACK: u64 = 8;
/// As the post that asked: so far behind any that the next one asks.
const NEVER_ASKED: u64 = 1 << 63;

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Tx {
    /// Number of the next message; survives reconnections.
    pub(crate) next_sequence: u64,
    /// All messages that the peer's RDS has not acknowledged, or that the HCA is not done with, oldest first.
    pub(crate) queue: Queue,
    /// The first of them that is not posted completely, and the next frame of it if some of it is.
    pub(crate) next: Option<MessageId>,
    pub(crate) cursor: Option<FrameId>,
    /// Messages with an operation that is not over.
    pub(crate) operations: u16,
    /// Frames of all of them.
    pub(crate) frames: u32,
    /// Sends posted, and sends known to be complete, since the endpoint was made.
    pub(crate) posts: u64,
    pub(crate) completed: u64,
    /// An acknowledged message may still lack the completion of its last post.
    pub(crate) waits_for_hca: bool,
    /// Number of the last post that will be reported.
    pub(crate) signalled: u64,
    /// Up to this number a post may be a message of one frame with nothing to it, straight from `sendmsg`: nothing is before it, there is
    /// room, the peer takes messages on all ports, and neither a report nor an acknowledgement is asked for. 0 whenever that is not certain.
    pub(crate) plain_until: u64,
    /// The cookie of a message's post, but for its number.
    pub(crate) cookies: u64,
    /// Highest acknowledgement seen on this endpoint.
    pub(crate) highest_ack: u64,
    /// Number of the last message on this endpoint that asked for an acknowledgement, and of the post of its last frame.
    asked: u64,
    asked_post: u64,
    /// Fragments by which the longest message that the peer accepts is shorter than
    /// [`MAX_MESSAGE_LEN`], as far as its requests and replies say.
    shorter: u16,
    /// Pings and pongs that the peer has not acknowledged.
    pub(crate) pongs: u8,
    /// Number of the last ping on this endpoint; 0 before the first.
    pub(crate) ping: u64,
    /// Time at which the connection breaks because a call waits for cancelled messages in flight, or for unbinds of windows.
    /// Completions postpone it. [`Instant::ORIGIN`] without such a call.
    pub(crate) cancelled_until: Instant,
}

impl Tx {
    pub(crate) const EMPTY: Self = Self {
        next_sequence: 0,
        queue: Queue::EMPTY,
        next: None,
        cursor: None,
        operations: 0,
        frames: 0,
        posts: 0,
        completed: 0,
        waits_for_hca: false,
        signalled: 0,
        plain_until: 0,
        cookies: 0,
        highest_ack: 0,
        asked: 0,
        asked_post: 0,
        shorter: 0,
        pongs: 0,
        ping: 0,
        cancelled_until: Instant::ORIGIN,
    };

    /// Returns whether the peer lacks a message, or has not acknowledged it.
    pub(crate) const fn has_unacknowledged(&self) -> bool {
        !self.queue.is_empty() && self.highest_ack + 1 < self.next_sequence
    }

    /// Stores the limit of the peer in bytes, rounded up to fragments.
    pub(crate) const fn set_longest(&mut self, longest: u32) {
        self.shorter = fragments(MAX_MESSAGE_LEN).saturating_sub(fragments(longest as usize)) as u16;
    }

    /// Longest message that the peer accepts, in bytes.
    pub(crate) const fn longest(&self) -> usize {
        MAX_MESSAGE_LEN - self.shorter as usize * FRAGMENT_LEN
    }

    /// Posts that the HCA is not known to be done with.
    #[inline]
    pub(crate) const fn in_flight(&self) -> u64 {
        self.posts - self.completed
    }

    /// Whether so deep a send queue takes one more post and then an acknowledgement.
    #[inline]
    pub(crate) const fn has_room(&self, depth: u16) -> bool {
        self.in_flight() + 1 < depth as u64
    }

    /// Whether a socket with so many bytes outstanding of `buffer`, those of its new message included, hurries the peer's
    /// acknowledgement: from half of it on, unless one is on its way and many more such messages fit.
    #[inline]
    pub(crate) const fn hurries(&self, outstanding: usize, buffer: usize, len: usize) -> bool {
        outstanding >= buffer / 2
            && (self.asked <= self.highest_ack || outstanding >= buffer || len >= buffer / 8)
    }

    /// Whether the message `sequence`, whose last frame will be post `number`, asks for an acknowledgement: because enough went
    /// without, or as the first one on its endpoint.
    #[inline]
    pub(crate) const fn asks(&self, sequence: u64, number: u64, unasked_frames: u32) -> bool {
        sequence.wrapping_sub(self.asked) > MESSAGES_PER_ACK
            || number.wrapping_sub(self.asked_post) > unasked_frames as u64
    }

    #[inline]
    pub(crate) const fn note_asked(&mut self, sequence: u64, number: u64) {
        (self.asked, self.asked_post) = (sequence, number);
    }

    /// The number of the last post that asks for nothing, see [`plain_until`](Self::plain_until), if there is room up to `last`.
    pub(crate) fn plain_up_to(&self, last: u64, signal_every: u16, unasked_frames: u32) -> u64 {
        let number = self.posts + 1;
        if self.asks(self.next_sequence, number, unasked_frames) {
            return 0;
        }
        // From here on each post is a message.
        let of_messages = number + MESSAGES_PER_ACK - (self.next_sequence - self.asked);
        let of_frames = self.asked_post + u64::from(unasked_frames);
        let of_reports = self.signalled + u64::from(signal_every) - 1;
        of_messages.min(of_frames).min(of_reports).min(last)
    }

    /// The endpoint is connected: the first message asks.
    pub(crate) const fn begin(&mut self, cookies: u64) {
        self.asked_post = NEVER_ASKED;
        self.cookies = cookies;
        self.plain_until = 0;
    }

    pub(crate) const fn reset(&mut self) {
        self.plain_until = 0;
        (self.posts, self.completed, self.signalled) = (0, 0, 0);
        self.waits_for_hca = false;
        (self.highest_ack, self.asked, self.ping) = (0, 0, 0);
        self.cancelled_until = Instant::ORIGIN;
        self.next = self.queue.head();
        self.cursor = None;
    }
}
