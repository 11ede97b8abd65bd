//! From an event to who hears of it: the EVD's queue, its CNO, its waiter, the ready queue.

use driver_mlx::{Bar, CqNumber, Instant, Wake};

use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;
use crate::base::event::{AsyncError, EventData};
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, Handle, IaHandle, Typed};
use crate::base::log::log;
use crate::base::ret::{DatResult, DatReturn, ReturnType};
use crate::base::states::triggers;

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
    progress: &'a mut Progress<'s>,
}

impl<'a, 's, B: Bar> Delivery<'a, 's, B> {
    pub(crate) fn new(objects: &'a mut Objects<'s, B>, progress: &'a mut Progress<'s>) -> Self {
        Self { objects, progress }
    }

    /// Queues an event behind everything its EVD has looked at. A full queue is an overflow.
    pub(crate) fn post(&mut self, evd: EvdHandle, data: EventData) {
        self.post_at(evd, None, data);
    }

    /// The same at a position of its EVD, if one is given.
    pub(crate) fn post_at(&mut self, evd: EvdHandle, position: Option<u32>, data: EventData) {
        if self.push(evd, position, data) == Ok(false)
            && let Ok(state) = self.objects.evds.get_mut(evd)
            && state.overflow()
        {
            self.progress.counters.overflows += 1;
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
        let state = self.objects.evds.get_mut(evd)?;
        let position = position.unwrap_or_else(|| state.position());
        let queued = state.push(&mut self.objects.events, position, data);
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
        for slot in self.objects.ias.slots() {
            let (Some(handle), Some(ia)) = (self.objects.ias.handle_at(slot), self.objects.ias.at(slot))
            else {
                continue;
            };
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
        let slot = evd.any().slot();
        self.ready(slot);
        self.settle_wait(slot);
        let Ok(state) = self.objects.evds.get(evd) else { return };
        let Some(cno) = state.cno else { return };
        if !triggers(state.enabled, state.condition()) {
            return;
        }
        self.objects.cnos.trigger(cno, evd);
    }

    /// Something happened on the EVD in this slot that its consumer wants to know of.
    pub(crate) fn ready(&mut self, slot: u16) {
        self.progress.happened = true;
        self.progress.ready_evds.push(&mut self.objects.evds, slot);
    }

    /// Ends the wait on an EVD if its waiter was dropped.
    pub(crate) fn settle_wait(&mut self, slot: u16) {
        if self.objects.evds.at(slot).is_some_and(|evd| evd.wait.is_some())
            && !self.progress.waits.is_open(slot)
        {
            self.end_wait(slot);
        }
    }

    /// Ends the wait on an EVD.
    pub(crate) fn end_wait(&mut self, slot: u16) {
        self.progress.waits.end(slot);
        self.progress.waited_evds.remove(&mut self.objects.evds, slot);
        if let Some(evd) = self.objects.evds.at_mut(slot) {
            evd.wait = None;
        }
        if self.progress.waited_evds.is_empty() {
            self.progress.wait_deadline = Instant::MAX;
        }
    }

    /// Every wait is over: the device is gone.
    pub(crate) fn wake_all(&mut self) {
        for _ in 0..self.progress.waited_evds.len() {
            let Some(slot) = self.progress.waited_evds.rotate(&mut self.objects.evds) else { return };
            self.ready(slot);
        }
    }

    /// What timed out becomes ready; gives the next time-out.
    pub(crate) fn expire_waits(&mut self, now: Instant) -> Wake {
        if now >= self.progress.wait_deadline {
            let mut next = Instant::MAX;
            for _ in 0..self.progress.waited_evds.len() {
                let Some(slot) = self.progress.waited_evds.rotate(&mut self.objects.evds) else { break };
                self.progress.visits += 1;
                self.settle_wait(slot);
                match self.objects.evds.at(slot).and_then(|evd| evd.wait) {
                    Some(wait) if wait.deadline <= now => {
                        self.progress.waited_evds.remove(&mut self.objects.evds, slot);
                        self.ready(slot);
                    }
                    Some(wait) => next = next.min(wait.deadline),
                    None => {}
                }
            }
            self.progress.wait_deadline = next;
        }
        let cnos = self.objects.cnos.expire(now, &mut self.progress.visits);
        Wake::by(self.progress.wait_deadline.min(cnos))
    }

    /// Polls look at this EVD's CQ until it rests again: it has notified, or who feeds it has changed.
    pub(crate) fn look_at(&mut self, slot: u16) {
        let Some(evd) = self.objects.evds.at_mut(slot) else { return };
        if evd.cq.is_some() {
            evd.disarmed();
            self.progress.looked.push(&mut self.objects.evds, slot);
        }
    }

    /// The same for the EVDs that take an EP's completions.
    pub(crate) fn feeds_changed(&mut self, ep: EpHandle) {
        let Ok(ep) = self.objects.eps.get(ep) else { return };
        for evd in [ep.streams().recv, ep.streams().request].into_iter().flatten() {
            if let Ok(slot) = self.objects.evds.check(evd) {
                self.look_at(slot);
            }
        }
    }

    /// A CQ has notified.
    pub(crate) fn notified(&mut self, number: CqNumber) {
        let Some(slot) = self.progress.cqs.find(&self.objects.evds, number) else { return };
        self.progress.visits += 1;
        if let Some(cq) = self.objects.evds.at_mut(slot).and_then(|evd| evd.cq.as_mut()) {
            cq.notified();
        }
        self.look_at(slot);
    }

    /// Arms every CQ that is not: from now on each says when something comes.
    pub(crate) fn arm_evds(&mut self) {
        for _ in 0..self.progress.looked.len() {
            let Some(slot) = self.progress.looked.rotate(&mut self.objects.evds) else { return };
            if let Some(evd) = self.objects.evds.at_mut(slot) {
                evd.arm();
            }
        }
    }

    /// An EVD leaves all lists, and its CNO; its waiter finds it gone.
    pub(crate) fn leave(&mut self, evd: EvdHandle) {
        let slot = evd.any().slot();
        let Ok(state) = self.objects.evds.get(evd) else { return };
        let (cno, number) = (state.cno, state.cq.as_ref().map(|cq| cq.number()));
        self.end_wait(slot);
        self.progress.looked.remove(&mut self.objects.evds, slot);
        self.progress.ready_evds.remove(&mut self.objects.evds, slot);
        if let Some(number) = number {
            self.progress.cqs.remove(&mut self.objects.evds, number, slot);
        }
        if let Some(cno) = cno {
            self.objects.cnos.detach(cno);
        }
    }

    /// What became ready next.
    pub(crate) fn next_ready(&mut self) -> Option<Ready> {
        if let Some(slot) = self.progress.ready_evds.pop(&mut self.objects.evds) {
            return self.objects.evds.handle_at(slot).map(Ready::Evd);
        }
        self.objects.cnos.next_ready().map(Ready::Cno)
    }
}
