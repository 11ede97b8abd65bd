//! The nodes of a process, by the number in their handles. A node stays as long as the process, and is used again for another device when
//! its own is closed.

use crate::node::Node;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

static NODES: [AtomicPtr<Node>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];

/// The node whose handles have this number.
#[inline]
pub(crate) fn get(id: u8) -> Option<&'static Node> {
    let node = NODES[usize::from(id)].load(Ordering::Acquire);
    // SAFETY: null, or a node that `get_or_make` leaked.
    unsafe { node.as_ref() }
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Node> {
    (0..=u8::MAX).filter_map(get)
}

/// The node with this number, which is made if there was none. One thread at a time.
pub(crate) fn get_or_make(id: u8) -> &'static Node {
    get(id).unwrap_or_else(|| {
        let node: &'static Node = Box::leak(Box::default());
        NODES[usize::from(id)].store(ptr::from_ref(node).cast_mut(), Ordering::Release);
        node
    })
}

/// There are none any more. For a child process: it may do nothing but store.
pub(crate) fn forget() {
    for node in &NODES {
        node.store(ptr::null_mut(), Ordering::Release);
    }
}
