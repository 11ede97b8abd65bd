//! Sleeping without the platform: for a program that keeps its adapter behind a lock, and sleeps
//! outside it.

use crate::error::{Error, Result};
use crate::interrupts::{Interrupts, timeout};
use crate::platform::{Device, LinuxPlatform};
use driver_mlx::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sleeps until the HCA interrupts, another thread wakes it, or a deadline passes. From
/// [`LinuxPlatform::sleeper`].
///
/// An interrupt remains pending until the platform's `idle` takes it. So a thread that waits for a
/// command with the lock held does not lose it to a thread that sleeps here.
/// [`Platform::idle`](driver_mlx::Platform::idle) with a past deadline takes it without a wait.
#[derive(Debug)]
pub struct Sleeper {
    interrupts: Arc<Interrupts>,
    peer: Option<UnixStream>,
    gone: Arc<AtomicBool>,
    wake: OwnedFd,
}

impl Sleeper {
    /// Sleeps until `deadline` ([`Instant::MAX`] for none) at the latest. The exit of an emulated
    /// HCA's server also ends the sleep, unless `gone` is set.
    pub fn sleep(&self, deadline: Instant, gone: bool) {
        let timeout = timeout(deadline);
        let vectors =
            self.interrupts.descriptors().map(|vector| PollFd::from_borrowed_fd(vector, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(PollFd::new(&self.wake, PollFlags::IN))
            .chain(vectors.filter(|_| !gone))
            .chain(self.peer.iter().filter(|_| !gone).map(|peer| PollFd::new(peer, PollFlags::empty())))
            .collect();
        if poll(&mut fds, Some(&timeout)).is_ok() && fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Returns a descriptor for each interrupt, which is readable while the interrupt is pending,
    /// and the connection to an emulated HCA's server: for a thread that sleeps on them by itself.
    pub fn events(&self) -> (impl Iterator<Item = RawFd>, Option<RawFd>) {
        let interrupts = self.interrupts.descriptors().map(|vector| vector.as_raw_fd());
        (interrupts, self.peer.as_ref().map(AsRawFd::as_raw_fd))
    }

    /// Returns its descriptors that keep the device open: [`LinuxPlatform::descriptors`].
    #[must_use]
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.peer.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Returns whether the HCA was found permanently gone: [`LinuxPlatform::is_gone`], for an
    /// adapter that has the platform.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Ends the sleep, or the next one if no thread sleeps.
    pub fn wake(&self) {
        // The write fails if the counter is full: then a wake-up is pending already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl LinuxPlatform {
    /// Returns a [`Sleeper`] for this HCA's interrupts.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn sleeper(&self) -> Result<Sleeper> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (peer, gone) = match &*self.device {
            Device::Vfio(_) => (None, Arc::default()),
            Device::Socket(device) => (device.duplicate(), device.gone()),
        };
        Ok(Sleeper {
            interrupts: Arc::clone(&self.interrupts),
            peer,
            gone,
            wake: wake.map_err(Error::kernel("cannot make an event descriptor"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupts::now;

    fn sleeper(vectors: usize, peer: Option<UnixStream>) -> Sleeper {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Sleeper { interrupts: Arc::new(Interrupts::new(vectors).unwrap()), peer, gone: Arc::default(), wake }
    }

    #[test]
    fn an_interrupt_is_seen_and_not_taken() {
        let sleeper = sleeper(2, None);
        let raised = sleeper.interrupts.descriptors().nth(1).unwrap().try_clone_to_owned().unwrap();
        rustix::io::write(&raised, &1_u64.to_ne_bytes()).unwrap();
        // Would not come back in this test's life.
        sleeper.sleep(Instant::MAX, false);
        sleeper.sleep(Instant::MAX, false);
        sleeper.interrupts.wait(Instant::MAX, None);
        let deadline = Instant::from_nanos(now().as_nanos() + 1_000_000);
        sleeper.sleep(deadline, false);
        assert!(now() >= deadline, "it was taken by the wait");
    }

    #[test]
    fn a_wake_up_ends_one_sleep() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sleeper = sleeper(1, Some(ours));
        sleeper.wake();
        sleeper.wake();
        sleeper.sleep(Instant::MAX, false);
        drop(theirs);
        sleeper.sleep(Instant::MAX, false);
        let deadline = Instant::from_nanos(now().as_nanos() + 1_000_000);
        sleeper.sleep(deadline, true);
        assert!(now() >= deadline, "what is known to be gone wakes nobody");
    }
}
