//! Tokens of open waits, and the cells that tokens and adapter share.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::base::handle::Typed;

/// An open wait on an object. Dropping it gives the wait up.
#[derive(Debug)]
pub(crate) struct Token<'s, H: Typed> {
    of: H,
    /// The cell of the object's slot: low half of its generation, and number of open waits.
    cell: &'s AtomicU32,
    open: bool,
}

impl<H: Typed> Token<'_, H> {
    /// The object that it waits on.
    pub(crate) fn of(&self) -> H {
        self.of
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The wait is over.
    pub(crate) fn end(&mut self) {
        if !core::mem::replace(&mut self.open, false) {
            return;
        }
        // Another object in the slot counts its own.
        let less = |cell| waiters(cell, self.of).checked_sub(1).map(|count| tag(self.of) | count);
        let _ = self.cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl<H: Typed> Drop for Token<'_, H> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The half of a cell with the generation of its object.
const TAG: u32 = 0xffff_0000;

fn tag<H: Typed>(of: H) -> u32 {
    of.any().generation() << 16
}

/// Waits on an object that a cell counts.
fn waiters<H: Typed>(cell: u32, of: H) -> u32 {
    if cell & TAG == tag(of) { cell & !TAG } else { 0 }
}

/// A cell for each slot of a table, which the tokens share.
#[derive(Debug)]
pub(crate) struct Cells<'s>(&'s [AtomicU32]);

impl<'s> Cells<'s> {
    pub(crate) fn new(cells: &'s [AtomicU32]) -> Self {
        Self(cells)
    }

    fn cell<H: Typed>(&self, of: H) -> Option<&'s AtomicU32> {
        self.0.get(usize::from(of.any().slot()))
    }

    /// Begins a wait on an object. Returns `None` if the slot has no cell, or from 65,535 waits on.
    pub(crate) fn begin<H: Typed>(&self, of: H) -> Option<Token<'s, H>> {
        let cell = self.cell(of)?;
        let more =
            |cell| Some(waiters(cell, of) + 1).filter(|count| *count <= !TAG).map(|count| tag(of) | count);
        cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Token { of, cell, open: true })
    }

    /// Returns the number of waits open on an object.
    pub(crate) fn waiters<H: Typed>(&self, of: H) -> u32 {
        self.cell(of).map_or(0, |cell| waiters(cell.load(Ordering::Relaxed), of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::handle::{CnoHandle, EvdHandle};

    #[test]
    fn waiters_of_an_object_are_counted() {
        let cells = [const { AtomicU32::new(0) }; 1];
        let waits = Cells::new(&cells);
        let (old, new) = (CnoHandle::make(1, 0, 7), CnoHandle::make(1, 0, 8));
        let mut first = waits.begin(old).unwrap();
        let second = waits.begin(old).unwrap();
        assert_eq!((waits.waiters(old), waits.waiters(new)), (2, 0));
        first.end();
        drop(first);
        assert_eq!(waits.waiters(old), 1);
        // The CNO goes, and another has its slot.
        let third = waits.begin(new).unwrap();
        drop(second);
        assert_eq!(waits.waiters(new), 1);
        drop(third);
        assert_eq!(waits.waiters(new), 0);
    }

    #[test]
    fn token_that_has_ended_ends_no_later_wait() {
        let cells = [const { AtomicU32::new(0) }; 2];
        let waits = Cells::new(&cells);
        let evd = EvdHandle::make(1, 1, 1);
        let mut first = waits.begin(evd).unwrap();
        assert!(first.is_open() && waits.waiters(EvdHandle::make(1, 0, 1)) == 0);
        first.end();
        assert!(!first.is_open() && waits.waiters(evd) == 0);
        let second = waits.begin(evd).unwrap();
        drop(first);
        assert!(second.is_open() && waits.waiters(evd) == 1);
        drop(second);
        assert_eq!(waits.waiters(evd), 0);
        cells[1].store(tag(evd) | !TAG, Ordering::Relaxed);
        assert!(waits.begin(evd).is_none());
        assert!(waits.begin(EvdHandle::make(1, 2, 1)).is_none());
    }
}
