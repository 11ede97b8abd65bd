//! `dat_evd_dequeue`: the oldest event of an EVD, from its CQ or its software queue. The hot path. DAT 1.2, event management.

use crate::base::states::EvdCall;
use driver_mlx::{Bar, Completion, Cqe, OrdinaryCqe, Platform};

use crate::adapter::Adapter;
use crate::adapter::objects::Objects;
use crate::base::event::{DtoCompletion, DtoOperation, Event, EventData, Received, RmrCompletion};
use crate::base::handle::{EpHandle, EvdHandle};
use crate::base::ret::{DatResult, DatReturn};
use crate::base::table::Table;
use crate::base::types::{DtoStatus, EpState};
use crate::ep::endpoint::Ep;
use crate::ep::work::Note;
use crate::evd::completion::{arrived, deliver, sent_well};
use crate::evd::dispatcher::is_due;
use crate::evd::reaction::Reaction;

/// What an ordinary completion reports: a transfer that ended well and that nothing else depends on. None for any other, and nothing has
/// changed.
#[inline(always)]
fn take_ordinary<B: Bar>(
    eps: &mut Table<'_, EpHandle, Ep<B>>,
    next: &OrdinaryCqe<'_>,
) -> Option<DtoCompletion> {
    let ep = eps.at_mut(next.user_index() as u16)?;
    // Its first message would establish it; its EVD knows of that.
    debug_assert!(next.is_send() || ep.qpn != next.qpn() || ep.state() != EpState::CompletionPending);
    let qp = ep.qp.as_mut()?;
    if let Some(wr_id) = qp.retire_sent(next, Note::SPECIAL) {
        return Some(sent_well(ep, wr_id, 1));
    }
    let (wr_id, length) = qp.retire_received(next)?;
    Some(arrived(ep, wr_id, length))
}

/// The same, and that of a request with others before it that were posted without a completion.
#[inline(always)]
fn take_any<B: Bar>(eps: &mut Table<'_, EpHandle, Ep<B>>, next: &OrdinaryCqe<'_>) -> Option<DtoCompletion> {
    if let Some(done) = take_ordinary(eps, next) {
        return Some(done);
    }
    let ep = eps.at_mut(next.user_index() as u16)?;
    let (wr_id, count) = ep.qp.as_mut()?.retire_sent_run(next, Note::SPECIAL)?;
    Some(sent_well(ep, wr_id, count))
}

impl<B: Bar> Objects<'_, B> {
    /// Retires what a completion reports done, unless that is a receive of an SRQ.
    fn retire(&mut self, cqe: &Cqe) -> Option<Completion> {
        let ep = self.eps.at_mut(cqe.user_index() as u16).filter(|ep| ep.owns(cqe))?;
        ep.retire(cqe)
    }
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_evd_dequeue`. If there is nothing, the adapter is polled once and the EVD looked at again.
    ///
    /// # Errors
    /// QUEUE_EMPTY (without class bits, see [`DatReturn::QUEUE_EMPTY`]); INVALID_HANDLE; INVALID_STATE while a wait is open or
    /// after an overflow.
    // One copy for all callers: where there are many the compiler makes functions of its parts.
    #[inline(never)]
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        self.evd_dequeue_or(evd, Ok, Self::evd_dequeue_slow)
    }

    /// Extension: as [`Adapter::evd_dequeue`], but where there is nothing the adapter is not polled for it: that is left to whoever polls
    /// it anyway. None also where the other call would be an error.
    #[inline(never)]
    pub fn evd_take(&mut self, evd: EvdHandle) -> Option<Event> {
        self.take_completion(evd, take_any, Some, |adapter, evd| {
            if adapter.is_quiet(evd) { None } else { adapter.evd_take_slow(evd) }
        })
    }

    /// Extension: for layers that make something else of an event. Most are ordinary completions: straight from the CQ's entry. Everything
    /// else is left where it is, for `otherwise`.
    // The event is wrapped here, so that it is put into memory once.
    #[inline(always)]
    pub fn evd_dequeue_or<T>(
        &mut self,
        evd: EvdHandle,
        wrap: impl FnOnce(Event) -> T,
        otherwise: impl FnOnce(&mut Self, EvdHandle) -> T,
    ) -> T {
        self.take_completion(evd, take_ordinary, wrap, otherwise)
    }

    /// The head of the CQ, if it is one that `take` takes.
    #[inline(always)]
    fn take_completion<T>(
        &mut self,
        evd: EvdHandle,
        take: impl FnOnce(&mut Table<'s, EpHandle, Ep<P::Bar>>, &OrdinaryCqe<'_>) -> Option<DtoCompletion>,
        wrap: impl FnOnce(Event) -> T,
        otherwise: impl FnOnce(&mut Self, EvdHandle) -> T,
    ) -> T {
        if let Ok(state) = self.objects.evds.get_mut(evd)
            && state.is_on_fast_path()
            && let Some(cq) = &mut state.cq
            && let Some(done) = cq.poll_ordinary(|next| take(&mut self.objects.eps, next))
        {
            state.looks.delivered(1);
            return wrap(Event { evd, data: EventData::Dto(done) });
        }
        otherwise(self, evd)
    }

    /// Whether there is nothing in an EVD, as far as is known without polling. False also if it is not an ordinary one now.
    #[inline(always)]
    fn is_quiet(&mut self, evd: EvdHandle) -> bool {
        let Ok(state) = self.objects.evds.get_mut(evd) else { return false };
        let fast = state.is_on_fast_path() || state.find_fast_path();
        fast && !self.device.dead && state.cq.as_ref().is_none_or(|cq| cq.is_empty())
    }

    #[cold]
    #[inline(never)]
    fn evd_take_slow(&mut self, evd: EvdHandle) -> Option<Event> {
        let slot = self.may_dequeue(evd).ok()?;
        self.take(slot).map(|data| Event { evd, data })
    }

    /// Whether an EVD may be dequeued from in its condition; its slot.
    fn may_dequeue(&mut self, evd: EvdHandle) -> DatResult<u16> {
        let slot = self.objects.evds.check(evd)?;
        self.delivery().settle_wait(slot);
        let state = self.objects.evds.get_mut(evd)?;
        EvdCall::Dequeue.in_condition(state.condition())?;
        state.find_fast_path();
        Ok(slot)
    }

    /// The event of a completion taken from the CQ of an EVD, if it is one, and of what it retired.
    fn dequeued(&mut self, slot: u16, cqe: &Cqe, retired: Option<Completion>) -> Option<EventData> {
        let index = cqe.user_index() as u16;
        let (delivered, reaction) = match self.objects.eps.at_mut(index) {
            Some(ep) if ep.owns(cqe) => {
                let reaction = ep.reaction(cqe);
                (deliver(ep, &mut self.objects.shared, cqe, retired), reaction)
            }
            _ => {
                let stale = !self.objects.take_drained(cqe);
                self.progress.counters.stale_completions += u64::from(stale);
                (None, Reaction::None)
            }
        };
        // Before the reaction, which asks how many completions there are.
        if let Some(evd) = self.objects.evds.at_mut(slot) {
            match delivered {
                Some(_) => evd.looks.delivered(1),
                None => evd.looks.dropped(1),
            }
        }
        if reaction != Reaction::None {
            self.connections().react(index, reaction);
        }
        delivered
    }

    /// An entry that the device cannot have meant was taken from the CQ of an EVD.
    fn dequeued_nonsense(&mut self, slot: u16) {
        if let Some(evd) = self.objects.evds.at_mut(slot) {
            evd.looks.dropped(1);
        }
        self.bad_completion();
    }

    #[cold]
    #[inline(never)]
    fn evd_dequeue_slow(&mut self, evd: EvdHandle) -> DatResult<Event> {
        let slot = self.may_dequeue(evd)?;
        if let Some(data) = self.take(slot) {
            return Ok(Event { evd, data });
        }
        let now = self.device.now();
        let _ = self.poll(now);
        match self.take(slot) {
            Some(data) => Ok(Event { evd, data }),
            None => Err(DatReturn::QUEUE_EMPTY),
        }
    }

    /// The oldest event of an EVD.
    pub(crate) fn take(&mut self, slot: u16) -> Option<EventData> {
        loop {
            let evd = self.objects.evds.at_mut(slot)?;
            if (!evd.queue.is_empty() || evd.awaiting != 0)
                && let Some(data) = self.take_queued(slot)
            {
                return Some(data);
            }
            let evd = self.objects.evds.at_mut(slot)?;
            let Some(cq) = &mut evd.cq else { return None };
            let delivered = match cq.poll() {
                Ok(Some(cqe)) => {
                    let retired = self.objects.retire(&cqe);
                    self.dequeued(slot, &cqe, retired)
                }
                Ok(None) => return self.take_without_cq(slot),
                Err(_) => {
                    self.dequeued_nonsense(slot);
                    None
                }
            };
            if delivered.is_some() {
                return delivered;
            }
        }
    }

    /// Takes the completion at the head of a CQ, known to be suppressed.
    pub(crate) fn consume_silent(&mut self, slot: u16) {
        let Some(evd) = self.objects.evds.at_mut(slot) else { return };
        let Some(cq) = &mut evd.cq else { return };
        if let Ok(Some(completion)) = cq.poll()
            && let Some(ep) = self.objects.eps.at_mut(completion.user_index() as u16)
        {
            let retired = ep.retire(&completion);
            deliver(ep, &mut self.objects.shared, &completion, retired);
        }
        evd.looks.dropped(1);
    }

    /// A queued event whose turn it is. Before that, a receive completion on an EP that waits for its peer's confirmation
    /// makes it established.
    #[cold]
    fn take_queued(&mut self, slot: u16) -> Option<EventData> {
        let evd = self.objects.evds.at_mut(slot)?;
        if evd.awaiting != 0 && evd.looks.ahead() == 0 {
            self.look_ahead(slot, 1);
        }
        let evd = self.objects.evds.at_mut(slot)?;
        let due = match self.objects.events.follows(&evd.queue) {
            Some(follows) => is_due(follows, evd.looks.taken()),
            None => false,
        };
        if due { self.objects.events.pop(&mut evd.queue) } else { None }
    }

    /// With nothing in the CQ: what is queued comes now whatever it was to follow, and before that, if the device is dead,
    /// what it will never flush.
    #[cold]
    fn take_without_cq(&mut self, slot: u16) -> Option<EventData> {
        if self.is_dead()
            && let Some(event) = self.take_dead(slot)
        {
            return Some(event);
        }
        let evd = self.objects.evds.at_mut(slot)?;
        self.objects.events.pop(&mut evd.queue)
    }

    /// The next flush that a dead device will not report, of any EP whose completions go to this EVD.
    fn take_dead(&mut self, slot: u16) -> Option<EventData> {
        let evd = self.objects.evds.handle_at(slot)?;
        for index in self.objects.eps.slots() {
            let handle = self.objects.eps.handle_at(index);
            let (Some(handle), Some(ep)) = (handle, self.objects.eps.at_mut(index)) else { continue };
            for receive in [true, false] {
                let of = if receive { ep.recv_evd } else { ep.request_evd };
                if of != Some(evd) {
                    continue;
                }
                if let Some((user_cookie, bind)) = ep.take_unfinished(receive) {
                    if let Some(rmr) = bind.and_then(|place| self.objects.shared.bind_done(place, false)) {
                        let status = DtoStatus::ErrFlushed;
                        return Some(EventData::RmrBind(RmrCompletion { rmr, user_cookie, status }));
                    }
                    return Some(EventData::Dto(DtoCompletion {
                        ep: handle,
                        user_cookie,
                        status: DtoStatus::ErrFlushed,
                        transferred_length: 0,
                        operation: if receive { DtoOperation::Receive } else { DtoOperation::Send },
                        received: Received::Plain,
                        vendor_syndrome: 0,
                    }));
                }
            }
        }
        None
    }

    /// Flushes that a dead device will not report on this EVD.
    pub(crate) fn unfinished(&self, slot: u16) -> u32 {
        let Some(evd) = self.objects.evds.handle_at(slot) else { return 0 };
        let of = |ep: &Ep<P::Bar>| {
            let receives = if ep.recv_evd == Some(evd) { ep.receives.outstanding() } else { 0 };
            let marker =
                u32::from(ep.marker.is_some_and(|marker| {
                    marker.wrapping_sub(ep.requests.tail()) < ep.requests.outstanding()
                }));
            let requests = ep.requests.outstanding().saturating_sub(marker);
            receives + if ep.request_evd == Some(evd) { requests } else { 0 }
        };
        self.objects.eps.iter().map(|(_, ep)| of(ep)).sum()
    }
}
