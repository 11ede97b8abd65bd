//! The EVDs of an adapter.

use core::sync::atomic::AtomicU32;

use driver_mlx::{Bar, CqNumber, Instant, QpNumber};

use crate::base::event::EventData;
use crate::base::handle::{EvdHandle, Typed};
use crate::base::list::List;
use crate::base::reports::Reports;
use crate::base::ret::DatResult;
use crate::base::table::{Slot, Table};
use crate::base::waiter::Cells;
use crate::evd::cq_map::CqMap;
use crate::evd::queue::{EventPool, EventQueue, EventSlot};
use crate::evd::waiter::{EvdWaiter, WaitState};
use crate::evd::{Evd, Looked, is_due};
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
    waits: Cells<'s>,
    reports: Reports,
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
            waits: Cells::new(waits),
            reports: Reports::default(),
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

    /// Returns whether something happened since the last call.
    pub(crate) fn take_happened(&mut self) -> bool {
        self.reports.take_happened()
    }

    /// The EVD whose CQ has this number.
    pub(crate) fn find(&self, number: CqNumber) -> Option<u16> {
        self.cqs.find(&self.table, number)
    }

    /// Returns whether one more EVD, with places for `events` besides completions, fits.
    pub(super) fn has_room(&self, events: u32) -> bool {
        !self.table.is_full() && events <= self.events.available()
    }

    /// Adds the EVD that `make` returns for a queue with places for `events`. Returns `None` if there is no room.
    pub(super) fn insert(
        &mut self,
        events: u32,
        make: impl FnOnce(EventQueue) -> Evd<B>,
    ) -> Option<EvdHandle> {
        let handle = self.table.insert(make(self.events.create(events)?)).ok()?;
        self.cqs.insert(&mut self.table, handle.any().slot());
        Some(handle)
    }

    /// Removes an EVD. Its wait ends, and its events are lost.
    pub(super) fn remove(&mut self, handle: EvdHandle) -> DatResult<Evd<B>> {
        let slot = self.table.check(handle)?;
        self.looked.remove(&mut self.table, slot);
        self.reports.remove(&mut self.table, slot);
        self.cqs.remove(&mut self.table, slot);
        let mut evd = self.table.remove(handle)?;
        self.events.destroy(&mut evd.queue);
        Ok(evd)
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
        self.reports.push(&mut self.table, slot);
    }

    /// Wakes all waiters.
    pub(crate) fn wake_all(&mut self) {
        self.reports.push_waited(&mut self.table);
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
        self.reports.next(&mut self.table)
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
        let token = self.waits.begin(evd)?;
        state.set_wait(WaitState { deadline, threshold, first: true, interrupted: false });
        // Polls do not count completions without a wait.
        state.looks.count_on();
        self.reports.wait(&mut self.table, evd.any().slot(), deadline);
        Some(EvdWaiter::new(token))
    }

    /// The EVD, or INVALID_HANDLE. Ends its wait if the waiter was dropped.
    #[inline]
    pub(super) fn settled(&mut self, handle: EvdHandle) -> DatResult<&mut Evd<B>> {
        if self.table.get(handle)?.wait.is_some() && self.waits.waiters(handle) == 0 {
            self.end_wait(handle.any().slot());
        }
        self.table.get_mut(handle)
    }

    /// Ends a wait.
    pub(super) fn end_wait(&mut self, slot: u16) {
        self.reports.wait_ended(&mut self.table, slot);
        if let Some(evd) = self.table.at_mut(slot) {
            evd.wait = None;
        }
    }

    /// EVDs whose wait has timed out become ready. Calls `visit` for each wait that is looked at. Returns the next time-out.
    pub(super) fn expire(&mut self, now: Instant, visit: impl FnMut()) -> Instant {
        let Self { table, waits, reports, .. } = self;
        reports.expire(table, now, visit, |handle, evd| {
            // The waiter may have been dropped.
            evd.wait = evd.wait.filter(|_| waits.waiters(handle) > 0);
            evd.wait.map(|wait| wait.deadline)
        })
    }
}
