//! Who waits: tokens that end their wait when they are dropped, and the cells by which the adapter learns of it.

use driver_mlx::{Instant, Wake};

use core::sync::atomic::{AtomicU32, Ordering};

use crate::base::event::Event;
use crate::base::handle::{CnoHandle, EvdHandle, Typed};

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

/// An open `dat_cno_wait`, from [`Adapter::cno_wait_begin`](crate::Adapter::cno_wait_begin). Any number may be open on one CNO; each
/// trigger ends one of them. Dropping it gives the wait up; a trigger stays for others.
#[must_use = "a wait ends when its waiter is dropped"]
#[derive(Debug)]
pub struct CnoWaiter<'s> {
    cno: CnoHandle,
    /// Of the CNO's slot: the low half of its generation, and how many waits are open.
    cell: &'s AtomicU32,
    /// Nanoseconds.
    pub(crate) deadline: Instant,
    /// How often all waiters of the CNO had been released when it began.
    pub(crate) releases: u32,
    open: bool,
}

impl CnoWaiter<'_> {
    /// The CNO that it waits on.
    pub fn cno(&self) -> CnoHandle {
        self.cno
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The wait is over.
    pub(crate) fn end(&mut self) {
        if !core::mem::replace(&mut self.open, false) {
            return;
        }
        let own = tag(self.cno);
        // Another CNO in the slot counts its own.
        let _ = self.cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cell| {
            (cell & TAG == own && cell & !TAG != 0).then(|| cell - 1)
        });
    }
}

impl Drop for CnoWaiter<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The half of a CNO's cell that tells whose it is.
const TAG: u32 = 0xffff_0000;

fn tag(cno: CnoHandle) -> u32 {
    cno.any().generation() << 16
}

/// Who waits: a cell for each slot of an EVD, and of a CNO, which the tokens share.
#[derive(Debug)]
pub(crate) struct Waits<'s> {
    evds: &'s [AtomicU32],
    cnos: &'s [AtomicU32],
    /// Of the last wait on an EVD.
    number: u32,
}

impl<'s> Waits<'s> {
    pub(crate) fn new(evds: &'s [AtomicU32], cnos: &'s [AtomicU32]) -> Self {
        Self { evds, cnos, number: 0 }
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

    /// A wait on a CNO begins; `None` if there are too many.
    pub(crate) fn begin_cno(
        &self,
        cno: CnoHandle,
        deadline: Instant,
        releases: u32,
    ) -> Option<CnoWaiter<'s>> {
        let cell = self.cnos.get(usize::from(cno.any().slot()))?;
        let own = tag(cno);
        let count = self.cno_waiters(cno);
        if count >= !TAG {
            return None;
        }
        cell.store(own | (count + 1), Ordering::Relaxed);
        Some(CnoWaiter { cno, cell, deadline, releases, open: true })
    }

    /// Waits open on a CNO.
    pub(crate) fn cno_waiters(&self, cno: CnoHandle) -> u32 {
        let cell = self.cnos.get(usize::from(cno.any().slot()));
        let cell = cell.map_or(0, |cell| cell.load(Ordering::Relaxed));
        if cell & TAG == tag(cno) { cell & !TAG } else { 0 }
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

/// Result of [`Adapter::cno_wait_poll`](crate::Adapter::cno_wait_poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CnoWait {
    /// Still waiting; poll again by this time, or when
    /// [`Adapter::next_ready`](crate::Adapter::next_ready) names the CNO.
    Pending(Wake),
    /// Triggered, by this EVD first. None if that one is gone; if all are, or the CNO is: then all its waiters get this.
    Triggered(Option<EvdHandle>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells<const N: usize>() -> [AtomicU32; N] {
        [const { AtomicU32::new(0) }; N]
    }

    #[test]
    fn a_dropped_waiter_ends_its_wait_and_no_other() {
        let (evds, cnos) = (cells::<2>(), cells::<0>());
        let mut waits = Waits::new(&evds, &cnos);
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

    #[test]
    fn waiters_of_a_cno_are_counted() {
        let (evds, cnos) = (cells::<0>(), cells::<1>());
        let waits = Waits::new(&evds, &cnos);
        let (old, new) = (CnoHandle::make(1, 0, 7), CnoHandle::make(1, 0, 8));
        let mut first = waits.begin_cno(old, Instant::from_nanos(0), 0).unwrap();
        let second = waits.begin_cno(old, Instant::from_nanos(0), 0).unwrap();
        assert_eq!((waits.cno_waiters(old), waits.cno_waiters(new)), (2, 0));
        first.end();
        drop(first);
        assert_eq!(waits.cno_waiters(old), 1);
        // The CNO goes, and another has its slot.
        let third = waits.begin_cno(new, Instant::from_nanos(0), 0).unwrap();
        drop(second);
        assert_eq!(waits.cno_waiters(new), 1);
        drop(third);
        assert_eq!(waits.cno_waiters(new), 0);
    }
}
