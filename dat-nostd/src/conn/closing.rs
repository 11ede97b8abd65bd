//! How far the end of a connection has come.

use crate::base::event::ConnectionEvent;
use driver_mlx::{Duration, Instant};

/// An EP on its way to DISCONNECTED.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    /// The terminal event; None of a disconnect of our own, whose end the state table names.
    pub(crate) event: Option<ConnectionEvent>,
    /// How far it is.
    pub(crate) phase: Phase,
    /// Requests and receives posted when it began.
    pub(crate) request_end: u32,
    /// (On an SRQ: until when to wait for the device to say that nothing more is taken from it, in [`ticks`].)
    pub(crate) receive_end: u32,
    /// Where the send queue ended then.
    pub(crate) send_end: Option<u16>,
}

/// Time limit for LAST_WQE_REACHED in [`ticks`], about a second. The event takes microseconds, but an
/// end must come even without it.
pub(crate) const LAST_RECEIVE_WITHIN: u32 = 1000;

/// The unit of [`ticks`].
pub(crate) const TICK: Duration = Duration::from_nanos(1 << 20);

/// A time in units of 2^20 nanoseconds, circular.
pub(crate) fn ticks(now: Instant) -> u32 {
    (now.as_nanos() >> 20) as u32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Graceful: requests are still being finished.
    Draining,
    /// Graceful: ours are done, the peer has been told, and what it still sends is received until it answers.
    Leaving,
    /// The QP is in error; flushes come.
    Flushing,
}

impl Closing {
    /// Graceful, and not yet flushing: the connection still works.
    pub(crate) fn is_alive(&self) -> bool {
        self.phase != Phase::Flushing
    }
}
