//! What stays for the rest of the process on purpose.

use std::sync::atomic::AtomicPtr;
use std::sync::{Mutex, PoisonError};

/// Everything that was kept, so that it is no leak to those who look for leaks.
static KEPT: Mutex<Vec<AtomicPtr<()>>> = Mutex::new(Vec::new());

/// Keeps what `pointer` points to.
pub(crate) fn remember<T: ?Sized>(pointer: *mut T) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(pointer.cast()));
}

/// Puts `value` where it stays for the rest of the process.
pub fn keep<T>(value: T) -> &'static mut T {
    let kept = Box::leak(Box::new(value));
    remember(kept);
    kept
}
