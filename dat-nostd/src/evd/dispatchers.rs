//! Events of dispatchers: completions that polls look at before the consumer takes them, and what a dequeue takes.

use driver_mlx::{Bar, Platform, QpNumber};

use crate::adapter::objects::{Objects, Tables};
use crate::adapter::part::part;
use crate::base::event::{AsyncError, DtoOperation, EventData, RmrCompletion};
use crate::base::handle::{EvdHandle, Handle, Typed};
use crate::base::ret::DatResult;
use crate::base::states::EvdCall;
use crate::base::types::DtoStatus;
use crate::conn::Connections;
use crate::ep::Ep;
use crate::evd::completion::{Outcome, failure};
use crate::evd::queue::EventPool;
use crate::evd::reaction::Reaction;
use crate::evd::waiter::WaitState;
use crate::evd::{Evd, is_due};
use crate::srq::queue::Srq;

/// Completions of one EVD looked at in one poll.
const LOOKS: u32 = 256;

/// Completions looked at in one go.
const LOOK_AHEAD: u32 = 1 << 12;

part! {
    /// The parts of an adapter that events of EVDs come from.
    Dispatchers, connections: Connections
}

impl<P: Platform> Dispatchers<'_, '_, P> {
    /// Looks at the completions of every EVD whose CQ would not notify of them.
    pub(crate) fn look_at_evds(&mut self) {
        for _ in 0..self.objects.evds_mut().looked() {
            let Some(slot) = self.objects.evds_mut().next_looked() else { return };
            self.progress.visit();
            if self.objects.table::<EvdHandle>().at(slot).is_some_and(|evd| evd.reserved > 0) {
                self.look_ahead(slot, LOOKS);
            }
            self.objects.evds_mut().leave_resting(slot);
        }
    }

    /// Looks at completions not yet looked at, at most `limit`: failures take effect, deliverable ones are counted.
    pub(crate) fn look_ahead(&mut self, slot: u16, limit: u32) {
        for _ in 0..limit {
            let Some(evd) = self.objects.table::<EvdHandle>().at(slot) else { return };
            let Some(cq) = &evd.cq else { return };
            let watched = evd.wait.is_some() || evd.cno.is_some();
            let mut notifies = None;
            match cq.peek(evd.looks.ahead()) {
                Ok(None) => return,
                Ok(Some(completion)) => {
                    let index = completion.user_index() as u16;
                    if let Some(ep) = self.objects.eps().at(index).filter(|ep| ep.owns(&completion)) {
                        if watched {
                            notifies = ep.event(&completion, evd.notification);
                        }
                        let reaction = ep.reaction(&completion);
                        self.connections().react(index, reaction);
                    }
                }
                Err(_) => {}
            }
            let Some(evd) = self.objects.table_mut::<EvdHandle>().at_mut(slot) else { return };
            if watched {
                evd.looks.look(notifies);
            } else {
                evd.looks.glance();
            }
            self.progress.visit();
            let seen = evd.position();
            self.progress.set_happened();
            // Without a wait and without a CNO every completion is reported.
            let mut arrived = !watched;
            if let Some(notifies) = notifies {
                let news = !is_due(seen, evd.announced);
                if news {
                    evd.announced = seen;
                }
                arrived |= notifies && news;
            }
            if arrived && let Some(handle) = self.objects.table().handle_at(slot) {
                self.delivery().arrived(handle);
            }
        }
    }

    /// A completion that the device cannot have meant: counted, and reported once.
    #[cold]
    pub(crate) fn bad_completion(&mut self) {
        if self.progress.count_bad() {
            self.delivery().post_async(None, AsyncError::ProviderInternalError, Handle::from_bits(0), 0);
        }
    }

    /// The oldest event of an EVD on which no wait is open.
    #[inline]
    pub(super) fn next(&mut self, evd: EvdHandle) -> DatResult<Option<EventData>> {
        let state = self.objects.evds_mut().settled(evd)?;
        EvdCall::Dequeue.in_condition(state.condition())?;
        state.find_fast_path(self.device.is_dead());
        Ok(self.take(evd.any().slot()))
    }

    /// Takes the next completion of the CQ of an EVD, if there is one: its event, if it has one.
    pub(crate) fn take_completion(&mut self, slot: u16) -> Option<Option<EventData>> {
        let Tables { evds, eps, srqs, windows, .. } = self.objects.split();
        let evd = evds.table_mut().at_mut(slot)?;
        let polled = evd.cq.as_mut()?.poll(|cqe| Outcome::new(eps, srqs, windows, cqe));
        let Outcome { ep, data, reaction, is_stale } = polled.transpose()?.unwrap_or_else(|_| {
            self.bad_completion();
            Outcome::NOTHING
        });
        self.progress.count_stale(is_stale);
        // Before the reaction, which asks how many completions there are.
        if let Some(evd) = self.objects.table_mut::<EvdHandle>().at_mut(slot) {
            match data {
                Some(_) => evd.looks.delivered(1),
                None => evd.looks.dropped(1),
            }
        }
        if reaction != Reaction::None {
            self.connections().react(ep, reaction);
        }
        Some(data)
    }

    /// The oldest event of an EVD.
    pub(crate) fn take(&mut self, slot: u16) -> Option<EventData> {
        loop {
            let evd = self.objects.table_mut::<EvdHandle>().at_mut(slot)?;
            if (!evd.queue.is_empty() || evd.awaiting != 0)
                && let Some(data) = self.take_queued(slot)
            {
                return Some(data);
            }
            match self.take_completion(slot) {
                Some(None) => {}
                Some(data) => return data,
                None => return self.take_without_cq(slot),
            }
        }
    }

    /// A queued event whose turn it is. Before that, a receive completion on an EP that waits for its peer's confirmation
    /// makes it established.
    #[cold]
    fn take_queued(&mut self, slot: u16) -> Option<EventData> {
        let evd = self.objects.table_mut::<EvdHandle>().at_mut(slot)?;
        if evd.awaiting != 0 && evd.looks.ahead() == 0 {
            self.look_ahead(slot, 1);
        }
        self.objects.evds_mut().pop_due(slot)
    }

    /// Takes the oldest event of an EVD without completions, although earlier completions may be missing. On a dead device,
    /// operations that it never flushes come first.
    #[cold]
    fn take_without_cq(&mut self, slot: u16) -> Option<EventData> {
        if self.device.is_dead()
            && let Some(event) = self.objects.take_dead(slot)
        {
            return Some(event);
        }
        self.objects.evds_mut().pop(slot)
    }

    /// Consumes suppressed completions at the head of an EVD's CQ.
    pub(crate) fn drop_silent(&mut self, evd: EvdHandle) {
        while self.objects.is_silent_next(evd) {
            self.take_completion(evd.any().slot());
        }
    }

    /// Events that could be dequeued now.
    pub(super) fn events_ready(&mut self, slot: u16) -> u32 {
        self.look_ahead(slot, LOOK_AHEAD);
        let unfinished = if self.device.is_dead() { self.objects.unfinished(slot) } else { 0 };
        match self.objects.table::<EvdHandle>().at(slot) {
            Some(evd) => evd.looks.ready() + evd.queue.len() + unfinished,
            None => 0,
        }
    }

    /// Looks for the events of a wait. Returns how many could be dequeued, and whether the wait is over.
    pub(super) fn look_for(&mut self, slot: u16, wait: &WaitState) -> (u32, bool) {
        let queued = self.events_ready(slot);
        let evd = self.objects.table::<EvdHandle>().at(slot);
        let notifies = evd.is_some_and(|evd| evd.looks.notifying() > 0 || !evd.queue.is_empty());
        let is_notified = wait.first || self.device.is_dead() || notifies;
        (queued, queued >= wait.threshold && is_notified)
    }
}

impl<B: Bar> Objects<'_, B> {
    /// The next flush that a dead device will not report, of any EP whose completions go to this EVD.
    fn take_dead(&mut self, slot: u16) -> Option<EventData> {
        let Tables { evds, eps, windows, .. } = self.split();
        let evd = Some(evds.table().handle_at(slot)?);
        for index in eps.slots() {
            let Some((handle, ep)) = eps.entry_mut(index) else { continue };
            for (of, receive) in [(ep.streams().recv, true), (ep.streams().request, false)] {
                if of != evd {
                    continue;
                }
                let Some((user_cookie, bind)) = ep.take_unfinished(receive) else { continue };
                let status = DtoStatus::ErrFlushed;
                if let Some(rmr) = bind.and_then(|place| windows.bind_done(place, false)) {
                    return Some(EventData::RmrBind(RmrCompletion { rmr, user_cookie, status }));
                }
                let operation = if receive { DtoOperation::Receive } else { DtoOperation::Send };
                return Some(failure(handle.get(), user_cookie, operation, (status, 0)));
            }
        }
        None
    }

    /// Flushes that a dead device will not report on this EVD.
    pub(crate) fn unfinished(&self, slot: u16) -> u32 {
        let evd = self.table::<EvdHandle>().handle_at(slot);
        let of = |ep: &Ep<B>| {
            let receives = if ep.streams().recv == evd { ep.receives().outstanding() } else { 0 };
            receives + if ep.streams().request == evd { ep.requests_unfinished() } else { 0 }
        };
        self.eps().iter().map(|(_, ep)| of(ep)).sum()
    }

    /// Returns whether the next completion of an EVD is a suppressed one.
    fn is_silent_next(&self, evd: EvdHandle) -> bool {
        let Ok(evd) = self.get(evd) else { return false };
        let Some(Some(completion)) = evd.peek_all().next() else { return false };
        self.eps().at(completion.user_index() as u16).is_some_and(|ep| {
            ep.owns(&completion)
                && completion.error().is_none()
                && ep.marks_of(&completion).is_some_and(|note| !note.is_reported(true))
        })
    }
}

impl<B: Bar> Evd<B> {
    /// Forgets the completions of a QP that is gone from the CQ. Completions of receives release their buffers to `srq`.
    pub(crate) fn sweep(&mut self, events: &mut EventPool<'_>, qpn: QpNumber, srq: Option<&mut Srq>) {
        let Some(cq) = &mut self.cq else { return };
        if let Some(srq) = srq {
            srq.take_back(cq, qpn);
        }
        // Entries that stay move up over those that go, so whatever counted entries before a place counts those moved past it
        // as well.
        let consumed = self.looks.taken();
        let gone_from = |position: u32| {
            let mut gone = 0;
            let mut ahead = position.wrapping_sub(consumed);
            if ahead as i32 > 0 || position == consumed {
                while let Ok(Some(completion)) = cq.peek(ahead) {
                    gone += u32::from(completion.qpn() == qpn);
                    ahead += 1;
                }
            }
            gone
        };
        let all = gone_from(consumed);
        if all == 0 {
            return;
        }
        events.reposition(&self.queue, |follows| follows.wrapping_add(gone_from(follows)));
        let announced = self.announced.wrapping_add(gone_from(self.announced));
        let removed = cq.sweep(qpn);
        self.announced = announced;
        self.looks.dropped(removed);
        // A second look at the same completions changes nothing.
        self.looks.look_again();
    }
}
