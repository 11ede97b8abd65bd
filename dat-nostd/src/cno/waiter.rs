//! Waits on CNOs: tokens that end their wait when they are dropped, and the cells that tokens and adapter share.

use core::sync::atomic::{AtomicU32, Ordering};

use driver_mlx::{Instant, Wake};

use crate::base::handle::{CnoHandle, EvdHandle, Typed};

/// An open `dat_cno_wait`, from [`Adapter::cno_wait_begin`](crate::Adapter::cno_wait_begin). Any number may be open on one CNO; each
/// trigger ends one of them. Dropping it gives the wait up; a trigger stays for others.
#[must_use = "a wait ends when its waiter is dropped"]
#[derive(Debug)]
pub struct CnoWaiter<'s> {
    cno: CnoHandle,
    /// The cell of the CNO's slot: low half of its generation, and number of open waits.
    cell: &'s AtomicU32,
    /// Nanoseconds.
    deadline: Instant,
    /// `releases` of the CNO when the wait began.
    releases: u32,
    open: bool,
}

impl CnoWaiter<'_> {
    /// The CNO that it waits on.
    pub fn cno(&self) -> CnoHandle {
        self.cno
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn releases(&self) -> u32 {
        self.releases
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// The wait is over.
    pub(super) fn end(&mut self) {
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

/// The half of a cell with the generation of its CNO.
const TAG: u32 = 0xffff_0000;

fn tag(cno: CnoHandle) -> u32 {
    cno.any().generation() << 16
}

/// A cell for each slot of a CNO, which the tokens share.
#[derive(Debug)]
pub(super) struct Cells<'s>(&'s [AtomicU32]);

impl<'s> Cells<'s> {
    pub(super) fn new(cells: &'s [AtomicU32]) -> Self {
        Self(cells)
    }

    /// A wait on a CNO begins; `None` if there are too many.
    pub(super) fn begin(&self, cno: CnoHandle, deadline: Instant, releases: u32) -> Option<CnoWaiter<'s>> {
        let cell = self.0.get(usize::from(cno.any().slot()))?;
        let own = tag(cno);
        let count = self.waiters(cno);
        if count >= !TAG {
            return None;
        }
        cell.store(own | (count + 1), Ordering::Relaxed);
        Some(CnoWaiter { cno, cell, deadline, releases, open: true })
    }

    /// Waits open on a CNO.
    pub(super) fn waiters(&self, cno: CnoHandle) -> u32 {
        let cell = self.0.get(usize::from(cno.any().slot()));
        let cell = cell.map_or(0, |cell| cell.load(Ordering::Relaxed));
        if cell & TAG == tag(cno) { cell & !TAG } else { 0 }
    }
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

    #[test]
    fn waiters_of_a_cno_are_counted() {
        let cells = [const { AtomicU32::new(0) }; 1];
        let waits = Cells::new(&cells);
        let (old, new) = (CnoHandle::make(1, 0, 7), CnoHandle::make(1, 0, 8));
        let mut first = waits.begin(old, Instant::from_nanos(0), 0).unwrap();
        let second = waits.begin(old, Instant::from_nanos(0), 0).unwrap();
        assert_eq!((waits.waiters(old), waits.waiters(new)), (2, 0));
        first.end();
        drop(first);
        assert_eq!(waits.waiters(old), 1);
        // The CNO goes, and another has its slot.
        let third = waits.begin(new, Instant::from_nanos(0), 0).unwrap();
        drop(second);
        assert_eq!(waits.waiters(new), 1);
        drop(third);
        assert_eq!(waits.waiters(new), 0);
    }
}
