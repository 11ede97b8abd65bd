//! `dat_evd_dequeue`: the oldest event of an EVD, from its CQ or its software queue. The hot path. DAT 1.2, event management.

use crate::base::states::EvdCall;
use driver_mlx::{Bar, Platform};

use crate::adapter::Adapter;
use crate::adapter::objects::{Objects, Tables};
use crate::base::event::{DtoCompletion, DtoOperation, Event, EventData, RmrCompletion};
use crate::base::handle::EvdHandle;
use crate::base::ret::{DatResult, DatReturn};
use crate::base::types::DtoStatus;
use crate::ep::Ep;
use crate::evd::completion::{Outcome, failure, take_transfer};
use crate::evd::reaction::Reaction;

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_evd_dequeue`. An EVD that takes completions looks at its CQ; if there is nothing, one call in 256 polls the adapter. Other
    /// EVDs poll the adapter if there is nothing, and look again.
    ///
    /// # Errors
    /// QUEUE_EMPTY (without class bits, see [`DatReturn::QUEUE_EMPTY`]); INVALID_HANDLE; INVALID_STATE while a wait is open or
    /// after an overflow.
    // One copy for all callers: where there are many the compiler makes functions of its parts.
    #[inline(never)]
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        self.next_event::<false, _>(evd, true, |event| event)
    }

    /// Extension: as [`Adapter::evd_dequeue`], but where there is nothing the adapter is never polled for it: that is left to whoever
    /// polls it anyway. None also where the other call would be an error.
    #[inline(never)]
    pub fn evd_take(&mut self, evd: EvdHandle) -> Option<Event> {
        self.next_event::<true, _>(evd, false, Result::ok)
    }

    /// Extension: as [`Adapter::evd_dequeue`], for layers that make something else of what it returns: `wrap` does.
    #[inline]
    pub fn evd_dequeue_with<T>(&mut self, evd: EvdHandle, wrap: impl FnOnce(DatResult<Event>) -> T) -> T {
        self.next_event::<false, _>(evd, true, wrap)
    }

    /// Extension: takes events until there is none, or `most` were taken. Transfers that ended well go to `take`. Any other event ends
    /// the run and is returned beside the number of events, in which it counts. The adapter is not polled.
    #[inline]
    pub fn evd_take_run(
        &mut self,
        evd: EvdHandle,
        most: usize,
        mut take: impl FnMut(&DtoCompletion),
    ) -> (usize, Option<Event>) {
        let mut count = 0;
        let Tables { evds, eps, .. } = self.objects.split();
        if let Ok(state) = evds.table_mut().get_mut(evd)
            && (state.is_on_fast_path() || state.find_fast_path(self.device.is_dead()))
            && let Some(cq) = &mut state.cq
        {
            let ended = loop {
                if count == most {
                    break true;
                }
                match cq.poll_common(|cqe| take_transfer::<false, _>(eps, cqe)) {
                    Some(Some(done)) => take(&done),
                    None => break true,
                    _ => break false,
                }
                count += 1;
            };
            state.looks.delivered(count);
            if ended {
                return (count, None);
            }
        }
        let other = self.next_other(evd, false, Result::ok);
        (count + usize::from(other.is_some()), other)
    }

    /// The oldest event. Most are transfers that ended well, straight from the CQ's entry; what is not is left to the cold part.
    // The event is wrapped in each part, so that it is put into memory once. `RUNS` is for consumers who suppress most completions: it
    // costs those who do not.
    #[inline(always)]
    fn next_event<const RUNS: bool, T>(
        &mut self,
        evd: EvdHandle,
        polls: bool,
        wrap: impl FnOnce(DatResult<Event>) -> T,
    ) -> T {
        let Tables { evds, eps, .. } = self.objects.split();
        if let Ok(state) = evds.table_mut().get_mut(evd)
            && state.is_on_fast_path()
        {
            let taken = match &mut state.cq {
                Some(cq) => cq.poll_common(|cqe| take_transfer::<RUNS, _>(eps, cqe)),
                // Events that the adapter brings: a dequeue that polls has to see to it.
                None if polls => Some(None),
                None => None,
            };
            match taken {
                Some(Some(done)) => {
                    state.looks.delivered(1);
                    return wrap(Ok(Event { evd, data: EventData::Dto(done) }));
                }
                None if !(polls && self.progress.is_poll_due()) => {
                    return wrap(Err(DatReturn::QUEUE_EMPTY));
                }
                _ => {}
            }
        }
        self.next_other(evd, polls, wrap)
    }

    #[cold]
    #[inline(never)]
    fn next_other<T>(&mut self, evd: EvdHandle, polls: bool, wrap: impl FnOnce(DatResult<Event>) -> T) -> T {
        wrap(match self.next_of_any_kind(evd, polls) {
            Ok(Some(data)) => Ok(Event { evd, data }),
            Ok(None) => Err(DatReturn::QUEUE_EMPTY),
            Err(error) => Err(error),
        })
    }

    /// The oldest event of an EVD.
    fn next_of_any_kind(&mut self, evd: EvdHandle, polls: bool) -> DatResult<Option<EventData>> {
        let slot = self.objects.table().check(evd)?;
        self.objects.evds_mut().settle_wait(slot);
        let state = self.objects.get_mut(evd)?;
        EvdCall::Dequeue.in_condition(state.condition())?;
        state.find_fast_path(self.device.is_dead());
        let data = self.take(slot);
        if data.is_some() || !polls {
            return Ok(data);
        }
        let now = self.device.now();
        let _ = self.poll(now);
        Ok(self.take(slot))
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

    /// With nothing in the CQ: what is queued comes now whatever it was to follow, and before that, if the device is dead,
    /// what it will never flush.
    #[cold]
    fn take_without_cq(&mut self, slot: u16) -> Option<EventData> {
        if self.is_dead()
            && let Some(event) = self.objects.take_dead(slot)
        {
            return Some(event);
        }
        self.objects.evds_mut().pop(slot)
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
                return Some(failure(handle, user_cookie, operation, (status, 0)));
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
}
