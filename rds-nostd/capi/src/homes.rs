//! Where sockets are, by their numbers: a table that is read without a lock, so that handlers of signals can ask.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Entries of a part of the table, and parts: more numbers than Linux gives a process, unless it is told to (`fs.nr_open`).
const PART: usize = 4096;
const PARTS: usize = 4096;

/// Where one socket is.
struct Home<N> {
    node: AtomicPtr<N>,
    /// The library's own number of the same descriptor.
    own: AtomicI32,
    /// This number is itself the library's own of some socket.
    is_own: AtomicBool,
}

/// A number is the library's own as long as there is this.
pub(crate) struct Mark(&'static AtomicBool);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<N> Default for Home<N> {
    fn default() -> Self {
        let node = AtomicPtr::new(ptr::null_mut());
        Self { node, own: AtomicI32::new(-1), is_own: AtomicBool::new(false) }
    }
}

type Part<N> = [Home<N>; PART];

/// Where sockets are. Parts are made when they are needed, and stay.
pub(crate) struct Homes<N: 'static> {
    parts: [AtomicPtr<Part<N>>; PARTS],
}

impl<N> Default for Homes<N> {
    fn default() -> Self {
        Self { parts: [const { AtomicPtr::new(ptr::null_mut()) }; PARTS] }
    }
}

impl<N> Homes<N> {
    fn part(&self, fd: RawFd) -> Option<(&AtomicPtr<Part<N>>, usize)> {
        let place = usize::try_from(fd).ok()?;
        Some((self.parts.get(place / PART)?, place % PART))
    }

    fn entry(&self, fd: RawFd) -> Option<&Home<N>> {
        let (part, place) = self.part(fd)?;
        // SAFETY: null, or leaked by `settle`.
        unsafe { part.load(Ordering::Acquire).as_ref() }?.get(place)
    }

    /// The entry of a number, whose part of the table is made if there is none; None for one that the table does not reach.
    fn made(&self, fd: RawFd) -> Option<&Home<N>> {
        let (part, place) = self.part(fd)?;
        if part.load(Ordering::Acquire).is_null() {
            // Not by way of the stack, which may be a small one.
            let entries: Box<[Home<N>]> = (0..PART).map(|_| Home::default()).collect();
            let made = Box::into_raw(entries.try_into().ok()?);
            if part.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was faster, and nobody has seen this one.
                drop(unsafe { Box::from_raw(made) });
            }
        }
        // SAFETY: leaked, just now or before.
        unsafe { part.load(Ordering::Acquire).as_ref() }?.get(place)
    }

    /// Marks a number as the library's own.
    pub(crate) fn mark(&'static self, own: RawFd) -> Option<Mark> {
        let is_own = &self.made(own)?.is_own;
        is_own.store(true, Ordering::Release);
        Some(Mark(is_own))
    }

    /// Whether a number is the library's own.
    pub(crate) fn is_own(&self, fd: RawFd) -> bool {
        self.entry(fd).is_some_and(|home| home.is_own.load(Ordering::Acquire))
    }

    /// Where the socket with this number is, and the library's own number of it.
    pub(crate) fn get(&self, fd: RawFd) -> Option<(&'static N, RawFd)> {
        let home = self.entry(fd)?;
        // SAFETY: null, or the reference that `settle` was given.
        let node = unsafe { home.node.load(Ordering::Acquire).as_ref() }?;
        Some((node, home.own.load(Ordering::Relaxed)))
    }

    /// A socket is there from now on. Where another one was that had its number; None for a number that the table does not reach.
    pub(crate) fn settle(&self, fd: RawFd, node: &'static N, own: RawFd) -> Option<Option<&'static N>> {
        let home = self.made(fd)?;
        home.own.store(own, Ordering::Relaxed);
        let before = home.node.swap(ptr::from_ref(node).cast_mut(), Ordering::AcqRel);
        // SAFETY: null, or the reference that this function was given.
        Some(unsafe { before.as_ref() })
    }

    /// It is there no more, if it was.
    pub(crate) fn leave(&self, fd: RawFd, node: &'static N) {
        if let Some(home) = self.entry(fd) {
            let node = ptr::from_ref(node).cast_mut();
            let _ = home.node.compare_exchange(node, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_come_move_and_go() {
        static NODES: [u8; 2] = [1, 2];
        let [first, second] = &NODES;
        let homes = Box::<Homes<u8>>::default();
        let last = (PART * PARTS - 1) as RawFd;
        for fd in [0, 3, PART as RawFd, last] {
            assert_eq!(homes.get(fd), None);
            assert_eq!(homes.settle(fd, first, 7), Some(None));
            assert_eq!(homes.settle(fd, second, 8), Some(Some(first)));
            // It has moved.
            homes.leave(fd, first);
            assert_eq!(homes.get(fd), Some((second, 8)));
            homes.leave(fd, second);
            assert_eq!(homes.get(fd), None);
        }
        for fd in [-1, last + 1, RawFd::MAX, RawFd::MIN] {
            assert_eq!((homes.get(fd), homes.settle(fd, first, 7)), (None, None));
            homes.leave(fd, first);
        }
    }

    #[test]
    fn numbers_are_the_librarys_own_for_a_time() {
        let homes = Box::leak(Box::<Homes<u8>>::default());
        let mark = homes.mark(7);
        assert_eq!([6, 7, 8, -1].map(|fd| homes.is_own(fd)), [false, true, false, false]);
        assert!(homes.mark(-1).is_none() && homes.get(7).is_none());
        drop(mark);
        assert!(!homes.is_own(7));
    }
}
