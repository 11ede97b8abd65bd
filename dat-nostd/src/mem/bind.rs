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
    /// Places plus one, 0 for none. Taken: the binds of the same window before and after this one.
    /// Vacant: `older` is the next vacant place.
    older: u32,
    newer: u32,
    bind: Bind,
}

impl BindSlot {
    /// Nothing in it.
    pub const EMPTY: Self = Self {
        taken: false,
        older: 0,
        newer: 0,
        bind: Bind {
            rmr: RmrHandle::from_bits(0),
            ep: EpHandle::from_bits(0),
            order: 0,
            bound: None,
            key: RKey::new(0),
        },
    };
}

/// The binds of a window that may be carried out: the place of the newest plus one, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending(u32);

impl Pending {
    /// None.
    pub(crate) const NONE: Self = Self(0);

    /// Returns whether there is a bind.
    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}

/// All binds in flight. A place is found, and a window's binds are listed, without a look at those
/// of other windows: a peer decides how often that is.
pub(crate) struct Binds<'s> {
    slots: &'s mut [BindSlot],
    /// Binds posted so far.
    posted: u64,
    /// Binds in flight.
    count: u32,
    /// Places from here on were never used.
    fresh: u32,
    /// The first vacant place before those, plus one; 0 for none.
    free: u32,
    #[cfg(test)]
    visits: core::cell::Cell<u32>,
}

impl<'s> Binds<'s> {
    /// At most 65,536 places are used: a work request has 16 bits for one.
    pub(crate) fn new(slots: &'s mut [BindSlot]) -> Self {
        Self {
            slots,
            posted: 0,
            count: 0,
            fresh: 0,
            free: 0,
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
        }
    }

    fn slot(&self, place: u16) -> Option<&BindSlot> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.slots.get(usize::from(place))
    }

    fn slot_mut(&mut self, place: u16) -> Option<&mut BindSlot> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.slots.get_mut(usize::from(place))
    }

    /// The slot of a link.
    fn linked(&mut self, link: u32) -> Option<&mut BindSlot> {
        self.slot_mut(link.checked_sub(1)? as u16)
    }

    /// A vacant place; a new bind keeps it by [`Binds::keep`].
    pub(crate) fn vacant(&self) -> Option<u16> {
        match self.free.checked_sub(1) {
            Some(place) => Some(place as u16),
            None => ((self.fresh as usize) < self.slots.len().min(1 << 16)).then_some(self.fresh as u16),
        }
    }

    /// A bind was posted at the vacant place. A bind that an EP only flushes is not among its
    /// window's.
    pub(crate) fn keep(&mut self, place: u16, bind: Bind, flushes: bool, pending: &mut Pending) {
        self.posted += 1;
        let (free, order) = (self.free, if flushes { 0 } else { self.posted });
        let link = u32::from(place) + 1;
        let older = if flushes { 0 } else { pending.0 };
        let Some(slot) = self.slot_mut(place) else { return };
        let next = slot.older;
        *slot = BindSlot { taken: true, older, newer: 0, bind: Bind { order, ..bind } };
        if free == link {
            self.free = next;
        } else {
            self.fresh = self.fresh.max(link);
        }
        self.count += 1;
        if !flushes {
            pending.0 = link;
            if let Some(older) = self.linked(older) {
                older.newer = link;
            }
        }
    }

    /// The bind at this place.
    pub(crate) fn at(&self, place: u16) -> Option<&Bind> {
        self.slot(place).filter(|slot| slot.taken).map(|slot| &slot.bind)
    }

    /// Takes the bind at this place: it has completed, or never will. `pending` are its window's;
    /// None if that is gone.
    pub(crate) fn take(&mut self, place: u16, pending: Option<&mut Pending>) -> Option<Bind> {
        let (link, free) = (u32::from(place) + 1, self.free);
        let slot = self.slot_mut(place).filter(|slot| slot.taken)?;
        let (bind, older, newer) = (slot.bind, slot.older, slot.newer);
        (slot.taken, slot.older, slot.newer) = (false, free, 0);
        self.free = link;
        self.count = self.count.saturating_sub(1);
        if bind.order > 0
            && let Some(pending) = pending
        {
            if let Some(older) = self.linked(older) {
                older.newer = newer;
            }
            match self.linked(newer) {
                Some(newer) => newer.older = older,
                None => pending.0 = older,
            }
        }
        Some(bind)
    }

    /// The places where binds may be.
    pub(crate) fn places(&self) -> impl Iterator<Item = u16> + use<> {
        (0..if self.count == 0 { 0 } else { self.fresh }).map(|place| place as u16)
    }

    /// The binds of a window that may be carried out, the newest first.
    pub(crate) fn of(&self, pending: Pending) -> impl Iterator<Item = &Bind> {
        let mut next = pending.0;
        // No more than there are.
        (0..self.count).map_while(move |_| {
            let slot = self.slot(next.checked_sub(1)? as u16)?;
            next = slot.older;
            Some(&slot.bind)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const WINDOWS: usize = 1024;

    fn bind(window: usize, ep: u64) -> Bind {
        let key = RKey::new(window as u32);
        let rmr = RmrHandle::from_bits(window as u64);
        Bind { rmr, ep: EpHandle::from_bits(ep), order: 0, bound: None, key }
    }

    fn keep(binds: &mut Binds<'_>, window: usize, pending: &mut Pending) -> u16 {
        let place = binds.vacant().expect("a place");
        binds.keep(place, bind(window, 1), false, pending);
        place
    }

    /// Slots that a call looks at among so many binds are no more than those of its window.
    #[test]
    fn a_window_s_binds_are_found_among_thousands() {
        let mut slots: Vec<_> = (0..2 * WINDOWS).map(|_| BindSlot::EMPTY).collect();
        let mut binds = Binds::new(&mut slots);
        let mut pending = [Pending::NONE; WINDOWS];
        let mut places = Vec::new();
        for _ in 0..2 {
            for (window, pending) in pending.iter_mut().enumerate() {
                places.push(keep(&mut binds, window, pending));
            }
        }
        assert_eq!(binds.vacant(), None);
        binds.visits.set(0);
        for window in [0, 500, WINDOWS - 1] {
            let orders: Vec<u64> = binds.of(pending[window]).map(|bind| bind.order).collect();
            assert_eq!(orders, [(WINDOWS + window + 1) as u64, (window + 1) as u64]);
            assert_eq!(binds.visits.replace(0), 2);
            assert_eq!(binds.of(pending[window]).next().map(|bind| bind.order), Some(orders[0]));
            assert_eq!(binds.visits.replace(0), 1);
        }
        let taken = binds.take(places[WINDOWS + 7], Some(&mut pending[7])).expect("a bind");
        assert_eq!((taken.rmr, binds.vacant()), (RmrHandle::from_bits(7), Some(places[WINDOWS + 7])));
        keep(&mut binds, 9, &mut pending[9]);
        assert!(binds.visits.get() <= 6, "{} slots", binds.visits.get());
        assert_eq!([7, 9].map(|window: usize| binds.of(pending[window]).count()), [1, 3]);
    }

    #[test]
    fn binds_leave_in_any_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut slots = [BindSlot::EMPTY; 4];
            let mut binds = Binds::new(&mut slots);
            let mut pending = Pending::NONE;
            let places = [0, 1, 2].map(|_| keep(&mut binds, 5, &mut pending));
            // A flushed bind has a place, and is not among them.
            let flushed = binds.vacant().expect("a place");
            binds.keep(flushed, bind(5, 2), true, &mut pending);
            let mut left = places.to_vec();
            for at in order {
                assert!(binds.take(places[at], Some(&mut pending)).is_some());
                assert!(binds.take(places[at], Some(&mut pending)).is_none());
                left.retain(|place| *place != places[at]);
                let of: Vec<u64> = binds.of(pending).map(|bind| bind.order).collect();
                assert_eq!(of, left.iter().rev().map(|place| u64::from(*place) + 1).collect::<Vec<_>>());
            }
            assert!(!pending.any() && binds.at(flushed).is_some_and(|bind| bind.order == 0));
            assert_eq!(binds.places().filter(|place| binds.at(*place).is_some()).count(), 1);
            assert!(binds.take(flushed, None).is_some() && binds.places().next().is_none());
            // All places serve again.
            let again: Vec<u16> = (0..4).map(|_| keep(&mut binds, 1, &mut pending)).collect();
            assert_eq!(again.iter().copied().collect::<std::collections::BTreeSet<_>>().len(), 4);
            assert_eq!(binds.vacant(), None);
        }
    }
}
