//! A wait on an EVD.

use crate::base::event::Event;
use driver_mlx::{Instant, Wake};

/// A wait that is open on an EVD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitState {
    pub(crate) deadline: Instant,
    pub(crate) threshold: u32,
    /// Whether the next poll may answer with events that do not notify: they were there when the wait began.
    pub(crate) first: bool,
    /// `evd_set_unwaitable` has ended it; the next poll says so.
    pub(crate) interrupted: bool,
}

/// Result of [`Adapter::evd_wait_poll`](crate::Adapter::evd_wait_poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Still waiting; poll again by this time, or when [`Adapter::poll`](crate::Adapter::poll) has run.
    Pending(Wake),
    /// The oldest event, and how many are left.
    Ready(Event, u32),
    /// `DAT_TIMEOUT_EXPIRED`, and how many events are queued.
    TimedOut(u32),
}
