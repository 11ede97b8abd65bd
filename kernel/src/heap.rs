//! With the feature `alloc`: the heap of an application that wants `alloc`'s vectors, strings and maps.

use core::fmt;

use linked_list_allocator::LockedHeap;

use crate::Machine;
use crate::memory::NoMemory;

/// Nothing of the unikernel's own allocates, interrupt handlers least of all: whoever holds the lock is never interrupted by one who waits
/// for it.
#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

/// Why the heap was given no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It has some already.
    Given,
    /// There is not so much.
    NoMemory(NoMemory),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("heap: it was given memory before"),
            Self::NoMemory(error) => write!(f, "heap: {error}"),
        }
    }
}

impl core::error::Error for Error {}

/// Gives the heap `bytes` of the machine's memory, once. What is allocated before that panics, as does later what does not fit.
///
/// # Errors
/// [`Error`].
pub fn give(machine: &mut Machine, bytes: u64) -> Result<(), Error> {
    let mut heap = HEAP.lock();
    if heap.size() != 0 {
        return Err(Error::Given);
    }
    heap.init_from_slice(machine.memory(bytes).map_err(Error::NoMemory)?);
    Ok(())
}

/// Bytes that are allocated, and bytes that the heap has.
#[must_use]
pub fn usage() -> (usize, usize) {
    let heap = HEAP.lock();
    (heap.used(), heap.size())
}
