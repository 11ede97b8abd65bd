//! Binds on their way: what each of them makes of its window, until it has completed or never will.
//!
//! A window may be bound again, and by other EPs, before the first bind has completed; when one fails, what the newest of those that
//! succeeded made of the window still stands.

use driver_mlx::RKey;

use crate::base::attr::RmrBinding;
use crate::base::handle::{EpHandle, LmrHandle, RmrHandle};

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
    /// Grows from bind to bind; 0 if it was posted to an EP that only flushes, and so is never carried out.
    pub(crate) order: u64,
    /// None if it unbinds.
    pub(crate) bound: Option<Bound>,
    /// The window's key once it is carried out.
    pub(crate) key: RKey,
}

/// A place for a bind; an empty one is all zero bytes.
#[derive(Debug)]
pub struct BindSlot {
    taken: bool,
    bind: Bind,
}

impl BindSlot {
    /// Nothing in it.
    pub const EMPTY: Self = Self {
        taken: false,
        bind: Bind {
            rmr: RmrHandle::from_bits(0),
            ep: EpHandle::from_bits(0),
            order: 0,
            bound: None,
            key: RKey::new(0),
        },
    };
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
        self.slots.iter().position(|slot| !slot.taken).map(|place| place as u16)
    }

    /// A bind was posted.
    pub(crate) fn keep(&mut self, place: u16, bind: Bind, flushes: bool) {
        self.posted += 1;
        let order = if flushes { 0 } else { self.posted };
        if let Some(slot) = self.slots.get_mut(usize::from(place)) {
            *slot = BindSlot { taken: true, bind: Bind { order, ..bind } };
        }
    }

    /// The bind at this place has completed.
    pub(crate) fn take(&mut self, place: u16) -> Option<Bind> {
        let slot = self.slots.get_mut(usize::from(place))?;
        core::mem::take(&mut slot.taken).then_some(slot.bind)
    }

    /// Takes one of the binds of an EP: it will not complete.
    pub(crate) fn take_of(&mut self, ep: EpHandle) -> Option<Bind> {
        let slot = self.slots.iter_mut().find(|slot| slot.taken && slot.bind.ep == ep)?;
        slot.taken = false;
        Some(slot.bind)
    }

    /// Those of a window that may be carried out.
    pub(crate) fn of(&self, rmr: RmrHandle) -> impl Iterator<Item = &Bind> {
        let taken = self.slots.iter().filter(|slot| slot.taken).map(|slot| &slot.bind);
        taken.filter(move |bind| bind.rmr == rmr && bind.order > 0)
    }
}
