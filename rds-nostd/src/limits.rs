//! What a configuration comes to with the memory that there is.
//!
//! Nothing that waits may wait for ever because frames are short, so frames are divided:
//!
//! - The sending side has a share that receives never take. Messages that nobody asked an acknowledgement for may stay in it
//!   until there is more traffic; they are kept few enough that the longest message still fits beside them.
//! - Of the receiving side, each connection may have a fixed number posted, whether others are busy or idle. A reserve is
//!   never posted but for one connection at a time, to go on with a message that has begun to arrive: connections that each
//!   hold a part of a long message do not block each other.

use crate::congestion::MAP_FRAGMENTS;
use crate::error::RdsError;
use crate::storage::RdsConfig;
use crate::wire::{FRAGMENT_LEN, MAX_MESSAGE_LEN, fragments};

/// Every so many posts one is reported by the HCA, which reports the ones before it too.
const SIGNAL_EVERY: u16 = 16;
/// Frames after which a message asks for an acknowledgement in any case: Linux's 16 MiB.
const MOST_UNASKED: usize = 4096;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Frames of the sending side.
    pub(crate) send_frames: usize,
    /// Frames of the receiving side that only an unfinished message is continued with.
    pub(crate) reserve: usize,
    /// Receives kept posted for each connection.
    pub(crate) receive_depth: u16,
    /// Sends in flight for each connection.
    pub(crate) send_depth: u16,
    /// Posts of which one is reported.
    pub(crate) signal_every: u16,
    /// Frames that a connection sends without asking for an acknowledgement.
    pub(crate) unasked_frames: u32,
    /// Frames of unread messages with which one socket, and all of them, count as congested.
    pub(crate) congested_frames: usize,
    pub(crate) congested_pool: usize,
    /// The longest message to a peer, to this node itself, and from a peer; bytes.
    pub(crate) longest_sent: usize,
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
        let reserve = most.min(receive_frames / 2);
        let posted = (receive_frames - reserve).checked_div(connections).unwrap_or(0);
        let receive_depth = config.receive_depth.min(u16::try_from(posted).unwrap_or(u16::MAX));
        let unasked = (send_frames / (4 * connections.max(1))).clamp(1, MOST_UNASKED);
        // The congestion map, an acknowledgement for each connection, and what may stay unacknowledged.
        let map = usize::from(MAP_FRAGMENTS);
        let sendable = send_frames.saturating_sub(map + connections * (1 + unasked));
        let local = (receive_frames - connections * usize::from(receive_depth)).min(most);
        if connections == 0 || receive_depth < 2 || config.send_depth < 4 || sendable == 0 || reserve == 0 {
            return Err(RdsError::InvalidArgument);
        }
        Ok(Self {
            send_frames,
            reserve,
            receive_depth,
            send_depth: config.send_depth,
            signal_every: SIGNAL_EVERY.min(config.send_depth / 2),
            unasked_frames: unasked as u32,
            congested_frames: ((receive_frames - reserve) / 4).max(1),
            congested_pool: ((receive_frames - reserve) / 2).max(1),
            // Not more than is taken, so that nodes with little memory do not send what their like refuse.
            longest_sent: sendable.min(reserve) * FRAGMENT_LEN,
            longest_local: local * FRAGMENT_LEN,
            longest_received: reserve * FRAGMENT_LEN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_takes_the_longest_message_both_ways() {
        let limits = Limits::new(&RdsConfig::default(), 1024, 8).unwrap();
        assert_eq!((limits.longest_sent, limits.longest_received), (MAX_MESSAGE_LEN, MAX_MESSAGE_LEN));
        assert_eq!(
            (limits.send_frames, limits.receive_depth, limits.longest_local),
            (512, 32, MAX_MESSAGE_LEN)
        );
    }

    #[test]
    fn too_little_is_refused() {
        let new = |config: &RdsConfig, frames, connections| Limits::new(config, frames, connections).err();
        let config = RdsConfig::default();
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
            let config = RdsConfig { send_frames, receive_depth, send_depth, ..RdsConfig::default() };
            let Ok(limits) = Limits::new(&config, frames, connections) else { return Ok(()) };
            let posted = connections * usize::from(limits.receive_depth);
            prop_assert!(limits.send_frames + posted + limits.reserve <= frames);
            prop_assert!(limits.longest_received <= limits.reserve * FRAGMENT_LEN);
            prop_assert!(limits.longest_local <= (frames - limits.send_frames - posted) * FRAGMENT_LEN);
            let stuck = 2 + connections * (1 + limits.unasked_frames as usize);
            prop_assert!(fragments(limits.longest_sent) + stuck <= limits.send_frames);
            prop_assert!(limits.signal_every >= 2 && limits.signal_every < limits.send_depth);
        }
    }
}
