//! `poll` of this library's sockets and of any other descriptors.

use crate::blocking::Waiters as _;
use crate::blocking::{caught, value};
use crate::node::Node;
use crate::process::{self, Whose};
use capi_device::{Cancellation, Slept};
use rds_calls::calls::Called;
use rds_calls::{Answer, Failure, Node as _};
use rds_nostd::{Profile, RdsError};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `poll(2)`. Reports also `POLLOUT` of sockets, which the system's `poll` cannot: to the system a
/// socket is an event descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rds_poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: i32) -> i32 {
    let mut slot = MaybeUninit::uninit();
    // SAFETY: nothing here has a destructor.
    let cancellation = unsafe { Cancellation::point() };
    let limit = limit(timeout);
    // SAFETY: the caller's array of `count` entries.
    let mut outcome = unsafe { look(fds, count, limit, &mut slot) };
    loop {
        if let Some(polled) = outcome {
            // SAFETY: nothing here has a destructor.
            unsafe { cancellation.restore() };
            return value(polled) as i32;
        }
        // SAFETY: without an outcome the slot is filled, and it is this frame's. The rest is as
        // above.
        outcome = unsafe {
            let slept = rest(cancellation, &mut slot);
            wake(&mut slot);
            match slept {
                Slept::Interrupted => Some(Err(libc::EINTR)),
                Slept::Refused => Some(Err(libc::EINVAL)),
                Slept::Woken(_) => look(fds, count, limit, &mut slot),
            }
        };
    }
}

/// Returns the deadline of a poll; `None` if it has none.
#[inline(never)]
fn limit(timeout: i32) -> Option<Instant> {
    u64::try_from(timeout).ok().map(|limit| Instant::now() + Duration::from_millis(limit))
}

/// A poll whose thread sleeps.
struct Polling {
    /// The system's descriptors, then the wakers.
    fds: Vec<libc::pollfd>,
    /// The wakers are released on drop.
    _wakers: Wakers,
    timeout: Option<libc::timespec>,
}

/// # Safety
/// The slot is filled. As [`Cancellation::restore`].
#[inline]
unsafe fn rest(cancellation: Cancellation, slot: &mut MaybeUninit<Polling>) -> Slept {
    // SAFETY: this function's contract. The slot is not moved or read before the sleep is over.
    unsafe {
        let polling = slot.assume_init_mut();
        let (fds, count) = (polling.fds.as_mut_ptr(), polling.fds.len());
        let timeout = polling.timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        cancellation.sleep(fds, count, timeout, gone, slot.as_mut_ptr().cast())
    }
}

/// Ends a sleep.
///
/// # Safety
/// The slot is filled.
#[inline(never)]
unsafe fn wake(slot: &mut MaybeUninit<Polling>) {
    // SAFETY: this function's contract; no other code reads the slot.
    let polling = unsafe { slot.assume_init_read() };
    // A panic here would also happen in the next `look`.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(polling)));
}

/// Cleans up after a thread that was cancelled in its sleep.
///
/// # Safety
/// `slot` is a filled slot, and is not used afterwards.
unsafe extern "C" fn gone(slot: *mut c_void) {
    // SAFETY: this function's contract.
    unsafe { wake(&mut *slot.cast::<MaybeUninit<Polling>>()) };
}

/// Calls the system's `poll`, which skips our sockets because their numbers are negative here.
fn system(fds: &mut [libc::pollfd]) -> Answer<usize> {
    // SAFETY: an array of this function's caller.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            Err(Failure::Interrupted)
        }
        Err(_) => Err(RdsError::InvalidArgument.into()),
    }
}

/// Wakers of all HCAs, released on drop.
#[derive(Default)]
struct Wakers(Vec<(&'static Node, Arc<OwnedFd>)>);

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(node, waker)| node.leave(waker));
    }
}

/// Polls all descriptors. Returns how many are ready, or fills the slot if the thread has to sleep.
///
/// # Safety
/// `fds` is null or `count` entries.
#[inline(never)]
unsafe fn look(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: Option<Instant>,
    slot: &mut MaybeUninit<Polling>,
) -> Option<Called> {
    let looked = caught(|| {
        let count = usize::try_from(count).ok().filter(|count| *count <= 1 << 20);
        let given = match count {
            None => Err(RdsError::InvalidArgument.into()),
            Some(0) => Ok(&mut [][..]),
            _ if fds.is_null() => Err(Failure::Fault),
            // SAFETY: this function's contract.
            Some(count) => Ok(unsafe { std::slice::from_raw_parts_mut(fds, count) }),
        };
        given.and_then(|fds| poll(fds, limit)).map_err(|failure| failure.errno(Profile::Linux))
    });
    match looked {
        Ok(Polled::Ready(count)) => Some(Ok(count)),
        Ok(Polled::Sleep(polling)) => {
            slot.write(polling);
            None
        }
        Err(errno) => Some(Err(errno)),
    }
}

/// Result of a poll.
enum Polled {
    /// Number of ready descriptors; 0 after a timeout.
    Ready(isize),
    Sleep(Polling),
}

fn poll(fds: &mut [libc::pollfd], limit: Option<Instant>) -> Answer<Polled> {
    // We answer for our sockets and the system for all other descriptors. The wakers are the last
    // entries.
    let mut others: Vec<libc::pollfd> = fds.to_vec();
    let mut ready = ours(fds, &mut others);
    ready += system(&mut others)?;
    let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
    if ready > 0 || left == Some(Duration::ZERO) {
        return Ok(Polled::Ready(told(fds, &others)));
    }
    let mut wakers = Wakers::default();
    // Another node may have opened, and sockets may have moved there.
    for node in process::nodes() {
        let waker = node.waker()?;
        others.push(libc::pollfd { fd: waker.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        wakers.0.push((node, waker));
    }
    // Report now what happened before the wakers were there, because a second look does not find
    // all of it.
    if ours(fds, &mut others) > 0 {
        others.truncate(fds.len());
        system(&mut others)?;
        return Ok(Polled::Ready(told(fds, &others)));
    }
    let timeout = left.map(|left| libc::timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    Ok(Polled::Sleep(Polling { fds: others, _wakers: wakers, timeout }))
}

/// Copies the system's results. Returns how many descriptors are ready.
fn told(fds: &mut [libc::pollfd], others: &[libc::pollfd]) -> isize {
    for (fd, other) in fds.iter_mut().zip(others).filter(|(_, other)| other.fd >= 0) {
        fd.revents = other.revents;
    }
    fds.iter().filter(|fd| fd.revents != 0).count() as isize
}

/// Polls our sockets and hides them from the system. Returns how many are ready.
fn ours(fds: &mut [libc::pollfd], others: &mut [libc::pollfd]) -> usize {
    let mut ready = 0;
    for (fd, other) in fds.iter_mut().zip(others) {
        // Also clears skipped entries, and sockets that were closed since the last `look`.
        (fd.revents, other.fd) = (0, fd.fd);
        // A descriptor of the system may have taken over the number of a socket.
        let is_ours = process::whose(fd.fd) == Whose::Socket;
        let node = process::node_of(fd.fd).filter(|_| is_ours);
        let inner = node.and_then(|node| node.lock());
        let events = fd.events.cast_unsigned();
        let mask = inner.and_then(|mut inner| Node::state(&mut inner).ready(fd.fd, events));
        let Some(mask) = mask else { continue };
        other.fd = -1;
        fd.revents = mask.cast_signed();
        ready += usize::from(mask != 0);
    }
    ready
}
