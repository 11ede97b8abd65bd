//! The end of a library: in a child process, which has nothing of it because the devices and the threads are its parent's, and with the
//! process itself.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Descriptors of a device that is open, plus 1; the first is -1 while the others are entered, and
/// 0 for no device.
type Descriptors = [AtomicI32; 8];

/// As many devices as a process of DAT opens at a time.
static OPEN: [Descriptors; 256] = [const { [const { AtomicI32::new(0) }; 8] }; 256];

/// Descriptors of a device that a child process closes, lest the device stays open as long as the
/// child lives. Dropped, they stay: the owner is about to close them.
#[derive(Debug)]
#[must_use = "children keep the descriptors when it is dropped"]
pub struct Inherited(Option<&'static Descriptors>);

impl Inherited {
    /// Has children close these.
    pub fn new(descriptors: &[RawFd]) -> Self {
        let is_free = |entry: &&Descriptors| {
            let [first, ..] = entry;
            first.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let entry = OPEN.iter().find(is_free);
        if let Some(entry) = entry {
            // The first marks the entry as complete.
            for (to, descriptor) in entry.iter().zip(descriptors).rev() {
                to.store(descriptor + 1, Ordering::Release);
            }
        }
        Self(entry)
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        // The first is the last to go: the entry is another device's then.
        for descriptor in self.0.into_iter().flatten().rev() {
            descriptor.store(0, Ordering::Release);
        }
    }
}

/// Closes the descriptors of the parent's devices. For a child process: it only loads, stores and
/// calls `close`, all of which it may do after the fork of a process with threads.
pub fn close_inherited() {
    for descriptor in OPEN.iter().flatten() {
        let descriptor = descriptor.swap(0, Ordering::Relaxed) - 1;
        if descriptor >= 0 {
            // SAFETY: `descriptor` is this process's copy of its parent's, and nothing of the
            // parent's is used here.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Has the process call a function when it ends in order; once, by a guard of the library's.
pub fn at_exit(guarded: &AtomicBool, end: extern "C" fn()) {
    if !guarded.swap(true, Ordering::Relaxed) {
        // SAFETY: as below.
        unsafe { libc::atexit(end) };
    }
}

/// Has children call a function that may do nothing but store to statics and [`close_inherited`];
/// once, by a guard of the library's.
pub fn guard_children(guarded: &AtomicBool, forget: extern "C" fn()) {
    if !guarded.swap(true, Ordering::Relaxed) {
        // SAFETY: the function is the library's, which is never unloaded once it has been used.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}
