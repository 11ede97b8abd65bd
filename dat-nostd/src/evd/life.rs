//! Event dispatchers: create, resize, free; how software events are queued. DAT 1.2, event management.

use driver_mlx::{Cq, Platform};

use crate::adapter::Adapter;
use crate::base::event::EventData;
use crate::base::handle::{CnoHandle, EvdHandle, IaHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::EvdFlags;
use crate::evd::delivery::Delivery;
use crate::evd::{CQ_STREAMS, Evd, MAX_QLEN, software_events};
use crate::mem::lmr::creation_error;

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_evd_create`. An EVD for DTO completions owns a CQ; others queue in software.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a length of 0, no stream, or streams that do not merge (ASYNC with others);
    /// INSUFFICIENT_RESOURCES.
    pub fn evd_create(
        &mut self,
        ia: IaHandle,
        min_qlen: u32,
        cno: Option<CnoHandle>,
        flags: EvdFlags,
    ) -> DatResult<EvdHandle> {
        self.objects.ias.get(ia)?;
        if let Some(cno) = cno {
            self.objects.cnos.check(cno, ia)?;
        }
        if min_qlen == 0 || min_qlen > i32::MAX as u32 {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        let merged_async = flags.contains(EvdFlags::ASYNC) && flags != EvdFlags::ASYNC;
        if flags.is_empty() || merged_async || !EvdFlags::all().contains(flags) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg4));
        }
        self.device.usable()?;
        self.make_evd(ia, min_qlen, cno, flags)
    }

    pub(crate) fn make_evd(
        &mut self,
        ia: IaHandle,
        min_qlen: u32,
        cno: Option<CnoHandle>,
        flags: EvdFlags,
    ) -> DatResult<EvdHandle> {
        const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTevd);
        if min_qlen > MAX_QLEN || self.objects.evds.len() >= self.objects.evds.capacity() {
            return Err(FULL);
        }
        let mut queue = self.objects.events.create(software_events(flags, min_qlen)).ok_or(FULL)?;
        let cq = if flags.intersects(CQ_STREAMS) {
            match self.device.create_cq(min_qlen) {
                Ok(cq) => Some(cq),
                Err(error) => {
                    self.objects.events.destroy(&mut queue);
                    return Err(creation_error(error, Subtype::ResourceTevd));
                }
            }
        } else {
            None
        };
        let number = cq.as_ref().map(Cq::number);
        let evd = self.objects.evds.insert(Evd::new(ia, flags, cq, queue, cno)).map_err(|_| FULL)?;
        if let Some(number) = number {
            self.progress.cqs.insert(&mut self.objects.evds, number, evd.any().slot());
        }
        if let Some(cno) = cno {
            self.objects.cnos.attach(cno);
        }
        Ok(evd)
    }

    /// `dat_evd_free`. Events not taken are lost, and connection requests among them are rejected: nobody could answer them. A wait on
    /// it ends with ABORT.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (EVD_IN_USE) while a stream feeds it.
    pub fn evd_free(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.queue_pairs().drain_evd(evd);
        if self.objects.evds.get(evd)?.users.is_any() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdInUse));
        }
        for slot in self.objects.ias.slots() {
            if let Some(ia) = self.objects.ias.at_mut(slot) {
                ia.evd_freed(evd);
            }
        }
        self.drop_evd(evd)
    }

    /// Removes an EVD whatever refers to it.
    pub(crate) fn drop_evd(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.delivery().leave(evd);
        let mut evd = self.objects.evds.remove(evd)?;
        while let Some(lost) = self.objects.events.pop(&mut evd.queue) {
            if let EventData::ConnectionRequest { cr, .. } = lost {
                // It may have been rejected meanwhile by the close of its IA.
                let _ = self.cr_reject(cr);
            }
        }
        self.objects.events.destroy(&mut evd.queue);
        if let Some(cq) = evd.cq {
            self.device.hca_mut().destroy_cq(cq).map_err(|_| DatReturn::new(ReturnType::InternalError))?;
        }
        Ok(())
    }

    /// What events go through.
    pub(crate) fn delivery(&mut self) -> Delivery<'_, 's, P::Bar> {
        Delivery::new(&mut self.objects, &mut self.progress)
    }
}
