//! `poll`, of sockets of these and of any other descriptors.

use super::answer;
use crate::failure::{Answer, Failure};
use crate::node::{self, Node};
use dat_nostd::Platform;
use rds_nostd::{Profile, RdsError};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `poll(2)`. Of sockets of these it says more than the system's, which knows what can be received and not what can be sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: i32) -> i32 {
    let polled = answer(Profile::Linux, || {
        let count = usize::try_from(count).ok().filter(|count| *count <= 1 << 20);
        let count = count.ok_or(RdsError::InvalidArgument)?;
        let fds: &mut [libc::pollfd] = match count {
            0 => &mut [],
            _ if fds.is_null() => return Err(Failure::Fault),
            // SAFETY: the caller's array.
            _ => unsafe { std::slice::from_raw_parts_mut(fds, count) },
        };
        poll(fds, timeout)
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

fn poll(fds: &mut [libc::pollfd], timeout: i32) -> Answer<isize> {
    let Some(node) = node::get() else { return Ok(system(fds, timeout)? as isize) };
    let now = || node.lock().adapter.platform().now();
    let limit = u64::try_from(timeout).ok().map(|limit| now() + Duration::from_millis(limit));
    // Ours go by their own answer, the others by the system's; the last entry is what wakes us.
    let mut others: Vec<libc::pollfd> = fds.to_vec();
    loop {
        let mut ready = ours(node, fds, &mut others);
        ready += system(&mut others, 0)?;
        let left = limit.map(|limit| limit.as_nanos().saturating_sub(now().as_nanos()));
        if ready > 0 || left == Some(0) {
            for (fd, other) in fds.iter_mut().zip(&others).filter(|(_, other)| other.fd >= 0) {
                fd.revents = other.revents;
            }
            return Ok(fds.iter().filter(|fd| fd.revents != 0).count() as isize);
        }
        let waker = node.lock().parked.enter(()).map_err(|_| RdsError::NoMemory)?;
        others.push(libc::pollfd { fd: waker.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        // What happened before the waker was there is seen now.
        let slept = match ours(node, fds, &mut others) {
            0 => system(
                &mut others,
                left.map_or(-1, |left| left.div_ceil(1_000_000).min(i32::MAX as u64) as i32),
            ),
            _ => Ok(0),
        };
        others.pop();
        node.lock().parked.leave(waker);
        slept?;
    }
}

/// Answers for the sockets that are ours; how many are ready.
fn ours(node: &'static Node, fds: &mut [libc::pollfd], others: &mut [libc::pollfd]) -> usize {
    let mut inner = node.lock();
    let mut ready = 0;
    for (fd, other) in fds.iter_mut().zip(others) {
        inner.look(fd.fd);
        let Ok(socket) = inner.socket(fd.fd) else { continue };
        other.fd = -1;
        let mask = socket.mask_for(fd.events.cast_unsigned());
        fd.revents = mask.cast_signed();
        ready += usize::from(mask != 0);
    }
    ready
}
