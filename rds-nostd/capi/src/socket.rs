//! A socket and its descriptor: an event descriptor, readable while the socket has something to receive.

use rds_nostd::{PollMask, Profile, Rds, RdsError, SocketHandle};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A socket of the program's.
pub(crate) struct Socket {
    pub(crate) handle: SocketHandle,
    pub(crate) profile: Profile,
    fd: OwnedFd,
    /// The descriptor is readable.
    is_raised: bool,
    /// What the socket is ready for, as far as it is known.
    mask: PollMask,
    /// A peer's congestion has changed and nobody has heard of it: the protocol says so once.
    heard: bool,
}

/// Readable by a change of congestion.
const NEWS: PollMask = PollMask::IN.union(PollMask::RDNORM).union(PollMask::WRBAND);

impl Socket {
    /// # Errors
    /// [`RdsError::TooManySockets`]: no descriptor is left.
    pub(crate) fn new(handle: SocketHandle, profile: Profile, nonblocking: bool) -> Result<Self, RdsError> {
        let flags = if nonblocking { EventfdFlags::NONBLOCK } else { EventfdFlags::empty() };
        let fd = eventfd(0, EventfdFlags::CLOEXEC | flags).map_err(|_| RdsError::TooManySockets)?;
        Ok(Self { handle, profile, fd, is_raised: false, mask: PollMask::empty(), heard: false })
    }

    pub(crate) fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether the program has asked that calls on it do not wait (`O_NONBLOCK`, by `fcntl`).
    pub(crate) fn is_nonblocking(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.fd);
        flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// Sets or takes away `O_NONBLOCK` (`FIONBIO`).
    pub(crate) fn set_nonblocking(&self, on: bool) {
        if let Ok(mut flags) = rustix::fs::fcntl_getfl(&self.fd) {
            flags.set(rustix::fs::OFlags::NONBLOCK, on);
            let _ = rustix::fs::fcntl_setfl(&self.fd, flags);
        }
    }

    /// Looks what the socket is ready for, and has the descriptor say so. Whether that has changed.
    pub(crate) fn look(&mut self, rds: &mut Rds<'_>) -> bool {
        let found = rds.poll_mask(self.handle).unwrap_or(PollMask::empty());
        self.heard |= found.contains(PollMask::WRBAND);
        let before = std::mem::replace(&mut self.mask, if self.heard { found | NEWS } else { found });
        let wanted = self.mask.contains(PollMask::IN);
        if wanted && !self.is_raised {
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        } else if !wanted && self.is_raised {
            self.lower();
        }
        self.is_raised = wanted;
        before != self.mask
    }

    /// Takes what makes it readable, unless the program has done so.
    fn lower(&self) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut fds, Some(&none)) == Ok(1) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    /// What the socket is ready for of what is asked. A change of congestion is told once.
    pub(crate) fn mask_for(&mut self, events: u16) -> u16 {
        let mask = self.mask.bits() & events;
        self.heard &= mask == 0;
        mask
    }

    /// There was nothing to receive: no news either.
    pub(crate) fn is_empty(&mut self) {
        self.heard = false;
    }
}
