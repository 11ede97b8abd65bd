//! A listener that rests after an error.

use super::address::Listener;
use super::stream::Stream;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Rest after an error, which may be a lack of descriptors.
const REST: Duration = Duration::from_millis(200);

/// Accepts connections at a listener.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    /// Token of the listener's events.
    token: u64,
    /// Time at which connections are accepted again.
    closed_until: Option<Instant>,
    /// True if the listener's events are waited for.
    listening: bool,
}

impl Door {
    /// Accepts connections at `listener`, whose events have `token`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(listener: Listener, token: u64, epoll: &OwnedFd) -> Result<Self, Errno> {
        epoll::add(epoll, listener.as_fd(), EventData::new_u64(token), EventFlags::IN)?;
        Ok(Self { listener, token, closed_until: None, listening: true })
    }

    /// Returns the next connection, without waiting.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn accept(&self) -> io::Result<Stream> {
        self.listener.accept()
    }

    /// Accepts nothing for a while.
    pub fn rest(&mut self, now: Instant) {
        self.closed_until = Some(now + REST);
    }

    /// Returns the time at which connections are accepted again, if none are now.
    pub const fn deadline(&self) -> Option<Instant> {
        self.closed_until
    }

    /// Updates the events to wait for.
    pub fn follow(&mut self, epoll: &OwnedFd, now: Instant) {
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
        }
        let listening = self.closed_until.is_none();
        if listening != self.listening {
            let flags = if listening { EventFlags::IN } else { EventFlags::empty() };
            if epoll::modify(epoll, self.listener.as_fd(), EventData::new_u64(self.token), flags).is_ok() {
                self.listening = listening;
            }
        }
    }
}
