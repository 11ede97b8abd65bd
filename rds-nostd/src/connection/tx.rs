//! The sending half of a connection.

use dat_nostd::Instant;

use crate::ids::{FrameId, MessageId};
use crate::limits::Limits;
use crate::quota::Buffer;
use crate::wire::{FRAGMENT_LEN, MAX_MESSAGE_LEN, fragments};

/// Interval of messages that request an acknowledgement, as in Linux.
const MESSAGES_PER_ACK: u64 = 8;
/// Sentinel that makes the next message request an acknowledgement.
const NEVER_ASKED: u64 = 1 << 63;

with_empty! {
    /// The sending half of a connection.
    #[derive(Debug)]
    pub(crate) struct Tx {
        /// First message that is not posted completely, and its next frame if it is partly posted.
        pub(crate) next: Option<MessageId> = None,
        pub(crate) cursor: Option<FrameId> = None,
        /// Messages with an operation that has not completed.
        pub(crate) operations: u16 = 0,
        /// Sends posted, and sends known to be complete, on this endpoint.
        pub(crate) posts: u64 = 0,
        pub(crate) completed: u64 = 0,
        /// An acknowledged message may still lack the completion of its last post, and count in the
        /// send buffer of its socket.
        pub(crate) waits_for_hca: bool = false,
        /// No message of the queue has completed: until the next completion an acknowledgement
        /// releases nothing.
        pub(crate) none_completed: bool = false,
        /// Number of the last post with a CQE.
        pub(crate) signalled: u64 = 0,
        /// Last post of the fast path: up to it, `sendmsg` may post single-frame messages without
        /// extensions directly. No message precedes them, the send queue has space, no port of the
        /// peer is congested, and neither a CQE nor an acknowledgement request is due. 0 if any of
        /// this is uncertain.
        pub(crate) fast_until: u64 = 0,
        /// Cookie of a message's post, without its number.
        pub(crate) cookies: u64 = 0,
        /// Highest acknowledgement received on this endpoint.
        pub(crate) highest_ack: u64 = 0,
        /// Sequence number of the last message on this endpoint that requested an acknowledgement,
        /// and number of its last post.
        asked: u64 = 0,
        asked_post: u64 = 0,
        /// Fragments by which the peer's maximum message is shorter than [`MAX_MESSAGE_LEN`], by
        /// its private data.
        shorter: u16 = 0,
        /// Pings and pongs that the peer has not acknowledged.
        pub(crate) pongs: u8 = 0,
        /// Sequence number of the last ping on this endpoint; 0 before the first.
        pub(crate) ping: u64 = 0,
        /// Time at which the connection breaks because a call waits for cancelled messages in
        /// flight, or for unbinds of windows. Completions postpone it. [`Instant::ORIGIN`] without
        /// such a call.
        pub(crate) cancelled_until: Instant = Instant::ORIGIN,
    }
}

impl Tx {
    /// Stores the peer's limit in bytes, rounded up to fragments.
    pub(crate) const fn set_longest(&mut self, longest: u32) {
        self.shorter = fragments(MAX_MESSAGE_LEN).saturating_sub(fragments(longest as usize)) as u16;
    }

    /// Returns the maximum bytes of a message that the peer accepts.
    pub(crate) const fn longest(&self) -> usize {
        MAX_MESSAGE_LEN - self.shorter as usize * FRAGMENT_LEN
    }

    /// Returns the number of posts that have not completed.
    #[inline]
    pub(crate) const fn in_flight(&self) -> u64 {
        self.posts - self.completed
    }

    /// Returns whether a send queue of this depth has space for a post and an acknowledgement.
    #[inline]
    pub(crate) const fn has_room(&self, depth: u16) -> bool {
        self.in_flight() + 1 < depth as u64
    }

    /// Returns whether a message of `len` bytes must request an acknowledgement because of its
    /// socket's send buffer: from half of the buffer on, unless a request is in flight and many
    /// more such messages fit.
    pub(crate) const fn hurries(&self, sent: &Buffer, len: usize) -> bool {
        let is_answered = self.asked <= self.highest_ack;
        !sent.is_ample(len) && (is_answered || sent.is_filled_by(len) || len >= sent.limit() / 8)
    }

    /// Returns whether message `sequence`, with its last frame in post `number`, requests an
    /// acknowledgement: enough messages went without, or it is the first on its endpoint.
    #[inline]
    pub(crate) const fn asks(&self, sequence: u64, number: u64, unasked_frames: u32) -> bool {
        sequence.wrapping_sub(self.asked) > MESSAGES_PER_ACK
            || number.wrapping_sub(self.asked_post) > unasked_frames as u64
    }

    /// Returns whether nothing follows from an acknowledgement but a higher
    /// [`highest_ack`](Self::highest_ack), which it sets: nothing is free before the HCA's
    /// completion, which releases several messages at once. `next_tx`: number of the next message.
    #[inline]
    pub(crate) const fn hears(&mut self, ack: u64, next_tx: u64) -> bool {
        let is_all = self.none_completed && self.next.is_none() && ack < next_tx;
        if is_all && ack > self.highest_ack {
            self.acknowledge(ack);
        }
        ack <= self.highest_ack
    }

    /// Raises the highest acknowledgement.
    #[inline]
    pub(crate) const fn acknowledge(&mut self, ack: u64) {
        (self.highest_ack, self.waits_for_hca) = (ack, true);
    }

    pub(crate) const fn note_asked(&mut self, sequence: u64, number: u64) {
        (self.asked, self.asked_post) = (sequence, number);
    }

    /// Returns the last post of the fast path, see [`fast_until`](Self::fast_until), if the
    /// next message has this number, after `ahead` messages of one frame that are not counted yet.
    pub(crate) fn fast_up_to(&self, limits: &Limits, unasked_frames: u32, sequence: u64, ahead: u64) -> u64 {
        let number = self.posts + 1 + ahead;
        if self.asks(sequence, number, unasked_frames) {
            return 0;
        }
        // From here on each post is a message.
        let of_messages = number + MESSAGES_PER_ACK - (sequence - self.asked);
        let of_frames = self.asked_post + u64::from(unasked_frames);
        let of_reports = self.signalled + u64::from(limits.signal_every) - 1;
        let of_queue = self.completed + u64::from(limits.send_depth) - 1;
        of_messages.min(of_frames).min(of_reports).min(of_queue)
    }

    /// Starts an endpoint. Its first message requests an acknowledgement.
    pub(crate) const fn begin(&mut self, cookies: u64) {
        (self.asked_post, self.cookies, self.fast_until) = (NEVER_ASKED, cookies, 0);
    }

    /// Resets it for an endpoint whose first message is `next`.
    pub(crate) const fn reset(&mut self, next: Option<MessageId>) {
        (self.posts, self.completed, self.signalled, self.fast_until) = (0, 0, 0, 0);
        (self.waits_for_hca, self.none_completed) = (false, false);
        (self.highest_ack, self.asked, self.ping) = (0, 0, 0);
        self.cancelled_until = Instant::ORIGIN;
        (self.next, self.cursor) = (next, None);
    }
}
