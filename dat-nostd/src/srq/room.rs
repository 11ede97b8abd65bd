//! Room in CQs: every EVD's CQ holds all completions that its endpoints may cause at once.

use driver_mlx::Platform;

use crate::base::handle::{EpHandle, EvdHandle, SrqHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::ep::plan::Plan;
use crate::ep::streams::Streams;
use crate::evd::MAX_QLEN;
use crate::mem::lmr::creation_error;
use crate::srq::QueuePairs;

impl<P: Platform> QueuePairs<'_, '_, P> {
    /// Makes sure that the CQs hold what an EP made by a plan may cause, beside what others may.
    pub(crate) fn make_room_for(&mut self, this: Option<EpHandle>, plan: &Plan) -> DatResult<()> {
        let (requests, receives) = self.objects.places_needed(this, plan);
        self.make_room(&plan.streams, requests, receives)?;
        if let (Some(srq), None) = (plan.srq, plan.streams.recv) {
            let count = self.objects.get(srq)?.completions();
            self.make_room_in_sink(srq, count)?;
        }
        Ok(())
    }

    /// Makes sure that the CQs of the EVDs hold so many more completions.
    pub(super) fn make_room(&mut self, streams: &Streams, requests: u32, receives: u32) -> DatResult<()> {
        if self.objects.can_reserve(streams, requests, receives) {
            return Ok(());
        }
        let both = streams.recv == streams.request;
        for (evd, more) in [
            (streams.recv, if both { receives + requests } else { receives }),
            (streams.request, if both { 0 } else { requests }),
        ] {
            if let Some(evd) = evd {
                let state = self.objects.get(evd)?;
                if state.unreserved() >= more {
                    continue;
                }
                let entries = state.reserved() + more;
                if entries > MAX_QLEN {
                    return Err(DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTevd));
                }
                // Twice as long, so that a row of EPs does not resize for each.
                let ample = entries.saturating_mul(2).min(MAX_QLEN);
                if self.resize_cq(evd, ample).is_err() {
                    self.resize_cq(evd, entries)?;
                }
            }
        }
        Ok(())
    }

    /// Makes every CQ that takes completions of this SRQ hold so many of them.
    pub(super) fn reserve_for_srq(&mut self, handle: SrqHandle, count: u32) -> DatResult<()> {
        let before = self.objects.get(handle)?.completions();
        let more = count.saturating_sub(before);
        for change in [false, true] {
            for slot in self.objects.table::<EvdHandle>().slots() {
                let Some(evd) = self.objects.table::<EvdHandle>().handle_at(slot) else { continue };
                if !self
                    .objects
                    .eps()
                    .iter()
                    .any(|(_, ep)| ep.srq() == Some(handle) && ep.streams().recv == Some(evd))
                {
                    continue;
                }
                let streams = Streams { recv: Some(evd), request: None, connect: None };
                if !change {
                    self.make_room(&streams, 0, more)?;
                } else if let Some(evd) = self.objects.table_mut::<EvdHandle>().at_mut(slot) {
                    evd.reserve(before, false);
                    evd.reserve(count, true);
                    self.objects.evds_mut().look_at(slot);
                }
            }
        }
        Ok(())
    }

    /// Makes the CQ of an EVD hold so many completions, and all that attached EPs may cause.
    pub(crate) fn resize_cq(&mut self, handle: EvdHandle, entries: u32) -> DatResult<()> {
        let evd = self.objects.get_mut(handle)?;
        let resized = evd.resize_cq(self.device.hca_mut(), entries);
        if resized.map_err(|error| creation_error(error, Subtype::ResourceTevd))? {
            // The new ring may not be armed, so polls look at it.
            self.objects.evds_mut().look_at(handle.any().slot());
        }
        Ok(())
    }
}
