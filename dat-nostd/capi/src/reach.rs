//! From a handle to the node that its object is on, with its lock.

use crate::handles::{Kinded, RawHandle, adapter_of};
use crate::node::{Inner, Node};
use crate::nodes;
use dat_nostd::DatResult;

/// The node of an object.
#[inline]
pub(crate) fn node_of<H: Kinded>(raw: RawHandle) -> DatResult<&'static Node> {
    nodes::get(adapter_of(raw)).map_or_else(H::invalid, Ok)
}

/// A call that neither waits nor makes others ready.
#[inline]
pub(crate) fn with<H: Kinded, R>(
    raw: RawHandle,
    call: impl FnOnce(&mut Inner, H) -> DatResult<R>,
) -> DatResult<R> {
    let node = node_of::<H>(raw)?;
    call(&mut node.lock(), H::of(raw))
}

/// A call after which others may be ready, or the library's thread has something to do.
pub(crate) fn control<H: Kinded, R>(
    raw: RawHandle,
    call: impl FnOnce(&mut Inner, H) -> DatResult<R>,
) -> DatResult<R> {
    let node = node_of::<H>(raw)?;
    let answer = {
        let mut inner = node.lock_urgently();
        let answer = call(&mut inner, H::of(raw));
        inner.parked.wake_all();
        answer
    };
    node.sleeper.wake();
    answer
}
