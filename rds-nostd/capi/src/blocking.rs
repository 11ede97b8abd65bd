//! Calls that wait. They return to the function that C called before they sleep, so that the thread
//! can be cancelled there, and are made again afterwards: [`Cancellation`].

use capi_device::{Cancellation, Rest, Slept};
use rds_calls::Failure;
use rds_calls::calls::Called;
use rds_nostd::{RdsError, SocketHandle};
use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

/// A list of threads that wait.
pub(crate) trait Waiters: Sync {
    /// Removes the thread with this waker.
    fn leave(&self, waker: Arc<OwnedFd>);
}

/// State that a call needs after its sleep. Its thread is entered in the HCA's list of those that
/// wait.
pub(crate) struct Sleeping {
    waiters: &'static dyn Waiters,
    waker: Arc<OwnedFd>,
    /// The number of a socket may be another one's by then.
    socket: SocketHandle,
    rest: Rest,
}

impl Sleeping {
    pub(crate) fn new(
        waiters: &'static dyn Waiters,
        waker: Arc<OwnedFd>,
        socket: SocketHandle,
        rest: Rest,
    ) -> Self {
        Self { waiters, waker, socket, rest }
    }
}

/// An attempt to make a call.
struct Attempt {
    /// The socket on which the call has slept before.
    resumed: Option<SocketHandle>,
    /// The thread is to sleep before the next attempt.
    sleeping: Option<Sleeping>,
}

thread_local! {
    /// The attempt that the thread is making.
    static ATTEMPT: Cell<*mut Attempt> = const { Cell::new(ptr::null_mut()) };
}

/// The thread's attempt, for one access.
fn attempt<R>(access: impl FnOnce(&mut Attempt) -> R) -> Option<R> {
    // SAFETY: null, or the attempt of a frame of `make_attempt` of this thread, which has no
    // reference to it meanwhile. No access is within another: those below call nothing.
    unsafe { ATTEMPT.get().as_mut() }.map(access)
}

/// The socket on which the call that is being made has slept before.
pub(crate) fn resumed() -> Option<SocketHandle> {
    attempt(|attempt| attempt.resumed).flatten()
}

/// Has the call that is being made sleep, and made again. The failure ends this attempt.
pub(crate) fn pause(sleeping: Sleeping) -> Failure {
    match attempt(|attempt| attempt.sleeping = Some(sleeping)) {
        Some(()) => Failure::Interrupted,
        // Cannot be: every call that waits is an attempt.
        None => RdsError::NoMemory.into(),
    }
}

/// Result of an attempt: a value or the number of an error, or a sleep.
type Outcome = Option<Called>;

/// Stores `errno` if a call has failed, and returns its value.
pub(crate) fn value(called: Called) -> isize {
    let error = match called {
        Ok(value) => return value,
        Err(error) => error,
    };
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Makes a call. A mistake of this library's is `EIO`, and not the end of the program.
pub(crate) fn caught<R>(call: impl FnOnce() -> Result<R, i32>) -> Result<R, i32> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(libc::EIO))
}

/// Makes a call in which the thread cannot be cancelled: it may have the lock, and its frames have
/// destructors.
///
/// # Safety
/// As [`Cancellation::restore`]; the call owns nothing.
pub(crate) unsafe fn guarded(call: impl FnOnce() -> Called) -> isize {
    // SAFETY: this function's contract. Nothing here has a destructor.
    let cancellation = unsafe { Cancellation::disable() };
    let called = make_once(call);
    // SAFETY: as above.
    unsafe { cancellation.restore() };
    value(called)
}

#[inline(never)]
fn make_once(call: impl FnOnce() -> Called) -> Called {
    caught(call)
}

/// Makes a call that may wait.
///
/// # Safety
/// As [`Cancellation::restore`]; the call owns nothing.
pub(crate) unsafe fn make(call: impl Fn() -> Called) -> isize {
    let mut slot = MaybeUninit::uninit();
    // SAFETY: this function's contract. Nothing here has a destructor.
    let cancellation = unsafe { Cancellation::point() };
    let mut outcome = make_attempt(&call, None, &mut slot);
    loop {
        if let Some(called) = outcome {
            // SAFETY: this function's contract. Nothing here has a destructor.
            unsafe { cancellation.restore() };
            return value(called);
        }
        // SAFETY: without an outcome the slot is filled, and it is this frame's. The rest is as
        // above.
        outcome = unsafe {
            let slept = rest(cancellation, &mut slot);
            let socket = wake(&mut slot);
            match slept {
                Slept::Interrupted => Some(Err(libc::EINTR)),
                _ => make_attempt(&call, Some(socket), &mut slot),
            }
        };
    }
}

/// Attempts a call. Returns its outcome, or fills the slot if the thread has to sleep.
#[inline(never)]
fn make_attempt(
    call: &impl Fn() -> Called,
    resumed: Option<SocketHandle>,
    slot: &mut MaybeUninit<Sleeping>,
) -> Outcome {
    let mut own = Attempt { resumed, sleeping: None };
    // A signal handler may make calls while another one sleeps, or has not begun.
    let before = ATTEMPT.replace(&raw mut own);
    let called = caught(call);
    ATTEMPT.set(before);
    match own.sleeping {
        Some(sleeping) => {
            slot.write(sleeping);
            None
        }
        None => Some(called),
    }
}

/// # Safety
/// The slot is filled. As [`Cancellation::restore`].
#[inline]
unsafe fn rest(cancellation: Cancellation, slot: &mut MaybeUninit<Sleeping>) -> Slept {
    // SAFETY: this function's contract. The slot is not moved or read before the sleep is over.
    unsafe {
        let (fds, count, timeout) = slot.assume_init_mut().rest.parts();
        cancellation.sleep(fds, count, timeout, gone, slot.as_mut_ptr().cast())
    }
}

/// The sleep is over. Returns the socket of the call.
///
/// # Safety
/// The slot is filled.
#[inline(never)]
unsafe fn wake(slot: &mut MaybeUninit<Sleeping>) -> SocketHandle {
    // SAFETY: this function's contract; no other code reads the slot.
    let Sleeping { waiters, waker, socket, .. } = unsafe { slot.assume_init_read() };
    // A mistake here is the next attempt's, too.
    let _ = catch_unwind(AssertUnwindSafe(|| waiters.leave(waker)));
    socket
}

/// The thread was cancelled in its sleep.
///
/// # Safety
/// `slot` is a filled slot, and is not used afterwards.
unsafe extern "C" fn gone(slot: *mut c_void) {
    // SAFETY: this function's contract.
    let _ = unsafe { wake(&mut *slot.cast::<MaybeUninit<Sleeping>>()) };
}
