//! The EVDs of an adapter.

use core::sync::atomic::AtomicU32;

use driver_mlx::{Bar, Cq, CqNumber, Instant, QpNumber};

use crate::base::event::EventData;
use crate::base::handle::{EvdHandle, Typed};
use crate::base::list::List;
use crate::base::ret::DatResult;
use crate::base::table::{Slot, Table};
use crate::evd::cq_map::CqMap;
use crate::evd::queue::{EventPool, EventSlot};
use crate::evd::waiter::{EvdWaiter, WaitState, Waits};
use crate::evd::{Evd, Looked, ReadyEvd, WaitedEvd, is_due};
use crate::srq::queue::Srq;

/// The EVDs of an adapter: their events, open waits, and lists of those that are due.
#[repr(C)]
pub(crate) struct Evds<'s, B: Bar> {
    table: Table<'s, EvdHandle, Evd<B>>,
    /// Events queued in software.
    events: EventPool<'s>,
    /// EVDs whose CQs are looked at; the others notify.
    looked: List<Looked>,
    /// EVDs by the numbers of their CQs.
    cqs: CqMap<'s>,
    waits: Waits<'s>,
    waited: List<WaitedEvd>,
    /// The earliest time-out of a wait; may be that of one that is over. `Instant::MAX` for none.
    deadline: Instant,
    /// EVDs that became ready and have not been reported.
    ready: List<ReadyEvd>,
    /// Something happened since [`Evds::take_happened`].
    happened: bool,
}

impl<'s, B: Bar> Evds<'s, B> {
    /// Without any, over these places, with a cell for each wait and chains for the numbers of CQs.
    pub(crate) fn new(
        slots: &'s mut [Slot<Evd<B>>],
        events: &'s mut [EventSlot],
        waits: &'s [AtomicU32],
        chains: &'s mut [u32],
    ) -> Self {
        Self {
            table: Table::new(slots),
            events: EventPool::new(events),
            looked: List::default(),
            cqs: CqMap::new(chains),
            waits: Waits::new(waits),
            waited: List::default(),
            deadline: Instant::MAX,
            ready: List::default(),
            happened: false,
        }
    }

    /// The EVDs.
    #[inline]
    pub(crate) fn table(&self) -> &Table<'s, EvdHandle, Evd<B>> {
        &self.table
    }

    #[inline]
    pub(crate) fn table_mut(&mut self) -> &mut Table<'s, EvdHandle, Evd<B>> {
        &mut self.table
    }

    /// Events queued in software.
    pub(crate) fn events(&self) -> &EventPool<'s> {
        &self.events
    }

    pub(super) fn events_mut(&mut self) -> &mut EventPool<'s> {
        &mut self.events
    }

    /// Returns whether something happened since the last call.
    pub(crate) fn take_happened(&mut self) -> bool {
        core::mem::take(&mut self.happened)
    }

    /// The EVD whose CQ has this number.
    pub(crate) fn find(&self, number: CqNumber) -> Option<u16> {
        self.cqs.find(&self.table, number)
    }

    /// Adds an EVD. Returns `None` if there is no place.
    pub(super) fn insert(&mut self, evd: Evd<B>) -> Option<EvdHandle> {
        let number = evd.cq().map(Cq::number);
        let handle = self.table.insert(evd).ok()?;
        if let Some(number) = number {
            self.cqs.insert(&mut self.table, number, handle.any().slot());
        }
        Some(handle)
    }

    /// Removes an EVD. Its wait ends.
    pub(super) fn remove(&mut self, handle: EvdHandle) -> DatResult<Evd<B>> {
        let (slot, number) = (handle.any().slot(), self.table.get(handle)?.cq().map(Cq::number));
        self.end_wait(slot);
        self.looked.remove(&mut self.table, slot);
        self.ready.remove(&mut self.table, slot);
        if let Some(number) = number {
            self.cqs.remove(&mut self.table, number, slot);
        }
        self.table.remove(handle)
    }

    /// Queues an event at a position, or behind everything looked at. Returns false if there is no room.
    pub(super) fn push(
        &mut self,
        handle: EvdHandle,
        position: Option<u32>,
        data: EventData,
    ) -> DatResult<bool> {
        let evd = self.table.get_mut(handle)?;
        let position = position.unwrap_or_else(|| evd.position());
        Ok(evd.push(&mut self.events, position, data))
    }

    /// Takes the oldest event besides completions.
    pub(super) fn pop(&mut self, slot: u16) -> Option<EventData> {
        self.events.pop(&mut self.table.at_mut(slot)?.queue)
    }

    /// Takes the oldest event besides completions, if those before it are taken.
    pub(super) fn pop_due(&mut self, slot: u16) -> Option<EventData> {
        let evd = self.table.at_mut(slot)?;
        let follows = self.events.follows(&evd.queue)?;
        if is_due(follows, evd.looks.taken()) { self.events.pop(&mut evd.queue) } else { None }
    }

    /// Changes the number of places for events besides completions. Returns false, without side effects, if too few are
    /// free.
    pub(super) fn resize_queue(&mut self, handle: EvdHandle, limit: u32) -> bool {
        self.table.get_mut(handle).is_ok_and(|evd| self.events.resize(&mut evd.queue, limit))
    }

    /// Drops the events besides completions that `keep` refuses.
    pub(crate) fn retain(&mut self, handle: EvdHandle, keep: impl Fn(&EventData) -> bool) {
        if let Ok(evd) = self.table.get_mut(handle) {
            self.events.retain(&mut evd.queue, keep);
        }
    }

    /// Drops the completions of a QP that is gone.
    pub(crate) fn sweep(&mut self, handle: EvdHandle, qpn: QpNumber, srq: Option<&mut Srq>) {
        if let Ok(evd) = self.table.get_mut(handle) {
            evd.sweep(&mut self.events, qpn, srq);
        }
    }

    /// Puts an EVD among those to report.
    pub(crate) fn ready(&mut self, slot: u16) {
        self.happened = true;
        self.ready.push(&mut self.table, slot);
    }

    /// Wakes all waiters.
    pub(crate) fn wake_all(&mut self) {
        for _ in 0..self.waited.len() {
            let Some(slot) = self.waited.rotate(&mut self.table) else { return };
            self.ready(slot);
        }
    }

    /// Polls look at the CQ of an EVD until it rests again.
    pub(crate) fn look_at(&mut self, slot: u16) {
        let Some(evd) = self.table.at_mut(slot) else { return };
        if evd.cq.is_some() {
            evd.disarmed();
            self.looked.push(&mut self.table, slot);
        }
    }

    /// The CQ with this number has notified. Returns false if no EVD has it.
    pub(crate) fn notified(&mut self, number: CqNumber) -> bool {
        let Some(slot) = self.find(number) else { return false };
        if let Some(cq) = self.table.at_mut(slot).and_then(|evd| evd.cq.as_mut()) {
            cq.notified();
        }
        self.look_at(slot);
        true
    }

    /// Number of EVDs whose CQs polls look at.
    pub(super) fn looked(&self) -> u32 {
        self.looked.len()
    }

    /// The next of the EVDs whose CQs polls look at.
    pub(super) fn next_looked(&mut self) -> Option<u16> {
        self.looked.rotate(&mut self.table)
    }

    /// Polls leave a CQ alone that was found at rest.
    pub(super) fn leave_resting(&mut self, slot: u16) {
        if self.table.at_mut(slot).is_some_and(Evd::rests) {
            self.looked.remove(&mut self.table, slot);
        }
    }

    /// The next EVD to report.
    pub(super) fn next_ready(&mut self) -> Option<EvdHandle> {
        let slot = self.ready.pop(&mut self.table)?;
        self.table.handle_at(slot)
    }

    /// Arms the CQs that polls look at.
    pub(crate) fn arm(&mut self) {
        for _ in 0..self.looked.len() {
            let Some(slot) = self.looked.rotate(&mut self.table) else { return };
            if let Some(evd) = self.table.at_mut(slot) {
                evd.arm();
            }
        }
    }

    /// Opens a wait on an EVD.
    pub(super) fn begin_wait(
        &mut self,
        evd: EvdHandle,
        deadline: Instant,
        threshold: u32,
    ) -> Option<EvdWaiter<'s>> {
        let state = self.table.get_mut(evd).ok()?;
        let waiter = self.waits.begin(evd)?;
        state.set_wait(WaitState { deadline, threshold, first: true, interrupted: false });
        // Polls do not count completions without a wait.
        state.looks.count_on();
        self.waited.push(&mut self.table, evd.any().slot());
        self.deadline = self.deadline.min(deadline);
        Some(waiter)
    }

    /// The EVD, or INVALID_HANDLE. Ends its wait if the waiter was dropped.
    #[inline]
    pub(super) fn settled(&mut self, handle: EvdHandle) -> DatResult<&mut Evd<B>> {
        if self.table.get(handle)?.wait.is_some() {
            self.settle_wait(handle.any().slot());
        }
        self.table.get_mut(handle)
    }

    /// Ends a wait whose waiter was dropped.
    fn settle_wait(&mut self, slot: u16) {
        if self.table.at(slot).is_some_and(|evd| evd.wait.is_some()) && !self.waits.is_open(slot) {
            self.end_wait(slot);
        }
    }

    /// Ends a wait.
    pub(super) fn end_wait(&mut self, slot: u16) {
        self.waits.end(slot);
        self.waited.remove(&mut self.table, slot);
        if let Some(evd) = self.table.at_mut(slot) {
            evd.wait = None;
        }
        if self.waited.is_empty() {
            self.deadline = Instant::MAX;
        }
    }

    /// EVDs whose wait has timed out become ready. Calls `visit` for each wait that is looked at. Returns the next time-out.
    pub(super) fn expire(&mut self, now: Instant, mut visit: impl FnMut()) -> Instant {
        if now >= self.deadline {
            let mut next = Instant::MAX;
            for _ in 0..self.waited.len() {
                let Some(slot) = self.waited.rotate(&mut self.table) else { break };
                visit();
                self.settle_wait(slot);
                match self.table.at(slot).and_then(|evd| evd.wait) {
                    Some(wait) if wait.deadline <= now => {
                        self.waited.remove(&mut self.table, slot);
                        self.ready(slot);
                    }
                    Some(wait) => next = next.min(wait.deadline),
                    None => {}
                }
            }
            self.deadline = next;
        }
        self.deadline
    }
}
