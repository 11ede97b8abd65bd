//! The nodes of a process, by the number in their handles. They stay as long as the process.

use crate::node::Node;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

static NODES: [AtomicPtr<Node>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];

/// The node whose handles have this number.
#[inline]
pub(crate) fn get(id: u8) -> Option<&'static Node> {
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

/// There are none any more. For a child process: it may do nothing but store.
pub(crate) fn forget() {
    for node in &NODES {
        node.store(ptr::null_mut(), Ordering::Release);
    }
}
