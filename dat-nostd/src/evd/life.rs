//! Event dispatchers: create, resize, free; how software events are queued. DAT 1.2, event management.

use driver_mlx::{Cq, CqConfig, Platform};

use crate::adapter::Adapter;
use crate::base::event::{AsyncError, EventData};
use crate::base::handle::{CnoHandle, EvdHandle, HandleType, IaHandle};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::EvdFlags;
use crate::evd::dispatcher::{CQ_STREAMS, Evd, LEAST_COMPLETIONS, MAX_QLEN, Notification, software_events};
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
            self.objects.cnos.get(cno).and_then(|state| state.ia.check(ia, HandleType::Cno))?;
        }
        if min_qlen == 0 || min_qlen > i32::MAX as u32 {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        let merged_async = flags.contains(EvdFlags::ASYNC) && flags != EvdFlags::ASYNC;
        if flags.is_empty() || merged_async || !EvdFlags::all().contains(flags) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg4));
        }
        self.usable()?;
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
            let config = CqConfig { entries: min_qlen.max(LEAST_COMPLETIONS), eq: 0 };
            match self.device.hca.create_cq(&config) {
                Ok(cq) => Some(cq),
                Err(error) => {
                    self.objects.events.destroy(&mut queue);
                    return Err(creation_error(error, Subtype::ResourceTevd));
                }
            }
        } else {
            None
        };
        let qlen = cq.as_ref().map_or(queue.limit(), Cq::capacity);
        let evd = Evd {
            ia,
            flags,
            qlen,
            cq,
            reserved: 0,
            consumed: 0,
            ahead: 0,
            seen_ready: 0,
            seen_notifying: 0,
            queue,
            users: 0,
            awaiting: 0,
            enabled: true,
            waitable: true,
            overflowed: false,
            armed: false,
            notification: Notification::Threshold,
            dto_streams: 0,
            wait: None,
            cno,
            announced: 0,
            plain: false,
        };
        let evd = self.objects.evds.insert(evd).map_err(|_| FULL)?;
        if let Some(Ok(cno)) = cno.map(|cno| self.objects.cnos.get_mut(cno)) {
            cno.users += 1;
        }
        Ok(evd)
    }

    /// `dat_evd_free`. Events not taken are lost; a wait on it ends with ABORT.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (EVD_IN_USE) while a stream feeds it.
    pub fn evd_free(&mut self, evd: EvdHandle) -> DatResult<()> {
        if self.objects.evds.get(evd)?.users > 0 {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdInUse));
        }
        let own_async = self.objects.ias.iter().any(|(_, ia)| ia.async_evd == evd);
        if own_async {
            // NetPIPE frees the asynchronous EVD before it closes the IA: the IA goes on without one.
            for slot in 0..self.objects.ias.end() {
                if let Some(ia) = self.objects.ias.at_mut(slot)
                    && ia.async_evd == evd
                {
                    ia.async_alive = false;
                }
            }
        }
        self.drop_evd(evd)
    }

    /// Removes an EVD whatever refers to it.
    pub(crate) fn drop_evd(&mut self, evd: EvdHandle) -> DatResult<()> {
        let mut evd = self.objects.evds.remove(evd)?;
        self.objects.events.destroy(&mut evd.queue);
        if let Some(cno) = evd.cno {
            self.detach_from_cno(cno);
        }
        if let Some(cq) = evd.cq
            && !self.is_dead()
        {
            self.device.hca.destroy_cq(cq).map_err(|_| DatReturn::new(ReturnType::InternalError))?;
        }
        Ok(())
    }

    /// Queues an event behind everything its EVD has looked at. A full queue is an overflow.
    pub(crate) fn post_event(&mut self, evd: EvdHandle, data: EventData) {
        let Ok(state) = self.objects.evds.get(evd) else { return };
        let position = state.position();
        self.post_event_at(evd, position, data);
    }

    /// Queues an event at a position of its EVD.
    pub(crate) fn post_event_at(&mut self, evd: EvdHandle, position: u32, data: EventData) {
        let Ok(state) = self.objects.evds.get_mut(evd) else { return };
        if state.push(&mut self.objects.events, position, data) {
            self.progress.happened = true;
            self.arrived(evd);
            return;
        }
        if state.overflow() {
            self.progress.counters.overflows += 1;
            let ia = state.ia;
            self.async_error(Some(ia), AsyncError::EvdOverflow, evd.into());
        }
    }
}
