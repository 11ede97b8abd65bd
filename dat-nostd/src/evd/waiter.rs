//! Waits on EVDs: tokens that end their wait when they are dropped.

use driver_mlx::{Instant, Wake};

use crate::base::event::Event;
use crate::base::handle::EvdHandle;
use crate::base::waiter::Token;

/// An open `dat_evd_wait`, from [`Adapter::evd_wait_begin`](crate::Adapter::evd_wait_begin). While it lives, nobody else waits on the
/// EVD or takes events from it, as while a thread is in `dat_evd_wait`. Dropping it gives the wait up: the EVD is free again, and
/// nothing is lost. (`core::mem::forget` is a thread that hangs in the call: the EVD stays taken until it is freed.)
#[must_use = "a wait ends when its waiter is dropped"]
#[derive(Debug)]
pub struct EvdWaiter<'s> {
    token: Token<'s, EvdHandle>,
}

impl<'s> EvdWaiter<'s> {
    pub(super) fn new(token: Token<'s, EvdHandle>) -> Self {
        Self { token }
    }

    /// The EVD that it waits on.
    pub fn evd(&self) -> EvdHandle {
        self.token.of()
    }

    pub(super) fn token(&mut self) -> &mut Token<'s, EvdHandle> {
        &mut self.token
    }
}

/// The wait that is open on an EVD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitState {
    /// Nanoseconds.
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
    /// Still waiting; poll again by this time, or when
    /// [`Adapter::next_ready`](crate::Adapter::next_ready) names the EVD.
    Pending(Wake),
    /// The oldest event, and how many are left.
    Ready(Event, u32),
    /// `DAT_TIMEOUT_EXPIRED`, and how many events are queued.
    TimedOut(u32),
}
