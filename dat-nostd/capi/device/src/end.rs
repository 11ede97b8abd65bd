//! The end of a library: in a child process, which has nothing of it because the devices and the threads are its parent's, and with the
//! process itself.

use std::sync::atomic::{AtomicBool, Ordering};

/// Has the process call a function when it ends in order; once, by a guard of the library's.
pub fn at_exit(guarded: &AtomicBool, end: extern "C" fn()) {
    if !guarded.swap(true, Ordering::Relaxed) {
        // SAFETY: as below.
        unsafe { libc::atexit(end) };
    }
}

/// Has children call a function that may do nothing but store to statics; once, by a guard of the library's.
pub fn guard_children(guarded: &AtomicBool, forget: extern "C" fn()) {
    if !guarded.swap(true, Ordering::Relaxed) {
        // SAFETY: the function is the library's, which is never unloaded once it has been used.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}
