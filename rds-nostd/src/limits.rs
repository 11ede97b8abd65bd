//! Limits of a node, derived from its configuration and memory.
//!
//! Frames are divided, so that a lack of frames blocks no message permanently and no peer can
//! exhaust those of others:
//!
//! - Receives never use the frames of the sending side. Each connection has a share of them.
//!   Messages whose acknowledgement was not requested may occupy their frames until there is more
//!   traffic, so they are limited to the share. The rest is common: a connection may use as much of
//!   it as it leaves to the other connections.
//! - Each connection also has a share of the receiving side, for posted receives and unread
//!   messages, and the rest is common in the same way. A reserve serves one connection at a time,
//!   to complete a message that has begun to arrive. Connections with incomplete long messages thus
//!   cannot block each other.

use crate::config::RdsConfig;
use crate::error::RdsError;
use crate::frames::Ring;
use crate::quota::Shares;
use crate::wire::{FRAGMENT_LEN, MAP_FRAGMENTS, MAX_MESSAGE_LEN, fragments};

/// Interval of posts with a CQE, which also completes the posts before it.
const SIGNAL_EVERY: u16 = 16;
/// Batch size of receives, if twice as many may be posted.
const REFILL: u16 = 16;
/// Maximum entries of a send queue that are reserved for binds.
const KEPT_FOR_BINDS: u16 = 8;
/// Frames that a connection may send without an acknowledgement request while frames are plenty,
/// even if its share is smaller.
const UNASKED: u32 = 8;
/// Frames after which a message requests an acknowledgement in any case: Linux's 16 MiB.
const MOST_UNASKED: u32 = 4096;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Division of the frames of each side.
    pub(crate) sending: Shares,
    pub(crate) receiving: Shares,
    /// Frames of the receiving side that only continue an unfinished message.
    pub(crate) reserve: u32,
    /// Receives posted per connection, a power of two.
    pub(crate) receive_depth: u16,
    /// Number of posted receives at which a batch is posted, to ring few doorbells.
    pub(crate) refill_at: u16,
    /// Requests in flight per connection at which no message is begun, and at which nothing is
    /// posted. The entries in between are reserved for binds of memory windows.
    pub(crate) send_depth: u16,
    pub(crate) request_depth: u16,
    /// Interval of posts with a CQE.
    pub(crate) signal_every: u16,
    /// Frames that a connection sends without an acknowledgement request: a part of its share.
    unasked_frames: u32,
    /// Frames in use beyond all shares up to which a connection may exceed `unasked_frames`: the
    /// longest message still fits then. Unlimited if the share is large enough.
    unasked_beyond: u32,
    /// Frames of unread messages with which a socket is congested, and frames of the common part in
    /// use above which congested sockets are not read from.
    pub(crate) congested_frames: usize,
    pub(crate) congested_common: u32,
    /// Maximum bytes of a message to a peer, to this node itself, and from a peer.
    pub(crate) longest_sent: usize,
    pub(crate) longest_local: usize,
    pub(crate) longest_received: usize,
}

impl Limits {
    /// Divides `frames` frames among `connections` peers.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`]: too few to make progress.
    pub(crate) fn new(config: &RdsConfig, frames: usize, connections: usize) -> Result<Self, RdsError> {
        let most = fragments(MAX_MESSAGE_LEN);
        let send_frames = config.send_frames.min(frames / 2);
        let receive_frames = frames - send_frames;
        // The congestion map is sent from separate frames.
        let sendable = send_frames.saturating_sub(usize::from(MAP_FRAGMENTS));
        let sending = divide(sendable, connections, 1, 2);
        let unasked = (sending.share() / 2).clamp(1, MOST_UNASKED);
        let longest = (sending.share() + sending.common()).saturating_sub(unasked) as usize;
        let reserve = most.min(receive_frames / 2);
        // Loopback messages have a share, too.
        let receiving = divide(receive_frames - reserve, connections + 1, 3, 4);
        let depth = u16::try_from(receiving.share()).unwrap_or(u16::MAX).min(config.receive_depth);
        // Each slot of the receive queue has a frame.
        let receive_depth = depth.min(Ring::MOST).checked_ilog2().map_or(0, |log| 1 << log);
        let local = (receiving.share() + receiving.common()) as usize + reserve;
        if connections == 0
            || receive_depth < 2
            || config.send_depth < 4
            || sending.share() == 0
            || longest == 0
        {
            return Err(RdsError::InvalidArgument);
        }
        Ok(Self {
            sending,
            receiving,
            reserve: reserve as u32,
            receive_depth,
            refill_at: receive_depth - receive_depth.div_ceil(2).min(REFILL),
            send_depth: config.send_depth - (config.send_depth / 16).min(KEPT_FOR_BINDS),
            request_depth: config.send_depth,
            signal_every: SIGNAL_EVERY.min(config.send_depth / 2),
            unasked_frames: unasked,
            unasked_beyond: if unasked < UNASKED {
                longest.saturating_sub(most + 2 * UNASKED as usize) as u32
            } else {
                u32::MAX
            },
            congested_frames: ((receive_frames - reserve) / 4).max(1),
            // One peer can use half of the common frames at most.
            congested_common: receiving.common() / 4,
            // At most the limit for receives, so that nodes with little memory do not send messages
            // that their like refuse.
            longest_sent: longest.min(reserve) * FRAGMENT_LEN,
            longest_local: local.min(most) * FRAGMENT_LEN,
            longest_received: reserve * FRAGMENT_LEN,
        })
    }

    /// Returns the frames that a connection may send without an acknowledgement request while
    /// `beyond` frames are in use beyond all shares.
    pub(crate) fn unasked(&self, beyond: u32) -> u32 {
        if self.is_plenty(beyond) { self.unasked_frames.max(UNASKED) } else { self.unasked_frames }
    }

    /// Returns whether frames are plenty, so that connections may exceed `unasked_frames`.
    #[inline]
    pub(crate) const fn is_plenty(&self, beyond: u32) -> bool {
        beyond < self.unasked_beyond
    }
}

/// Gives each of `users` an equal share of `of` out of `parts` parts of the frames. The rest is
/// common.
fn divide(frames: usize, users: usize, of: usize, parts: usize) -> Shares {
    let share = (frames / parts * of).checked_div(users).unwrap_or(0);
    Shares::new(share as u32, (frames - share * users) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Generation;
    use crate::quota::Used;
    use proptest::prelude::*;

    const CONFIG: RdsConfig = RdsConfig::new(Generation::UNKNOWN);

    fn used(mut shares: Shares, count: u32) -> Used {
        let mut used = Used::NONE;
        shares.take(&mut used, count);
        used
    }

    #[test]
    fn the_default_takes_the_longest_message_both_ways() {
        let limits = Limits::new(&CONFIG, 1024, 8).unwrap();
        assert_eq!((limits.longest_sent, limits.longest_received), (MAX_MESSAGE_LEN, MAX_MESSAGE_LEN));
        assert_eq!(
            (limits.sending.share(), limits.receive_depth, limits.longest_local),
            (31, 16, MAX_MESSAGE_LEN)
        );
    }

    #[test]
    fn too_little_is_refused() {
        let new = |config: &RdsConfig, frames, connections| Limits::new(config, frames, connections).err();
        let config = CONFIG;
        let refused = Some(RdsError::InvalidArgument);
        assert_eq!(new(&config, 1024, 0), refused, "no connection");
        assert_eq!(new(&config, 0, 1), refused, "no frame");
        assert_eq!(new(&config, 8, 4), refused, "fewer frames than connections need");
        assert_eq!(new(&RdsConfig { send_depth: 3, ..config }, 1024, 4), refused);
        assert_eq!(new(&RdsConfig { receive_depth: 1, ..config }, 1024, 4), refused);
        assert_eq!(new(&RdsConfig { send_frames: 4, ..config }, 1024, 4), refused);
        assert_eq!(new(&config, 64, 2), None);
    }

    proptest! {
        /// For any configuration, the shares fit in the frames.
        #[test]
        fn shares_fit(frames in 0usize..5000, connections in 0usize..=255, send_frames in 0usize..5000,
                      receive_depth: u16, send_depth: u16) {
            let config = RdsConfig { send_frames, receive_depth, send_depth, ..CONFIG };
            let Ok(limits) = Limits::new(&config, frames, connections) else { return Ok(()) };
            let all = |shares: Shares, users| shares.share() as usize * users + shares.common() as usize;
            let sent = usize::from(MAP_FRAGMENTS) + all(limits.sending, connections);
            let received = limits.reserve as usize + all(limits.receiving, connections + 1);
            prop_assert!(sent + received <= frames);
            prop_assert!(u32::from(limits.receive_depth) <= limits.receiving.share());
            prop_assert!(limits.longest_received <= limits.reserve as usize * FRAGMENT_LEN);
            prop_assert!(limits.longest_local <= received * FRAGMENT_LEN);
            let idle = limits.unasked_frames.min(limits.sending.share());
            prop_assert!(fragments(limits.longest_sent) <= limits.sending.fair_room(used(limits.sending, idle)) as usize);
            // Checked with the maximum that other connections may have sent without a request, and
            // the connection's own.
            let (mut shares, beyond) = (limits.sending, limits.unasked_beyond);
            shares.take(&mut { Used::NONE }, shares.share() + if beyond == u32::MAX { 0 } else { beyond });
            prop_assert!(fragments(limits.longest_sent) <= shares.fair_room(used(shares, limits.unasked(0))) as usize);
            prop_assert!(limits.signal_every >= 2 && limits.signal_every < limits.send_depth);
        }
    }
}
