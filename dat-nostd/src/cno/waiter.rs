//! Waits on CNOs: tokens that end their wait when they are dropped.

use driver_mlx::{Instant, Wake};

use crate::base::handle::{CnoHandle, EvdHandle};
use crate::base::waiter::Token;

/// An open `dat_cno_wait`, from [`Adapter::cno_wait_begin`](crate::Adapter::cno_wait_begin). Any number may be open on one CNO; each
/// trigger ends one of them. Dropping it gives the wait up; a trigger stays for others.
#[must_use = "a wait ends when its waiter is dropped"]
#[derive(Debug)]
pub struct CnoWaiter<'s> {
    token: Token<'s, CnoHandle>,
    /// Nanoseconds.
    deadline: Instant,
    /// `releases` of the CNO when the wait began.
    releases: u32,
}

impl<'s> CnoWaiter<'s> {
    pub(super) fn new(token: Token<'s, CnoHandle>, deadline: Instant, releases: u32) -> Self {
        Self { token, deadline, releases }
    }

    /// The CNO that it waits on.
    pub fn cno(&self) -> CnoHandle {
        self.token.of()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn releases(&self) -> u32 {
        self.releases
    }

    pub(super) fn is_open(&self) -> bool {
        self.token.is_open()
    }

    /// The wait is over.
    pub(super) fn end(&mut self) {
        self.token.end();
    }
}

/// Result of [`Adapter::cno_wait_poll`](crate::Adapter::cno_wait_poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CnoWait {
    /// Still waiting; poll again by this time, or when
    /// [`Adapter::next_ready`](crate::Adapter::next_ready) names the CNO.
    Pending(Wake),
    /// Triggered, by this EVD first. None if that one is gone; if all are, or the CNO is: then all its waiters get this.
    Triggered(Option<EvdHandle>),
}
