//! Calls that wait.

use crate::failure::{Answer, Failure};
use crate::node::{Inner, Node};
use capi_device::sleep;
use dat_nostd::{Platform, Wake};
use rds_nostd::{RdsError, SocketHandle};
use std::os::fd::RawFd;

/// Whether what was refused may come to pass.
fn may_pass(failure: Failure) -> bool {
    let Failure::Rds(error) = failure else { return false };
    matches!(error, RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested)
}

/// Makes a call on a socket; again and again until it succeeds, unless the call or the socket says not to wait.
pub(crate) fn until<R>(
    node: &'static Node,
    fd: RawFd,
    dont_wait: bool,
    mut call: impl FnMut(&mut Inner, SocketHandle) -> Answer<R>,
) -> Answer<R> {
    let mut inner = node.lock();
    loop {
        let handle = inner.socket(fd)?.handle;
        let answer = call(&mut inner, handle);
        let waits = match &answer {
            Err(failure) => may_pass(*failure) && !dont_wait && !inner.socket(fd)?.is_nonblocking(),
            Ok(_) => false,
        };
        if !waits {
            inner.look(fd);
            drop(inner);
            // The library's thread carries on what this began, and looks at the other sockets.
            node.sleeper.wake();
            return answer;
        }
        let now = inner.adapter.platform().now();
        let waker = inner.parked.enter(()).map_err(|_| RdsError::NoMemory)?;
        drop(inner);
        node.sleeper.wake();
        let interrupted = sleep(&waker, Wake::Idle, now);
        inner = node.lock();
        inner.parked.leave(waker);
        if interrupted {
            return Err(Failure::Interrupted);
        }
    }
}
