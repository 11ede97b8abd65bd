//! Who waits: tokens that end their wait when they are dropped, and the cells by which the adapter learns of it.

use core::sync::atomic::{AtomicU32, Ordering};

use driver_mlx::{Instant, Wake};

use crate::base::event::Event;
use crate::base::handle::{EvdHandle, Typed};

/// An open `dat_evd_wait`, from [`Adapter::evd_wait_begin`](crate::Adapter::evd_wait_begin). While it lives, nobody else waits on the
/// EVD or takes events from it, as while a thread is in `dat_evd_wait`. Dropping it gives the wait up: the EVD is free again, and
/// nothing is lost. (`core::mem::forget` is a thread that hangs in the call: the EVD stays taken until it is freed.)
#[must_use = "a wait ends when its waiter is dropped"]
#[derive(Debug)]
pub struct EvdWaiter<'s> {
    evd: EvdHandle,
    /// Of the EVD's slot: the number of the open wait, 0 for none.
    cell: &'s AtomicU32,
    number: u32,
}

impl EvdWaiter<'_> {
    /// The EVD that it waits on.
    pub fn evd(&self) -> EvdHandle {
        self.evd
    }

    pub(crate) fn is_open(&self) -> bool {
        self.cell.load(Ordering::Relaxed) == self.number
    }

    fn end(&self) {
        // A later wait on the same EVD, or on another in its slot, has another number.
        let _ = self.cell.compare_exchange(self.number, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for EvdWaiter<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Open waits: a cell for each EVD slot, which tokens and adapter share.
#[derive(Debug)]
pub(crate) struct Waits<'s> {
    evds: &'s [AtomicU32],
    /// Of the last wait on an EVD.
    number: u32,
}

impl<'s> Waits<'s> {
    pub(crate) fn new(evds: &'s [AtomicU32]) -> Self {
        Self { evds, number: 0 }
    }

    /// Whether a wait is open on the EVD in this slot: it has begun, has not ended, and its token lives.
    pub(crate) fn is_open(&self, slot: u16) -> bool {
        self.evds.get(usize::from(slot)).is_some_and(|cell| cell.load(Ordering::Relaxed) != 0)
    }

    /// A wait begins; `None` if the slot has no cell.
    pub(crate) fn begin(&mut self, evd: EvdHandle) -> Option<EvdWaiter<'s>> {
        let cell = self.evds.get(usize::from(evd.any().slot()))?;
        self.number = self.number.checked_add(1).unwrap_or(1);
        cell.store(self.number, Ordering::Relaxed);
        Some(EvdWaiter { evd, cell, number: self.number })
    }

    /// No wait is open any more.
    pub(crate) fn end(&self, slot: u16) {
        if let Some(cell) = self.evds.get(usize::from(slot)) {
            cell.store(0, Ordering::Relaxed);
        }
    }
}

/// The wait that is open on an EVD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitState {
    /// Nanoseconds.
    pub(crate) deadline: Instant,
    pub(crate) threshold: u32,
    /// Whether the next poll may answer with events that do not notify: they were there when the wait began.
    pub(crate) first: bool,
    /// `evd_set_unwaitable` has ended it; the next poll says so.
    pub(crate) interrupted: bool,
}

/// Result of [`Adapter::evd_wait_poll`](crate::Adapter::evd_wait_poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Still waiting; poll again by this time, or when
    /// [`Adapter::next_ready`](crate::Adapter::next_ready) names the EVD.
    Pending(Wake),
    /// The oldest event, and how many are left.
    Ready(Event, u32),
    /// `DAT_TIMEOUT_EXPIRED`, and how many events are queued.
    TimedOut(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_waiter_ends_its_wait_and_no_other() {
        let evds = [const { AtomicU32::new(0) }; 2];
        let mut waits = Waits::new(&evds);
        let evd = EvdHandle::make(1, 1, 1);
        let first = waits.begin(evd).unwrap();
        assert!(waits.is_open(1) && !waits.is_open(0) && first.is_open());
        waits.end(1);
        assert!(!first.is_open());
        let second = waits.begin(evd).unwrap();
        drop(first);
        assert!(second.is_open() && waits.is_open(1));
        drop(second);
        assert!(!waits.is_open(1));
        waits.number = u32::MAX;
        assert!(waits.begin(evd).is_some_and(|waiter| waiter.number == 1 && waiter.is_open()));
        assert!(waits.begin(EvdHandle::make(1, 2, 1)).is_none());
    }
}
