//! `poll`, of sockets of these and of any other descriptors.

use super::answer;
use crate::node::Node;
use crate::process::{self, Whose};
use rds_calls::{Answer, Failure, Node as _};
use rds_nostd::{Profile, RdsError};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `poll(2)`. Of sockets of these it says more than the system's, which knows what can be received and not what can be sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: i32) -> i32 {
    let polled = answer(|| {
        let count = usize::try_from(count).ok().filter(|count| *count <= 1 << 20);
        let given = match count {
            None => Err(RdsError::InvalidArgument.into()),
            Some(0) => Ok(&mut [][..]),
            _ if fds.is_null() => Err(Failure::Fault),
            // SAFETY: the caller's array.
            Some(count) => Ok(unsafe { std::slice::from_raw_parts_mut(fds, count) }),
        };
        given.and_then(|fds| poll(fds, timeout)).map_err(|failure| failure.errno(Profile::Linux))
    });
    polled as i32
}

/// The system's call; those that are ours are passed over by a negative number.
fn system(fds: &mut [libc::pollfd], timeout: i32) -> Answer<usize> {
    // SAFETY: an array of this function's caller.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            Err(Failure::Interrupted)
        }
        Err(_) => Err(RdsError::InvalidArgument.into()),
    }
}

/// Wakers of all HCAs, which are left when the sleep is over.
#[derive(Default)]
struct Wakers(Vec<(&'static Node, Arc<OwnedFd>)>);

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(node, waker)| node.leave(waker));
    }
}

fn poll(fds: &mut [libc::pollfd], timeout: i32) -> Answer<isize> {
    let limit = u64::try_from(timeout).ok().map(|limit| Instant::now() + Duration::from_millis(limit));
    // Ours go by their own answer, the others by the system's; the last entries are what wakes us.
    let mut others: Vec<libc::pollfd> = fds.to_vec();
    loop {
        let mut ready = ours(fds, &mut others);
        ready += system(&mut others, 0)?;
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()).as_nanos());
        if ready > 0 || left == Some(0) {
            return Ok(told(fds, &others));
        }
        let mut wakers = Wakers::default();
        // One more may have come up, and sockets have gone there.
        for node in process::nodes() {
            let waker = node.waker()?;
            others.push(libc::pollfd { fd: waker.as_raw_fd(), events: libc::POLLIN, revents: 0 });
            wakers.0.push((node, waker));
        }
        // What happened before the wakers were there is seen now, and told: some of it is not found a second time.
        if ours(fds, &mut others) > 0 {
            others.truncate(fds.len());
            system(&mut others, 0)?;
            return Ok(told(fds, &others));
        }
        let left = left.map_or(-1, |left| left.div_ceil(1_000_000).min(i32::MAX as u128) as i32);
        system(&mut others, left)?;
        others.truncate(fds.len());
    }
}

/// Answers for those that the system knows; how many of all have something.
fn told(fds: &mut [libc::pollfd], others: &[libc::pollfd]) -> isize {
    for (fd, other) in fds.iter_mut().zip(others).filter(|(_, other)| other.fd >= 0) {
        fd.revents = other.revents;
    }
    fds.iter().filter(|fd| fd.revents != 0).count() as isize
}

/// Answers for the sockets that are ours; how many are ready.
fn ours(fds: &mut [libc::pollfd], others: &mut [libc::pollfd]) -> usize {
    let mut ready = 0;
    for (fd, other) in fds.iter_mut().zip(others) {
        // Also of what is passed over, and of a socket that has gone since the last look.
        (fd.revents, other.fd) = (0, fd.fd);
        // Of the system's, too, if it has got the number of a socket.
        let is_ours = process::whose(fd.fd) == Whose::Socket;
        let home = process::home(fd.fd).filter(|_| is_ours);
        let inner = home.and_then(|node| node.lock());
        let events = fd.events.cast_unsigned();
        let mask = inner.and_then(|mut inner| Node::state(&mut inner).ready(fd.fd, events));
        let Some(mask) = mask else { continue };
        other.fd = -1;
        fd.revents = mask.cast_signed();
        ready += usize::from(mask != 0);
    }
    ready
}
