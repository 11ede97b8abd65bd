//! What a configuration comes to with the memory that there is.
//!
//! Nothing that waits may wait for ever because frames are short, and no peer may take what others need, so frames are divided:
//!
//! - The sending side has a part that receives never take, and of it each connection has a share. Messages that nobody asked an
//!   acknowledgement for may stay in it until there is more traffic; they are kept few enough to fit into the share. The rest is
//!   common: a connection may have as much of it as it leaves to the others.
//! - Of the receiving side, too, each connection has a share, for what it has posted and for what nobody read yet, and the rest is
//!   common in the same way. A reserve is for one connection at a time, to go on with a message that has begun to arrive: connections that
//!   each hold a part of a long message do not block each other.

use crate::config::RdsConfig;
use crate::error::RdsError;
use crate::frames::{Ring, Shares};
use crate::wire::{FRAGMENT_LEN, MAP_FRAGMENTS, MAX_MESSAGE_LEN, fragments};

/// Every so many posts one is reported by the HCA, which reports the ones before it too.
const SIGNAL_EVERY: u16 = 16;
/// Receives posted at once, if there may be twice as many.
const REFILL: u16 = 16;
/// Places of a send queue that are kept for binds, at most.
const KEPT_FOR_BINDS: u16 = 8;
/// Frames that a connection may send without asking, however small its share, while frames are plenty.
const UNASKED: u32 = 8;
/// Frames after which a message asks for an acknowledgement in any case: Linux's 16 MiB.
const MOST_UNASKED: u32 = 4096;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How the frames of either side are divided.
    pub(crate) sending: Shares,
    pub(crate) receiving: Shares,
    /// Frames of the receiving side that only an unfinished message is continued with.
    pub(crate) reserve: u32,
    /// Receives kept posted for each connection, a power of two.
    pub(crate) receive_depth: u16,
    /// With no more than so many posted there are new ones: several at once, so that the HCA is told seldom.
    pub(crate) refill_at: u16,
    /// Requests in flight for each connection at which no message is begun, and at which nothing is: the places between are kept for binds of
    /// memory windows.
    pub(crate) send_depth: u16,
    pub(crate) request_depth: u16,
    /// Posts of which one is reported.
    pub(crate) signal_every: u16,
    /// Frames that a connection sends without asking for an acknowledgement: those of its share, but for some to ask with.
    unasked_frames: u32,
    /// Frames in use beyond all shares up to which it may send more: with them in use the longest message still finds room. No limit
    /// if the share is large enough.
    unasked_beyond: u32,
    /// Frames of unread messages with which a socket counts as congested, and frames used of the common part with which those do that
    /// are not read from.
    pub(crate) congested_frames: usize,
    pub(crate) congested_common: u32,
    /// The longest message to a peer, to this node itself, and from a peer; bytes.
    pub(crate) longest_sent: usize,
    /// The longest to a peer that fits into one frame.
    pub(crate) longest_at_once: usize,
    pub(crate) longest_local: usize,
    pub(crate) longest_received: usize,
}

impl Limits {
    /// With `frames` frames for `connections` peers.
    ///
    /// # Errors
    /// [`RdsError::InvalidArgument`] if that is too little to move anything.
    pub(crate) fn new(config: &RdsConfig, frames: usize, connections: usize) -> Result<Self, RdsError> {
        let most = fragments(MAX_MESSAGE_LEN);
        let send_frames = config.send_frames.min(frames / 2);
        let receive_frames = frames - send_frames;
        // The congestion map is sent from frames of its own.
        let sendable = send_frames.saturating_sub(usize::from(MAP_FRAGMENTS));
        let sending = divide(sendable, connections, 1, 2);
        let unasked = (sending.share() / 2).clamp(1, MOST_UNASKED);
        let longest = (sending.share() + sending.common()).saturating_sub(unasked) as usize;
        let reserve = most.min(receive_frames / 2);
        // Messages of this node to itself have a share, too.
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
            // One peer gets half of them at most.
            congested_common: receiving.common() / 4,
            // Not more than is taken, so that nodes with little memory do not send what their like refuse.
            longest_sent: longest.min(reserve) * FRAGMENT_LEN,
            longest_at_once: (longest.min(reserve) * FRAGMENT_LEN).min(FRAGMENT_LEN),
            longest_local: local.min(most) * FRAGMENT_LEN,
            longest_received: reserve * FRAGMENT_LEN,
        })
    }
}

impl Limits {
    /// Frames that a connection sends without asking for an acknowledgement, with so many in use beyond all shares.
    #[inline]
    pub(crate) fn unasked(&self, beyond: u32) -> u32 {
        if self.is_plenty(beyond) { self.unasked_frames.max(UNASKED) } else { self.unasked_frames }
    }

    /// Whether that is as many as ever.
    #[inline]
    pub(crate) const fn is_plenty(&self, beyond: u32) -> bool {
        beyond < self.unasked_beyond
    }
}

/// Gives each of `users` an equal share of `of` parts of the frames in `parts`; the rest is common.
fn divide(frames: usize, users: usize, of: usize, parts: usize) -> Shares {
    let share = (frames / parts * of).checked_div(users).unwrap_or(0);
    Shares::new(share as u32, (frames - share * users) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Generation;
    use proptest::prelude::*;

    const CONFIG: RdsConfig = RdsConfig::new(Generation::UNKNOWN);

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
        /// Whatever is configured, the shares fit into what there is.
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
            prop_assert!(fragments(limits.longest_sent) <= limits.sending.fair_room(idle) as usize);
            // With all that others may have sent without asking, and as much of its own.
            let (mut shares, beyond) = (limits.sending, limits.unasked_beyond);
            shares.take(&mut 0, shares.share() + if beyond == u32::MAX { 0 } else { beyond });
            prop_assert!(fragments(limits.longest_sent) <= shares.fair_room(limits.unasked(0)) as usize);
            prop_assert!(limits.signal_every >= 2 && limits.signal_every < limits.send_depth);
        }
    }
}
