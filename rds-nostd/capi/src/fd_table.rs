//! Table from descriptors to nodes, read without a lock so that signal handlers can use it.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Entries per part, and parts: together more than Linux's default limit of descriptors
/// (`fs.nr_open`).
const PART: usize = 4096;
const PARTS: usize = 4096;

/// Entry of a socket.
struct FdEntry<N> {
    node: AtomicPtr<N>,
    /// The library's own descriptor of the socket.
    own: AtomicI32,
    /// True if this number is itself an own descriptor of the library.
    is_own: AtomicBool,
}

/// Marks a number as the library's own until it is dropped.
pub(crate) struct Mark(&'static AtomicBool);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<N> Default for FdEntry<N> {
    fn default() -> Self {
        let node = AtomicPtr::new(ptr::null_mut());
        Self { node, own: AtomicI32::new(-1), is_own: AtomicBool::new(false) }
    }
}

type Part<N> = [FdEntry<N>; PART];

/// Table of sockets. Parts are allocated on demand and never freed.
pub(crate) struct FdTable<N: 'static> {
    parts: [AtomicPtr<Part<N>>; PARTS],
}

impl<N> Default for FdTable<N> {
    fn default() -> Self {
        Self { parts: [const { AtomicPtr::new(ptr::null_mut()) }; PARTS] }
    }
}

impl<N> FdTable<N> {
    fn part(&self, fd: RawFd) -> Option<(&AtomicPtr<Part<N>>, usize)> {
        let place = usize::try_from(fd).ok()?;
        Some((self.parts.get(place / PART)?, place % PART))
    }

    fn entry(&self, fd: RawFd) -> Option<&FdEntry<N>> {
        let (part, place) = self.part(fd)?;
        // SAFETY: null, or leaked by `insert`.
        unsafe { part.load(Ordering::Acquire).as_ref() }?.get(place)
    }

    /// Returns the entry of a number, and allocates its part if necessary. Returns `None` beyond
    /// the table.
    fn made(&self, fd: RawFd) -> Option<&FdEntry<N>> {
        let (part, place) = self.part(fd)?;
        if part.load(Ordering::Acquire).is_null() {
            // Build the part on the heap: the stack may be small.
            let entries: Box<[FdEntry<N>]> = (0..PART).map(|_| FdEntry::default()).collect();
            let made = Box::into_raw(entries.try_into().ok()?);
            if part.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was faster, and no reference to this part exists.
                drop(unsafe { Box::from_raw(made) });
            }
        }
        // SAFETY: parts are leaked.
        unsafe { part.load(Ordering::Acquire).as_ref() }?.get(place)
    }

    /// Marks a number as the library's own.
    pub(crate) fn mark(&'static self, own: RawFd) -> Option<Mark> {
        let is_own = &self.made(own)?.is_own;
        is_own.store(true, Ordering::Release);
        Some(Mark(is_own))
    }

    /// Returns whether a number is the library's own.
    pub(crate) fn is_own(&self, fd: RawFd) -> bool {
        self.entry(fd).is_some_and(|entry| entry.is_own.load(Ordering::Acquire))
    }

    /// Returns the node of a socket, and the library's descriptor of it.
    pub(crate) fn get(&self, fd: RawFd) -> Option<(&'static N, RawFd)> {
        let entry = self.entry(fd)?;
        // SAFETY: null, or the reference that `insert` stored.
        let node = unsafe { entry.node.load(Ordering::Acquire).as_ref() }?;
        Some((node, entry.own.load(Ordering::Relaxed)))
    }

    /// Adds a socket. Returns the node of an earlier socket with this number; `None` if the number
    /// is beyond the table.
    pub(crate) fn insert(&self, fd: RawFd, node: &'static N, own: RawFd) -> Option<Option<&'static N>> {
        let entry = self.made(fd)?;
        entry.own.store(own, Ordering::Relaxed);
        let before = entry.node.swap(ptr::from_ref(node).cast_mut(), Ordering::AcqRel);
        // SAFETY: null, or the reference that an earlier call stored.
        Some(unsafe { before.as_ref() })
    }

    /// Removes a socket, if it is still at this node.
    pub(crate) fn remove(&self, fd: RawFd, node: &'static N) {
        if let Some(entry) = self.entry(fd) {
            let node = ptr::from_ref(node).cast_mut();
            let _ = entry.node.compare_exchange(node, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_follows_a_socket_that_moves() {
        static NODES: [u8; 2] = [1, 2];
        let [first, second] = &NODES;
        let fd_table = Box::<FdTable<u8>>::default();
        let last = (PART * PARTS - 1) as RawFd;
        for fd in [0, 3, PART as RawFd, last] {
            assert_eq!(fd_table.get(fd), None);
            assert_eq!(fd_table.insert(fd, first, 7), Some(None));
            assert_eq!(fd_table.insert(fd, second, 8), Some(Some(first)));
            // The socket has moved, so this has no effect.
            fd_table.remove(fd, first);
            assert_eq!(fd_table.get(fd), Some((second, 8)));
            fd_table.remove(fd, second);
            assert_eq!(fd_table.get(fd), None);
        }
        for fd in [-1, last + 1, RawFd::MAX, RawFd::MIN] {
            assert_eq!((fd_table.get(fd), fd_table.insert(fd, first, 7)), (None, None));
            fd_table.remove(fd, first);
        }
    }

    #[test]
    fn a_mark_lasts_until_it_is_dropped() {
        let fd_table = Box::leak(Box::<FdTable<u8>>::default());
        let mark = fd_table.mark(7);
        assert_eq!([6, 7, 8, -1].map(|fd| fd_table.is_own(fd)), [false, true, false, false]);
        assert!(fd_table.mark(-1).is_none() && fd_table.get(7).is_none());
        drop(mark);
        assert!(!fd_table.is_own(7));
    }
}
