//! What a process has: nodes by the number in their handles, and the names. A child process begins with nothing, because the devices are
//! its parent's.

use crate::node::Node;
use crate::registry::Names;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nodes, by the number in their handles. They stay as long as the process.
static NODES: [AtomicPtr<Node>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];
/// Names, and what is open under them.
static NAMES: AtomicPtr<Mutex<Names>> = AtomicPtr::new(ptr::null_mut());
/// Whether children forget.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// The node whose handles have this number.
#[inline]
pub(crate) fn node(id: u8) -> Option<&'static Node> {
    let node = NODES[usize::from(id)].load(Ordering::Acquire);
    // SAFETY: null, or a node that `enter` leaked.
    unsafe { node.as_ref() }
}

/// A new node; its number is below 256.
pub(crate) fn enter(id: u8, node: Node) -> &'static Node {
    let node = Box::into_raw(Box::new(node));
    NODES[usize::from(id)].store(node, Ordering::Release);
    // SAFETY: just leaked.
    unsafe { &*node }
}

/// The names, locked.
pub(crate) fn names() -> MutexGuard<'static, Names> {
    let mut names = NAMES.load(Ordering::Acquire);
    if names.is_null() {
        guard_children();
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
    for node in &NODES {
        node.store(ptr::null_mut(), Ordering::Release);
    }
    NAMES.store(ptr::null_mut(), Ordering::Release);
}

fn guard_children() {
    if !GUARDED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler only stores to statics of this library, which is never unloaded once it has been used.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}
