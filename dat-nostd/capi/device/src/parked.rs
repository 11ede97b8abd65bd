//! Threads that sleep until something is ready.

use dat_nostd::{DatResult, DatReturn, Instant, ReturnType, Subtype, Wake};
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::c_short;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

const NO_DESCRIPTOR: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);

/// Who waits for what.
pub struct Parked<K> {
    waiting: Vec<(K, Arc<OwnedFd>)>,
    spare: Vec<Arc<OwnedFd>>,
}

impl<K> Default for Parked<K> {
    fn default() -> Self {
        Self { waiting: Vec::new(), spare: Vec::new() }
    }
}

impl<K: Copy + PartialEq> Parked<K> {
    /// A thread is about to sleep for something.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES: no descriptor is left.
    pub fn enter(&mut self, what: K) -> DatResult<Arc<OwnedFd>> {
        let make = || {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            made.map(Arc::new).map_err(|_| NO_DESCRIPTOR)
        };
        let fd = self.spare.pop().map_or_else(make, Ok)?;
        self.waiting.push((what, Arc::clone(&fd)));
        Ok(fd)
    }

    /// It sleeps no more.
    pub fn leave(&mut self, fd: Arc<OwnedFd>) {
        self.waiting.retain(|(_, other)| !Arc::ptr_eq(other, &fd));
        // A wake-up that came too late is not for the next one.
        let _ = rustix::io::read(&*fd, &mut [0; 8]);
        self.spare.push(fd);
    }

    /// Nobody sleeps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Wakes those who wait for this.
    pub fn wake(&self, what: K) {
        self.waiting.iter().filter(|(wanted, _)| *wanted == what).for_each(|(_, fd)| ring(fd));
    }

    /// Wakes one thread, whatever it waits for. Returns false if none waits.
    #[must_use]
    pub fn wake_one(&self) -> bool {
        self.waiting.first().map(|(_, fd)| ring(fd)).is_some()
    }

    /// Wakes everybody: an object may have gone.
    pub fn wake_all(&self) {
        self.waiting.iter().for_each(|(_, fd)| ring(fd));
    }
}

fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// A sleep until a descriptor is rung or a time has come, as `ppoll` takes it.
#[derive(Debug)]
pub struct Rest {
    fds: Vec<libc::pollfd>,
    timeout: Option<libc::timespec>,
}

fn pollfd(fd: RawFd, events: c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

impl Rest {
    /// Until `fd` is rung or `wake` is due.
    #[must_use]
    pub fn new(fd: &OwnedFd, wake: Wake, now: Instant) -> Self {
        let left = wake.deadline(now).map(|deadline| deadline.as_nanos().saturating_sub(now.as_nanos()));
        let timeout = left.map(|left| libc::timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        });
        Self { fds: vec![pollfd(fd.as_raw_fd(), libc::POLLIN)], timeout }
    }

    /// Sleeps on a device, too: until one of `interrupts` is raised or the other side of `peer` has
    /// gone. The descriptors stay open while the thread sleeps.
    pub fn add_device(&mut self, interrupts: impl Iterator<Item = RawFd>, peer: Option<RawFd>) {
        self.fds.extend(interrupts.map(|fd| pollfd(fd, libc::POLLIN)));
        // The end of a stream is reported without being asked for.
        self.fds.extend(peer.map(|fd| pollfd(fd, 0)));
    }

    /// Returns the descriptors, their number and the time for
    /// [`Cancellation::sleep`](crate::Cancellation::sleep). They stay valid as long as this is not
    /// moved.
    pub fn parts(&mut self) -> (*mut libc::pollfd, usize, *const libc::timespec) {
        let timeout = self.timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        (self.fds.as_mut_ptr(), self.fds.len(), timeout)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::{Cancellation, Slept};
    use std::ffi::c_void;

    unsafe extern "C" fn nothing(_: *mut c_void) {}

    fn sleep(fd: &OwnedFd, wake: Wake, now: Instant) -> Slept {
        let mut rest = Rest::new(fd, wake, now);
        let (fds, count, timeout) = rest.parts();
        // SAFETY: `rest` stays where it is. No thread cancels this one.
        unsafe { Cancellation::disable().sleep(fds, count, timeout, nothing, ptr::null_mut()) }
    }

    #[test]
    fn who_waits_is_woken() {
        let mut parked = Parked::default();
        let (first, second) = (parked.enter(1).unwrap(), parked.enter(2).unwrap());
        let now = Instant::from_nanos(0);
        let soon = Wake::At(Instant::from_nanos(1));
        let is_rung = |fd: &OwnedFd| rustix::io::read(fd, &mut [0; 8]).is_ok();
        parked.wake(2);
        assert!(!is_rung(&first) && is_rung(&second));
        parked.wake_all();
        // Would not come back in this test's life.
        assert_eq!([&first, &second].map(|fd| sleep(fd, Wake::Idle, now)), [Slept::Woken(1); 2]);
        assert!(is_rung(&first) && is_rung(&second));
        assert_eq!(sleep(&first, soon, now), Slept::Woken(0));
        parked.wake(1);
        parked.leave(first);
        parked.leave(second);
        assert!(parked.is_empty());
        let again = parked.enter(3).unwrap();
        assert!(!is_rung(&again) && parked.spare.len() == 1);
    }
}
