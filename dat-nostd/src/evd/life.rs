//! Event dispatchers: create, resize, free; how software events are queued. DAT 1.2, event management.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::event::EventData;
use crate::base::handle::{CnoHandle, EvdHandle, IaHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::EvdFlags;
use crate::evd::{CQ_STREAMS, Evd, MAX_QLEN, software_events};

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
        self.objects().get(ia)?;
        self.objects().cnos().check(cno, ia)?;
        if min_qlen == 0 || min_qlen > i32::MAX as u32 {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        let merged_async = flags.contains(EvdFlags::ASYNC) && flags != EvdFlags::ASYNC;
        if flags.is_empty() || merged_async || !EvdFlags::all().contains(flags) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg4));
        }
        self.device().usable()?;
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
        let events = software_events(flags, min_qlen);
        if min_qlen > MAX_QLEN || !self.objects_mut().evds_mut().has_room(events) {
            return Err(FULL);
        }
        let cq = flags.intersects(CQ_STREAMS).then(|| self.device_mut().create_cq(min_qlen)).transpose()?;
        let make = |queue| Evd::new(ia, flags, cq, queue, cno);
        let evd = self.objects_mut().evds_mut().insert(events, make).ok_or(FULL)?;
        self.objects_mut().cnos_mut().attach(cno);
        Ok(evd)
    }

    /// `dat_evd_free`. Events not taken are lost, and connection requests among them are rejected: nobody could answer them. A wait on
    /// it ends with ABORT.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (EVD_IN_USE) while a stream feeds it.
    pub fn evd_free(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.queue_pairs().drain_evd(evd);
        if self.objects().get(evd)?.users.is_any() {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdInUse));
        }
        for slot in self.objects().table::<IaHandle>().slots() {
            if let Some(ia) = self.objects_mut().table_mut::<IaHandle>().at_mut(slot) {
                ia.evd_freed(evd);
            }
        }
        self.drop_evd(evd)
    }

    /// Removes an EVD whatever refers to it.
    pub(crate) fn drop_evd(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.objects().get(evd)?;
        while let Some(lost) = self.objects_mut().evds_mut().pop(evd.any().slot()) {
            if let EventData::ConnectionRequest { cr, .. } = lost {
                // It may have been rejected meanwhile by the close of its IA.
                let _ = self.cr_reject(cr);
            }
        }
        let evd = self.objects_mut().evds_mut().remove(evd)?;
        self.objects_mut().cnos_mut().detach(evd.cno);
        if let Some(cq) = evd.cq {
            let destroyed = self.device_mut().hca_mut().destroy_cq(cq);
            destroyed.map_err(|_| DatReturn::new(ReturnType::InternalError))?;
        }
        Ok(())
    }
}
