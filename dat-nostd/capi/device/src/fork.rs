//! What is left of a library in a child process: nothing, because the devices and the threads are its parent's.

use std::sync::atomic::{AtomicBool, Ordering};

/// Has children call a function that may do nothing but store to statics; once, by a guard of the library's.
pub fn guard_children(guarded: &AtomicBool, forget: extern "C" fn()) {
    if !guarded.swap(true, Ordering::Relaxed) {
        // SAFETY: the function is the library's, which is never unloaded once it has been used.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}
