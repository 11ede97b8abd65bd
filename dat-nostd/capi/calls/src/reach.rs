//! From a handle to the node that its object is on, with its lock.

use crate::handles::{Kinded, RawHandle, adapter_of};
use crate::node::Node;
use crate::state::State;
use dat_nostd::{CnoHandle, DatResult};

/// The node of an object.
#[inline]
pub(crate) fn node_of<N: Node, H: Kinded>(raw: RawHandle) -> DatResult<&'static N> {
    N::get(adapter_of(raw)).map_or_else(H::invalid, Ok)
}

/// The lock of an object's node.
#[inline]
pub(crate) fn lock<N: Node, H: Kinded>(node: &N) -> DatResult<N::Guard<'_>> {
    node.lock().map_or_else(H::invalid, Ok)
}

/// The same for a call that comes seldom.
pub(crate) fn lock_urgently<N: Node, H: Kinded>(node: &N) -> DatResult<N::Guard<'_>> {
    node.lock_urgently().map_or_else(H::invalid, Ok)
}

/// A call that neither waits nor makes others ready.
#[inline]
pub(crate) fn with<N: Node, H: Kinded, R>(
    raw: RawHandle,
    call: impl FnOnce(&mut State<N>, H) -> DatResult<R>,
) -> DatResult<R> {
    let node = node_of::<N, H>(raw)?;
    call(&mut *lock::<N, H>(node)?, H::of(raw))
}

/// A call that takes a CNO's agent away. It says what the next one is given.
pub(crate) fn replace_agent<N: Node>(
    raw: RawHandle,
    call: impl FnOnce(&mut State<N>, CnoHandle) -> DatResult<Option<usize>>,
) -> DatResult<()> {
    let node = node_of::<N, CnoHandle>(raw)?;
    let mut guard = lock_urgently::<N, CnoHandle>(node)?;
    match call(&mut *guard, CnoHandle::of(raw)) {
        Ok(kept) => {
            node.agent_gone(guard, raw, kept);
            Ok(())
        }
        Err(error) => {
            node.changed(guard);
            Err(error)
        }
    }
}

/// A call after which others may be ready, or something has to be moved on.
pub(crate) fn control<N: Node, H: Kinded, R>(
    raw: RawHandle,
    call: impl FnOnce(&mut State<N>, H) -> DatResult<R>,
) -> DatResult<R> {
    let node = node_of::<N, H>(raw)?;
    let mut guard = lock_urgently::<N, H>(node)?;
    let answer = call(&mut *guard, H::of(raw));
    node.changed(guard);
    answer
}
