//! What a process has: nodes, and names. A child process begins with nothing, because the devices are
//! its parent's.

use crate::foreign;
use crate::node::Node;
use crate::nodes;
use crate::registry::Names;
use capi_device::{at_exit, close_inherited, guard_children};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names, and what is open under them.
static NAMES: AtomicPtr<Mutex<Names>> = AtomicPtr::new(ptr::null_mut());
/// Whether children forget.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Whether the end of the process closes what is open.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The process ends: peers hear of it at once, and not by their retries.
extern "C" fn end() {
    // A mistake here is none of the program's, which has done what it wanted.
    let _ = catch_unwind(|| nodes::all().for_each(Node::end));
}

/// The names, locked.
pub(crate) fn names() -> MutexGuard<'static, Names> {
    let mut names = NAMES.load(Ordering::Acquire);
    if names.is_null() {
        guard_children(&GUARDED, forget);
        at_exit(&ENDS, end);
        let made = Box::into_raw(Box::new(Mutex::new(Names::default())));
        names = match NAMES.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: another thread was faster, and nobody has seen this one.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
    }
    // SAFETY: what was stored there was leaked for good.
    unsafe { &*names }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child process has none of this: not the threads, and not the devices. Its handles are dead; it may open devices of its own.
extern "C" fn forget() {
    nodes::forget();
    foreign::forget_all();
    close_inherited();
    NAMES.store(ptr::null_mut(), Ordering::Release);
}
