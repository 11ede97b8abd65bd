//! Threads that wait: each sleeps on a descriptor of its own, without the lock.

use crate::handles::{Kinded, RawHandle};
use crate::node::{Inner, node_of};
use dat_nostd::{
    CnoHandle, CnoWait, DatResult, DatReturn, Event, EvdHandle, Instant, Platform, ReturnType, Subtype, Wait, Wake,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const NO_DESCRIPTOR: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);
/// A signal handler ran while the call waited.
const INTERRUPTED: DatReturn = DatReturn::error(ReturnType::InterruptedCall, Subtype::SubInterrupted);

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Parked {
    waiting: Vec<(RawHandle, Arc<OwnedFd>)>,
    spare: Vec<Arc<OwnedFd>>,
}

impl Parked {
    /// A thread is about to sleep for an EVD or a CNO.
    fn enter(&mut self, handle: RawHandle) -> DatResult<Arc<OwnedFd>> {
        let make = || {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            made.map(Arc::new).map_err(|_| NO_DESCRIPTOR)
        };
        let fd = self.spare.pop().map_or_else(make, Ok)?;
        self.waiting.push((handle, Arc::clone(&fd)));
        Ok(fd)
    }

    /// It sleeps no more.
    fn leave(&mut self, fd: Arc<OwnedFd>) {
        self.waiting.retain(|(_, other)| !Arc::ptr_eq(other, &fd));
        // A wake-up that came too late is not for the next one.
        let _ = rustix::io::read(&*fd, &mut [0; 8]);
        self.spare.push(fd);
    }

    /// Wakes those who wait for this.
    pub(crate) fn wake(&self, handle: RawHandle) {
        self.waiting.iter().filter(|(wanted, _)| *wanted == handle).for_each(|(_, fd)| ring(fd));
    }

    /// Wakes everybody: an object may have gone.
    pub(crate) fn wake_all(&self) {
        self.waiting.iter().for_each(|(_, fd)| ring(fd));
    }
}

fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Sleeps until the descriptor is rung or `wake` is due. Whether a signal handler ran.
fn sleep(fd: &OwnedFd, wake: Wake, now: Instant) -> bool {
    let left = wake.deadline(now).map(|deadline| deadline.as_nanos().saturating_sub(now.as_nanos()));
    let timeout = left.map(|left| Timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    });
    let slept = poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref());
    let _ = rustix::io::read(fd, &mut [0; 8]);
    slept == Err(Errno::INTR)
}

/// What a wait has come to.
enum Step<R> {
    Over(R),
    Pending(Wake),
}

/// Begins a wait, and polls it until it is over. With the last poll's answer to a signal.
fn wait<H: Kinded, W, R>(
    raw: RawHandle,
    begin: impl FnOnce(&mut Inner, H, Instant) -> DatResult<W>,
    mut step: impl FnMut(&mut Inner, &mut W, Instant) -> Step<R>,
    interrupt: impl FnOnce(&mut Inner, W) -> R,
) -> DatResult<R> {
    let node = node_of::<H>(raw)?;
    let mut inner = node.lock_urgently();
    let now = inner.adapter.platform().now();
    let mut waiter = begin(&mut inner, H::of(raw), now)?;
    loop {
        let now = inner.adapter.platform().now();
        let wake = match step(&mut inner, &mut waiter, now) {
            Step::Over(answer) => return Ok(answer),
            Step::Pending(wake) => wake,
        };
        let fd = inner.parked.enter(raw)?;
        drop(inner);
        // The library's thread arms what has to wake us.
        node.sleeper.wake();
        let interrupted = sleep(&fd, wake, now);
        inner = node.lock_urgently();
        inner.parked.leave(fd);
        if interrupted {
            let now = inner.adapter.platform().now();
            return Ok(match step(&mut inner, &mut waiter, now) {
                Step::Over(answer) => answer,
                Step::Pending(_) => interrupt(&mut inner, waiter),
            });
        }
    }
}

/// What `dat_evd_wait` answers: an event or an error, and `nmore` where that is defined.
pub(crate) struct Waited {
    pub(crate) event: DatResult<Event>,
    pub(crate) more: Option<u32>,
}

/// `dat_evd_wait`.
pub(crate) fn evd_wait(raw: RawHandle, timeout_us: u32, threshold: u32) -> DatResult<Waited> {
    wait(
        raw,
        |inner, evd: EvdHandle, now| inner.adapter.evd_wait_begin(evd, now, timeout_us, threshold),
        |inner, waiter, now| {
            let expired = DatReturn::new(ReturnType::TimeoutExpired);
            match inner.adapter.evd_wait_poll(waiter, now) {
                Ok(Wait::Pending(wake)) => Step::Pending(wake),
                Ok(Wait::Ready(event, more)) => Step::Over(Waited { event: Ok(event), more: Some(more) }),
                Ok(Wait::TimedOut(more)) => Step::Over(Waited { event: Err(expired), more: Some(more) }),
                Err(error) => Step::Over(Waited { event: Err(error), more: None }),
            }
        },
        |inner, waiter| {
            let evd = waiter.evd();
            let _ = inner.adapter.evd_wait_end(waiter);
            Waited { event: Err(INTERRUPTED), more: Some(queued(inner, evd, threshold)) }
        },
    )
}

/// How many events are queued on an EVD on which a wait for `threshold` of them has not come to an end.
fn queued(inner: &mut Inner, evd: EvdHandle, threshold: u32) -> u32 {
    let now = inner.adapter.platform().now();
    let Ok(mut waiter) = inner.adapter.evd_wait_begin(evd, now, 0, threshold.saturating_add(1)) else { return 0 };
    match inner.adapter.evd_wait_poll(&mut waiter, now) {
        Ok(Wait::TimedOut(queued)) => queued,
        _ => 0,
    }
}

/// `dat_cno_wait`: the EVD that triggered, if it still is.
pub(crate) fn cno_wait(raw: RawHandle, timeout_us: u32) -> DatResult<Option<EvdHandle>> {
    wait(
        raw,
        |inner, cno: CnoHandle, now| inner.adapter.cno_wait_begin(cno, now, timeout_us),
        |inner, waiter, now| match inner.adapter.cno_wait_poll(waiter, now) {
            Ok(CnoWait::Pending(wake)) => Step::Pending(wake),
            Ok(CnoWait::Triggered(evd)) => Step::Over(Ok(evd)),
            Err(error) => Step::Over(Err(error)),
        },
        |inner, waiter| {
            let _ = inner.adapter.cno_wait_end(waiter);
            Err(INTERRUPTED)
        },
    )?
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!sleep(&first, Wake::Idle, now) && !sleep(&second, Wake::Idle, now));
        assert!(!sleep(&first, soon, now));
        parked.wake(1);
        parked.leave(first);
        parked.leave(second);
        assert!(parked.waiting.is_empty());
        let again = parked.enter(3).unwrap();
        assert!(!is_rung(&again) && parked.spare.len() == 1);
    }
}
