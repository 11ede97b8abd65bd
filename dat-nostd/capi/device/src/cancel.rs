//! Cancellation of the program's threads (POSIX.1-2017, XSH 2.9.5): off while a call runs, on while
//! it sleeps.
//!
//! The GNU C library cancels a thread by a forced unwind of its stack. Rust code does not survive
//! one: a frame with a landing pad (a destructor, `catch_unwind`) ends the process. A call that
//! waits therefore returns to the function that C called before it sleeps. The frames from there to
//! [`Cancellation::sleep`] own nothing: what the call needs afterwards is in a slot, which a
//! cleanup handler frees if the thread is cancelled.
//!
//! The state of the thread is not enough to keep it from being cancelled. `pthread_cancel` sends a
//! signal to a thread whose cancellation is asynchronous and enabled. The handler of the GNU C
//! library 2.36 looks at the type only, so a signal on its way cancels a thread that has disabled
//! cancellation since. While a call runs its type is therefore deferred, too. Even then functions
//! that wait, `poll` and `close` among them, make it asynchronous while they run, so the signal has
//! to arrive before the call begins. Such a function waits for a signal that is on its way: a
//! thread of asynchronous type runs one first.

use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// `struct _pthread_cleanup_buffer` of the GNU C library, four words; others need fewer.
type CleanupBuffer = [usize; 4];

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    // Functions that implement macros of <pthread.h>. `longjmp` out of a handler of a signal calls
    // the handler, too.
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        handler: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
}

/// `PTHREAD_CANCEL_DISABLE` of Linux's C libraries.
const DISABLE: c_int = 1;
/// `PTHREAD_CANCEL_DEFERRED`.
const DEFERRED: c_int = 0;

/// Reason why a sleep has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// So many descriptors are ready, or the time is over.
    Woken(usize),
    /// A signal handler ran.
    Interrupted,
    /// The system refuses the descriptors.
    Refused,
}

/// The calling thread cannot be cancelled until [`Cancellation::restore`], except in
/// [`Cancellation::sleep`].
///
/// Not a guard, because frames that a cancelled thread leaves must have no destructors.
#[derive(Clone, Copy, Debug)]
#[must_use = "the thread stays immune to cancellation until its state is restored"]
pub struct Cancellation {
    /// The thread's cancelability state before.
    state: c_int,
    /// Its cancelability type before.
    kind: c_int,
}

impl Cancellation {
    /// Disables cancellation of the calling thread, whatever its type. Acts on one that is under way
    /// if its type is asynchronous.
    ///
    /// # Safety
    /// As [`Cancellation::restore`], except on threads whose type is deferred.
    #[inline]
    pub unsafe fn disable() -> Self {
        let (mut state, mut kind) = (DISABLE, DEFERRED);
        // SAFETY: they write the integers; the rest is this function's contract.
        unsafe {
            pthread_setcancelstate(DISABLE, &mut state);
            Self::defer(&mut kind);
        }
        Self { state, kind }
    }

    /// Makes the type of a thread that has disabled cancellation deferred, and waits for a signal
    /// that was sent before.
    ///
    /// # Safety
    /// As [`Cancellation::disable`].
    #[inline]
    unsafe fn defer(kind: &mut c_int) {
        // SAFETY: it writes the integer; `poll` has no entries. The frames that it may unwind own
        // nothing.
        unsafe {
            pthread_setcanceltype(DEFERRED, kind);
            if *kind != DEFERRED {
                poll(ptr::null_mut(), 0, 0);
            }
        }
    }

    /// Acts on a cancellation that is pending, then disables cancellation: for calls that may wait,
    /// because a thread that never has to wait in them would never be cancelled.
    ///
    /// # Safety
    /// As [`Cancellation::restore`].
    #[inline]
    pub unsafe fn point() -> Self {
        // SAFETY: this function's contract.
        unsafe {
            pthread_testcancel();
            Self::disable()
        }
    }

    /// Restores the thread's type and state, and acts on a cancellation that is pending if its type
    /// is asynchronous.
    ///
    /// # Safety
    /// No frame between this function and the nearest one of C has a destructor to run or catches
    /// unwinds, and all of them are of functions that may unwind.
    #[inline]
    pub unsafe fn restore(self) {
        let mut before = 0;
        // SAFETY: they write the integer; the frames that they may unwind own nothing.
        unsafe {
            // Most threads have the type that calls run with.
            if self.kind != DEFERRED {
                pthread_setcanceltype(self.kind, &mut before);
            }
            pthread_setcancelstate(self.state, &mut before);
        }
    }

    /// Sleeps until one of the descriptors is ready or the time is over, and lets the thread be
    /// cancelled meanwhile as the program has set it. A thread that is cancelled calls `gone` with
    /// `slot`, and does not return.
    ///
    /// # Safety
    /// 1. As [`Cancellation::restore`].
    /// 2. `fds` are `count` entries, and `timeout` is null or a time. They and `slot` stay valid
    ///    until this or `gone` returns.
    /// 3. `gone` may be called with `slot`, once, on this thread.
    // Its frame has no table of landing pads, not even an empty one: asynchronous cancellation
    // strikes at any instruction.
    #[inline(never)]
    pub unsafe fn sleep(
        self,
        fds: *mut libc::pollfd,
        count: usize,
        timeout: *const libc::timespec,
        gone: unsafe extern "C" fn(*mut c_void),
        slot: *mut c_void,
    ) -> Slept {
        let mut buffer = MaybeUninit::<CleanupBuffer>::uninit();
        // SAFETY: the buffer is in this frame, which pops it before it returns. The rest is this
        // function's contract.
        unsafe {
            _pthread_cleanup_push(buffer.as_mut_ptr(), gone, slot);
            self.restore();
            let ready = ppoll(fds, count as libc::nfds_t, timeout, ptr::null());
            let errno = *libc::__errno_location();
            let mut before = 0;
            pthread_setcancelstate(DISABLE, &mut before);
            // Most threads have the type that calls run with.
            if self.kind != DEFERRED {
                Self::defer(&mut before);
            }
            _pthread_cleanup_pop(buffer.as_mut_ptr(), 0);
            if ready >= 0 {
                Slept::Woken(ready as usize)
            } else if errno == Errno::INTR.raw_os_error() {
                Slept::Interrupted
            } else {
                Slept::Refused
            }
        }
    }
}
