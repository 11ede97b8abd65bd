//! What completions change beside their endpoint.

use crate::base::handle::{EpHandle, LmrHandle, RmrHandle, SrqHandle};
use crate::base::table::Table;
use crate::mem::bind::{Bind, Binds, Bound};
use crate::mem::rmr::Rmr;
use crate::srq::queue::Srq;

/// What completions change beside their EP.
pub(crate) struct Shared<'s> {
    pub(crate) srqs: Table<'s, SrqHandle, Srq>,
    pub(crate) rmrs: Table<'s, RmrHandle, Rmr>,
    pub(crate) binds: Binds<'s>,
}

impl Shared<'_> {
    /// A bind has completed; the window that it was of.
    pub(crate) fn bind_done(&mut self, place: u16, success: bool) -> Option<RmrHandle> {
        let bind = self.binds.take(place)?;
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
        while let Some(bind) = self.binds.take_of(ep) {
            self.not_carried_out(&bind);
        }
    }

    /// A bind was never carried out: with no other on its way the window has the key that it has in the device, and the next bind makes
    /// the same of it as this one would have.
    fn not_carried_out(&mut self, bind: &Bind) {
        if self.binds.of(bind.rmr).next().is_none()
            && let Ok(rmr) = self.rmrs.get_mut(bind.rmr)
        {
            rmr.window.rkey = rmr.stands;
        }
    }

    /// A peer's send has ended this context: the window that had it is bound to nothing, whatever is still to be told of its bind.
    #[cold]
    pub(crate) fn invalidated(&mut self, rmr_context: u32) {
        for slot in self.rmrs.slots() {
            let Some(handle) = self.rmrs.handle_at(slot) else { continue };
            let newest = self.binds.of(handle).map(|bind| bind.order).max().unwrap_or(0);
            if let Ok(rmr) = self.rmrs.get_mut(handle)
                && rmr.window.rkey.get() == rmr_context
            {
                (rmr.confirmed, rmr.order, rmr.stands) = (None, rmr.order.max(newest), rmr.window.rkey);
            }
        }
    }

    /// What a window is bound to as of the last bind posted, if all succeed.
    pub(crate) fn bound(&self, handle: RmrHandle, rmr: &Rmr) -> Option<Bound> {
        match self.binds.of(handle).max_by_key(|bind| bind.order) {
            Some(last) if last.order > rmr.order => last.bound,
            _ => rmr.confirmed,
        }
    }

    /// Whether a window is bound to an LMR, or may be.
    pub(crate) fn holds(&self, handle: RmrHandle, rmr: &Rmr, lmr: LmrHandle) -> bool {
        let pending = self.binds.of(handle).map(|bind| bind.bound);
        pending.chain([rmr.confirmed]).flatten().any(|bound| bound.lmr == lmr)
    }

    /// Whether a window is bound to an LMR, or may be.
    pub(crate) fn is_bound(&self, lmr: LmrHandle) -> bool {
        self.rmrs.iter().any(|(handle, rmr)| self.holds(handle, rmr, lmr))
    }
}
