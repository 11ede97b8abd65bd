//! MSI-X vectors as event descriptors, and waiting for one.

use crate::error::{Error, Result};
use driver_mlx::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

/// A descriptor for each MSI-X vector.
#[derive(Debug)]
pub(crate) struct Interrupts {
    vectors: Vec<OwnedFd>,
}

impl Interrupts {
    /// Descriptors for so many vectors, to be handed to the device.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let vectors: std::result::Result<_, _> = (0..count).map(|_| make()).collect();
        Ok(Self { vectors: vectors.map_err(Error::kernel("cannot make an event descriptor"))? })
    }

    pub(crate) fn descriptors(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.vectors.iter().map(OwnedFd::as_fd)
    }

    /// Waits for a vector, for the end of `peer` or until `deadline`. A vector that was raised
    /// since the last call ends the wait at once.
    pub(crate) fn wait(&self, deadline: Instant, peer: Option<BorrowedFd<'_>>) {
        let timeout = timeout(deadline);
        let mut fds: Vec<PollFd<'_>> =
            self.vectors.iter().map(|vector| PollFd::new(vector, PollFlags::IN)).collect();
        // That the other side has gone is reported without being asked for.
        fds.extend(peer.map(|peer| PollFd::from_borrowed_fd(peer, PollFlags::empty())));
        // Interrupted by a signal is early, which callers expect.
        if poll(&mut fds, Some(&timeout)).is_err() {
            return;
        }
        for (vector, fd) in self.vectors.iter().zip(&fds) {
            if fd.revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(vector, &mut [0; 8]);
            }
        }
    }
}

/// Returns the time left until `deadline`.
pub(crate) fn timeout(deadline: Instant) -> Timespec {
    let left = deadline.as_nanos().saturating_sub(now().as_nanos());
    Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
}

/// The monotonic clock, from this process's first look at it on. The standard library's, because
/// the C library's way to it is also there where tools run the process (Valgrind).
pub(crate) fn now() -> Instant {
    static FIRST: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    // Not from 0: a moment that is none, or long past, is before it.
    Instant::from_nanos(1_000_000_000) + FIRST.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_ends_the_wait_once() {
        let interrupts = Interrupts::new(2).unwrap();
        let raised = interrupts.descriptors().nth(1).unwrap().try_clone_to_owned().unwrap();
        rustix::io::write(&raised, &1_u64.to_ne_bytes()).unwrap();
        // Would not come back in this test's life.
        interrupts.wait(Instant::from_nanos(u64::MAX), None);
        let before = now();
        let deadline = Instant::from_nanos(before.as_nanos() + 1_000_000);
        interrupts.wait(deadline, None);
        assert!(now() >= deadline, "it was taken by the first wait");
    }

    #[test]
    fn a_peer_that_goes_ends_the_wait() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let interrupts = Interrupts::new(1).unwrap();
        interrupts.wait(Instant::from_nanos(u64::MAX), Some(ours.as_fd()));
    }
}
