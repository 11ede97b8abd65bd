//! What both media share: the way of a frame, and limits.

use crate::frames::FrameWay;
use ib_types::Duration;

/// The longest that a packet waits for its neighbour, nanoseconds: ARP and the path have their own, shorter limits.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Frames handled in one call.
pub(super) const BATCH: usize = 64;

/// The way to a destination.
pub(super) enum Way {
    Known(FrameWay),
    Pending,
    None,
}
