//! From an event to who hears of it: the EVD's queue, its CNO, its waiter, the ready queue.

use driver_mlx::{Bar, CqNumber, Instant, Wake};

use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;
use crate::base::event::{AsyncError, EventData};
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, Handle, IaHandle, Typed};
use crate::base::log::log;
use crate::base::ret::{DatResult, DatReturn, ReturnType};
use crate::base::states::triggers;
use crate::ep::streams::Streams;

/// Something that became ready, from [`Adapter::next_ready`](crate::Adapter::next_ready).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Events have arrived here, or the wait on it is over.
    Evd(EvdHandle),
    /// It has triggered, or a wait on it is over.
    Cno(CnoHandle),
}

/// The parts of an adapter that events go through.
pub(crate) struct Delivery<'a, 's, B: Bar> {
    objects: &'a mut Objects<'s, B>,
    progress: &'a mut Progress,
}

impl<'a, 's, B: Bar> Delivery<'a, 's, B> {
    pub(crate) fn new(objects: &'a mut Objects<'s, B>, progress: &'a mut Progress) -> Self {
        Self { objects, progress }
    }

    /// Queues an event behind everything its EVD has looked at. A full queue is an overflow.
    pub(crate) fn post(&mut self, evd: EvdHandle, data: EventData) {
        self.post_at(evd, None, data);
    }

    /// The same at a position of its EVD, if one is given.
    pub(crate) fn post_at(&mut self, evd: EvdHandle, position: Option<u32>, data: EventData) {
        if self.push(evd, position, data) == Ok(false)
            && let Ok(state) = self.objects.get_mut(evd)
            && state.overflow()
        {
            self.progress.count_overflow();
            let ia = state.ia;
            self.post_async(Some(ia), AsyncError::EvdOverflow, evd.into(), 0);
        }
    }

    /// Queues a software event; QUEUE_FULL if there is no room.
    pub(crate) fn post_software(&mut self, evd: EvdHandle, value: u64) -> DatResult<()> {
        let queued = self.push(evd, None, EventData::Software { value })?;
        if queued { Ok(()) } else { Err(DatReturn::new(ReturnType::QueueFull)) }
    }

    /// Queues an event. Returns false if there is no room.
    fn push(&mut self, evd: EvdHandle, position: Option<u32>, data: EventData) -> DatResult<bool> {
        let queued = self.objects.evds_mut().push(evd, position, data)?;
        if queued {
            self.arrived(evd);
        }
        Ok(queued)
    }

    /// Queues an asynchronous error on the EVD of one IA, or of all.
    pub(crate) fn post_async(
        &mut self,
        only: Option<IaHandle>,
        error: AsyncError,
        about: Handle,
        reason: i32,
    ) {
        log!(warn, "dat: asynchronous {} of {=u64:#x}, reason {=i32}", error, about.bits(), reason);
        for slot in self.objects.table::<IaHandle>().slots() {
            let ias = self.objects.table::<IaHandle>();
            let (Some(handle), Some(ia)) = (ias.handle_at(slot), ias.at(slot)) else { continue };
            let Some(evd) = ia.live_async_evd().filter(|_| only.is_none_or(|only| only == handle)) else {
                continue;
            };
            // What concerns the whole adapter names the IA that hears of it.
            let about = if about.bits() == 0 { handle.handle() } else { about };
            if Handle::from(evd) == about {
                continue;
            }
            self.post(evd, EventData::Async { error, handle: about, reason });
        }
    }

    /// An event that notifies has arrived on an EVD.
    pub(crate) fn arrived(&mut self, evd: EvdHandle) {
        self.objects.evds_mut().ready(evd.any().slot());
        let Ok(state) = self.objects.evds_mut().settled(evd) else { return };
        let Some(cno) = state.cno else { return };
        if !triggers(state.enabled, state.condition()) {
            return;
        }
        self.objects.cnos_mut().trigger(cno, evd);
    }

    /// What timed out becomes ready; gives the next time-out.
    pub(crate) fn expire_waits(&mut self, now: Instant) -> Wake {
        let evds = self.objects.evds_mut().expire(now, || self.progress.visit());
        let cnos = self.objects.cnos_mut().expire(now, || self.progress.visit());
        Wake::by(evds.min(cnos))
    }

    /// The CQ with this number has notified.
    pub(crate) fn notified(&mut self, number: CqNumber) {
        if self.objects.evds_mut().notified(number) {
            self.progress.visit();
        }
    }

    /// Polls look at the CQs of an EP's EVDs until they rest.
    pub(crate) fn feeds_changed(&mut self, ep: EpHandle) {
        let Ok(ep) = self.objects.get(ep) else { return };
        let Streams { recv, request, .. } = ep.streams();
        for evd in [recv, request].into_iter().flatten() {
            if let Ok(slot) = self.objects.table().check(evd) {
                self.objects.evds_mut().look_at(slot);
            }
        }
    }

    /// What became ready next.
    pub(crate) fn next_ready(&mut self) -> Option<Ready> {
        let evd = self.objects.evds_mut().next_ready().map(Ready::Evd);
        evd.or_else(|| self.objects.cnos_mut().next_ready().map(Ready::Cno))
    }
}
