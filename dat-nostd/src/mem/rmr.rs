//! Remote memory regions as objects, and what their binds make of them.

use driver_mlx::{MemoryWindow, Pd, RKey};

use crate::base::handle::{EpHandle, IaHandle, LmrHandle, PzHandle, RmrHandle};
use crate::base::ret::{DatReturn, ReturnType};
use crate::base::table::{Slot, Table, of_ia};
use crate::mem::bind::{Bind, BindSlot, Binds, Bound, Pending};

pub(crate) const FULL: DatReturn = DatReturn::new(ReturnType::InsufficientResources);

/// A remote memory region.
#[derive(Debug)]
pub struct Rmr {
    ia: IaHandle,
    pz: PzHandle,
    pd: Pd,
    window: MemoryWindow,
    /// Its binds in flight.
    pending: Pending,
    /// As of the newest bind that is known to have succeeded, and which one that was.
    confirmed: Option<Bound>,
    order: u64,
    /// The device's key as of that bind; at first, as the window was made.
    stands: RKey,
}

of_ia! { Rmr }

impl Rmr {
    /// A window that is bound to nothing.
    pub(crate) fn new(ia: IaHandle, pz: PzHandle, pd: Pd, window: MemoryWindow) -> Self {
        Self { ia, pz, pd, window, pending: Pending::NONE, confirmed: None, order: 0, stands: window.rkey() }
    }

    pub(crate) fn pz(&self) -> PzHandle {
        self.pz
    }

    pub(crate) fn pd(&self) -> Pd {
        self.pd
    }

    /// The window as the next bind finds it.
    pub(crate) fn window(&self) -> MemoryWindow {
        self.window
    }

    /// A bind was posted that makes this of the window.
    pub(crate) fn set_window(&mut self, window: MemoryWindow) {
        self.window = window;
    }
}

/// The windows of an adapter, and the binds of them that are in flight.
pub(crate) struct Windows<'s> {
    rmrs: Table<'s, RmrHandle, Rmr>,
    binds: Binds<'s>,
}

impl<'s> Windows<'s> {
    /// Without any, over these places.
    pub(crate) fn new(rmrs: &'s mut [Slot<Rmr>], binds: &'s mut [BindSlot]) -> Self {
        Self { rmrs: Table::new(rmrs), binds: Binds::new(binds) }
    }

    /// The RMRs.
    pub(crate) fn table(&self) -> &Table<'s, RmrHandle, Rmr> {
        &self.rmrs
    }

    pub(crate) fn table_mut(&mut self) -> &mut Table<'s, RmrHandle, Rmr> {
        &mut self.rmrs
    }

    /// Returns a place for a bind, which [`Windows::keep_bind`] takes.
    pub(crate) fn vacant_bind(&self) -> Option<u16> {
        self.binds.vacant()
    }

    /// Keeps a bind that was posted at a vacant place.
    pub(crate) fn keep_bind(&mut self, place: u16, bind: Bind, flushes: bool) {
        if let Ok(rmr) = self.rmrs.get_mut(bind.rmr) {
            self.binds.keep(place, bind, flushes, &mut rmr.pending);
        }
    }

    fn take_bind(&mut self, place: u16) -> Option<Bind> {
        let rmr = self.binds.at(place)?.rmr;
        self.binds.take(place, self.rmrs.get_mut(rmr).ok().map(|rmr| &mut rmr.pending))
    }

    /// A bind has completed; the window that it was of.
    pub(crate) fn bind_done(&mut self, place: u16, success: bool) -> Option<RmrHandle> {
        let bind = self.take_bind(place)?;
        // Binds of several EPs complete in any order; they were posted in one.
        if success
            && let Ok(rmr) = self.rmrs.get_mut(bind.rmr)
            && bind.order > rmr.order
        {
            (rmr.confirmed, rmr.order, rmr.stands) = (bind.bound, bind.order, bind.key);
        }
        if !success {
            self.not_carried_out(&bind);
        }
        Some(bind.rmr)
    }

    /// The binds of an EP will not complete.
    pub(crate) fn forget_binds(&mut self, ep: EpHandle) {
        for place in self.binds.places() {
            if self.binds.at(place).is_some_and(|bind| bind.ep == ep)
                && let Some(bind) = self.take_bind(place)
            {
                self.not_carried_out(&bind);
            }
        }
    }

    /// Undoes a bind that the device never carried out. Without another pending bind, the window gets the device's key back, and the
    /// next bind derives the same key as this one.
    fn not_carried_out(&mut self, bind: &Bind) {
        if let Ok(rmr) = self.rmrs.get_mut(bind.rmr)
            && !rmr.pending.any()
        {
            rmr.window.set_variant(rmr.stands);
        }
    }

    /// Unbinds the window whose context a peer's send has invalidated, even if completions of its binds are pending.
    #[cold]
    pub(crate) fn invalidated(&mut self, rmr_context: u32) {
        for slot in self.rmrs.slots() {
            // Only the key of each is looked at: how often this is called is up to peers.
            if let Some(rmr) = self.rmrs.at_mut(slot)
                && rmr.window.rkey().get() == rmr_context
            {
                let newest = self.binds.of(rmr.pending).next().map_or(0, |bind| bind.order);
                (rmr.confirmed, rmr.order, rmr.stands) = (None, rmr.order.max(newest), rmr.window.rkey());
            }
        }
    }

    /// Returns the binding of a window after all pending binds, provided that they succeed.
    pub(crate) fn bound(&self, rmr: &Rmr) -> Option<Bound> {
        match self.binds.of(rmr.pending).next() {
            Some(last) if last.order > rmr.order => last.bound,
            _ => rmr.confirmed,
        }
    }

    /// Returns whether a window is bound to an LMR, or a pending bind names it.
    fn holds(&self, rmr: &Rmr, lmr: LmrHandle) -> bool {
        let pending = self.binds.of(rmr.pending).map(|bind| bind.bound);
        pending.chain([rmr.confirmed]).flatten().any(|bound| bound.lmr == lmr)
    }

    /// Returns whether any window is bound to an LMR, or may be.
    pub(crate) fn is_bound(&self, lmr: LmrHandle) -> bool {
        self.rmrs.iter().any(|(_, rmr)| self.holds(rmr, lmr))
    }
}
