//! What a socket is to the program: an event descriptor, readable while the socket has something to receive.

use rds_calls::Descriptor;
use rds_nostd::RdsError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// An event descriptor.
pub(crate) struct Event(OwnedFd);

impl Event {
    /// # Errors
    /// [`RdsError::TooManySockets`]: no descriptor is left.
    pub(crate) fn new(nonblocking: bool) -> Result<Self, RdsError> {
        let flags = if nonblocking { EventfdFlags::NONBLOCK } else { EventfdFlags::empty() };
        let fd = eventfd(0, EventfdFlags::CLOEXEC | flags).map_err(|_| RdsError::TooManySockets)?;
        Ok(Self(fd))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Descriptor for Event {
    /// Whether the program has asked for that (`O_NONBLOCK`, by `fcntl`).
    fn is_nonblocking(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.0);
        flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    fn set_nonblocking(&mut self, on: bool) {
        if let Ok(mut flags) = rustix::fs::fcntl_getfl(&self.0) {
            flags.set(rustix::fs::OFlags::NONBLOCK, on);
            let _ = rustix::fs::fcntl_setfl(&self.0, flags);
        }
    }

    fn raise(&mut self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes what makes it readable, unless the program has done so.
    fn lower(&mut self) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        if poll(&mut fds, Some(&none)) == Ok(1) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}
