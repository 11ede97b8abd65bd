//! From an event to who hears of it: the EVD's queue, its CNO, its waiter, the ready queue.

use driver_mlx::{Bar, CqNumber, Instant, Wake};

use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;
use crate::base::event::{AsyncError, EventData};
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, Handle, IaHandle, Typed};
use crate::base::log::log;
use crate::base::ret::{DatResult, DatReturn, ReturnType};
use crate::base::states::triggers;
use crate::evd::cno::Cno;
use crate::evd::upcall::Upcall;

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
    pub(crate) objects: &'a mut Objects<'s, B>,
    pub(crate) progress: &'a mut Progress<'s>,
}

impl<B: Bar> Delivery<'_, '_, B> {
    /// Queues an event behind everything its EVD has looked at. A full queue is an overflow.
    pub(crate) fn post(&mut self, evd: EvdHandle, data: EventData) {
        let Ok(state) = self.objects.evds.get(evd) else { return };
        let position = state.position();
        self.post_at(evd, position, data);
    }

    /// Queues an event at a position of its EVD.
    pub(crate) fn post_at(&mut self, evd: EvdHandle, position: u32, data: EventData) {
        let Ok(state) = self.objects.evds.get_mut(evd) else { return };
        if state.push(&mut self.objects.events, position, data) {
            self.arrived(evd);
            return;
        }
        if state.overflow() {
            self.progress.counters.overflows += 1;
            let ia = state.ia;
            self.post_async(Some(ia), AsyncError::EvdOverflow, evd.into(), 0);
        }
    }

    /// Queues a software event; QUEUE_FULL if there is no room.
    pub(crate) fn post_software(&mut self, evd: EvdHandle, value: u64) -> DatResult<()> {
        let state = self.objects.evds.get_mut(evd)?;
        let position = state.position();
        if !state.push(&mut self.objects.events, position, EventData::Software { value }) {
            return Err(DatReturn::new(ReturnType::QueueFull));
        }
        self.arrived(evd);
        Ok(())
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
        let Ok(state) = self.objects.cnos.get_mut(cno) else { return };
        let call = state.trigger(evd);
        self.progress.ready_cnos.push(&mut self.objects.cnos, cno.any().slot());
        if call {
            self.progress.upcalls.push(&mut self.objects.cnos, cno.any().slot());
        }
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
        self.forget_deadline();
    }

    /// With nobody waiting there is no time-out.
    fn forget_deadline(&mut self) {
        if self.progress.waited_evds.is_empty() && self.progress.waited_cnos.is_empty() {
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
            for _ in 0..self.progress.waited_cnos.len() {
                let Some(slot) = self.progress.waited_cnos.rotate(&mut self.objects.cnos) else { break };
                self.progress.visits += 1;
                let Some(cno) = self.objects.cnos.at_mut(slot) else { continue };
                if cno.deadline <= now {
                    // Those of its waiters whose time has not come say so when they are polled.
                    cno.deadline = Instant::MAX;
                    self.progress.waited_cnos.remove(&mut self.objects.cnos, slot);
                    self.progress.ready_cnos.push(&mut self.objects.cnos, slot);
                    self.progress.happened = true;
                } else {
                    next = next.min(cno.deadline);
                }
            }
            self.progress.wait_deadline = next;
        }
        Wake::by(self.progress.wait_deadline)
    }

    /// A wait on a CNO goes on until then.
    pub(crate) fn note_cno_wait(&mut self, cno: CnoHandle, deadline: Instant) {
        let Ok(state) = self.objects.cnos.get_mut(cno) else { return };
        if deadline == Instant::MAX {
            return;
        }
        state.deadline = state.deadline.min(deadline);
        self.progress.waited_cnos.push(&mut self.objects.cnos, cno.any().slot());
        self.progress.wait_deadline = self.progress.wait_deadline.min(deadline);
    }

    /// A wait on a CNO is over. The others' time-outs are not known here, only that there are none if nobody is left.
    pub(crate) fn cno_wait_ended(&mut self, cno: CnoHandle) {
        if self.progress.waits.cno_waiters(cno) > 0 {
            return;
        }
        if let Ok(state) = self.objects.cnos.get_mut(cno) {
            state.deadline = Instant::MAX;
            self.progress.waited_cnos.remove(&mut self.objects.cnos, cno.any().slot());
        }
        self.forget_deadline();
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
        let evds = [ep.recv_evd, ep.request_evd];
        for evd in evds.into_iter().flatten() {
            if self.objects.evds.get(evd).is_ok() {
                self.look_at(evd.any().slot());
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
            self.detach_from_cno(cno);
        }
    }

    /// An EVD feeds a CNO no more.
    pub(crate) fn detach_from_cno(&mut self, cno: CnoHandle) {
        let Ok(state) = self.objects.cnos.get_mut(cno) else { return };
        if state.detach() {
            self.progress.ready_cnos.push(&mut self.objects.cnos, cno.any().slot());
            self.progress.happened = true;
        }
    }

    /// Removes a CNO whatever refers to it: its waiters are released, and its agent hears that there will be no more. Until then it
    /// keeps a place in the table, under a handle that nobody has.
    pub(crate) fn drop_cno(&mut self, cno: CnoHandle) {
        let slot = cno.any().slot();
        if self.objects.cnos.get(cno).is_err() {
            return;
        }
        self.progress.ready_cnos.remove(&mut self.objects.cnos, slot);
        self.progress.waited_cnos.remove(&mut self.objects.cnos, slot);
        self.progress.upcalls.remove(&mut self.objects.cnos, slot);
        self.forget_deadline();
        let Ok(gone) = self.objects.cnos.remove(cno) else { return };
        let Some(agent) = gone.agent else { return };
        // A place has just become free.
        if let Ok(cno) = self.objects.cnos.insert(Cno::last_call(cno, gone.ia, agent)) {
            self.progress.dead_cnos += 1;
            self.progress.upcalls.push(&mut self.objects.cnos, cno.any().slot());
            self.progress.happened = true;
        }
    }

    /// Drops the CNOs of an IA.
    pub(crate) fn drop_cnos(&mut self, ia: IaHandle) {
        for slot in self.objects.cnos.slots() {
            if self.objects.cnos.at(slot).is_some_and(|cno| cno.ia == ia && cno.gone.is_none())
                && let Some(cno) = self.objects.cnos.handle_at(slot)
            {
                self.drop_cno(cno);
            }
        }
    }

    /// The next agent to call.
    pub(crate) fn next_upcall(&mut self) -> Option<Upcall> {
        loop {
            let slot = self.progress.upcalls.pop(&mut self.objects.cnos)?;
            let Some(handle) = self.objects.cnos.handle_at(slot) else { continue };
            let Some(state) = self.objects.cnos.at_mut(slot) else { continue };
            let (agent, evd, ia) = (state.agent.take(), state.call.take(), state.ia);
            let cno = state.gone.unwrap_or(handle);
            if state.gone.is_some() {
                self.progress.dead_cnos = self.progress.dead_cnos.saturating_sub(1);
                // It was there a moment ago.
                let _ = self.objects.cnos.remove(handle);
            }
            // The consumer may have taken the agent away meanwhile.
            if let Some(agent) = agent {
                return Some(Upcall { cno, ia, agent, evd });
            }
        }
    }

    /// What became ready next.
    pub(crate) fn next_ready(&mut self) -> Option<Ready> {
        if let Some(slot) = self.progress.ready_evds.pop(&mut self.objects.evds) {
            return self.objects.evds.handle_at(slot).map(Ready::Evd);
        }
        let slot = self.progress.ready_cnos.pop(&mut self.objects.cnos)?;
        self.objects.cnos.handle_at(slot).map(Ready::Cno)
    }
}
