//! Binds on their way: what each of them makes of its window, until it has completed or never will.
//!
//! A window may be bound again, and by other EPs, before the first bind has completed; when one fails, what the newest of those that
//! succeeded made of the window still stands.

use crate::attr::RmrBinding;
use crate::handle::{EpHandle, LmrHandle, RmrHandle};

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) lmr: LmrHandle,
    pub(crate) binding: RmrBinding,
}

/// A bind posted and not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    pub(crate) rmr: RmrHandle,
    pub(crate) ep: EpHandle,
    /// Grows from bind to bind.
    pub(crate) order: u64,
    /// None if it unbinds.
    pub(crate) bound: Option<Bound>,
    /// Posted to an EP that only flushes: never carried out.
    pub(crate) flushes: bool,
}

/// A place for a bind.
#[derive(Debug)]
pub struct BindSlot(Option<Bind>);

impl BindSlot {
    /// Nothing in it.
    pub const EMPTY: Self = Self(None);
}

/// All binds on their way.
pub(crate) struct Binds<'s> {
    slots: &'s mut [BindSlot],
    /// Binds posted so far.
    posted: u64,
}

impl<'s> Binds<'s> {
    pub(crate) fn new(slots: &'s mut [BindSlot]) -> Self {
        Self { slots, posted: 0 }
    }

    /// A place that nobody uses; a new bind keeps it by [`Binds::keep`].
    pub(crate) fn vacant(&self) -> Option<u16> {
        self.slots.iter().position(|slot| slot.0.is_none()).map(|place| place as u16)
    }

    /// A bind was posted.
    pub(crate) fn keep(
        &mut self,
        place: u16,
        rmr: RmrHandle,
        ep: EpHandle,
        bound: Option<Bound>,
        flushes: bool,
    ) {
        self.posted += 1;
        if let Some(slot) = self.slots.get_mut(usize::from(place)) {
            slot.0 = Some(Bind { rmr, ep, order: self.posted, bound, flushes });
        }
    }

    /// The bind at this place has completed.
    pub(crate) fn take(&mut self, place: u16) -> Option<Bind> {
        self.slots.get_mut(usize::from(place))?.0.take()
    }

    /// Forgets the binds of an EP: they will not complete.
    pub(crate) fn forget(&mut self, ep: EpHandle) {
        for slot in self.slots.iter_mut().filter(|slot| slot.0.is_some_and(|bind| bind.ep == ep)) {
            slot.0 = None;
        }
    }

    /// Those of a window that may be carried out.
    pub(crate) fn of(&self, rmr: RmrHandle) -> impl Iterator<Item = &Bind> {
        self.slots
            .iter()
            .filter_map(|slot| slot.0.as_ref())
            .filter(move |bind| bind.rmr == rmr && !bind.flushes)
    }
}
