//! Event dispatchers: streams, software queue, CQ, dequeue. DAT 1.2, event management.

use driver_mlx::{Bar, Completion, Cq, CqConfig, Platform, SendCompletion};

use crate::adapter::Adapter;
use crate::completion::{Reaction, deliver, deliver_sent};
use crate::ep::Ep;
use crate::event::{DtoCompletion, DtoOperation, Event, EventData, Received, RmrCompletion};
use crate::handle::{CnoHandle, EvdHandle, HandleType, IaHandle};
use crate::memory::creation_error;
use crate::queue::EventQueue;
use crate::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::states::{EvdCall, EvdCondition};
use crate::table::Table;
use crate::types::{DtoStatus, EpState, EvdFlags};
use crate::wait::WaitState;
use crate::work::Cookie;

/// Software events that every EVD has room for; consumers ask for too few in practice.
pub(crate) const LEAST_EVENTS: u32 = 8;
/// Completions that every CQ has room for at least (beside what EPs reserve, which may be more than the consumer asked for).
const LEAST_COMPLETIONS: u32 = 512;
/// Longest queue that may be asked for.
pub(crate) const MAX_QLEN: u32 = 1 << 17;

/// Streams that bring completions and so need a CQ.
pub(crate) const CQ_STREAMS: EvdFlags = EvdFlags::DTO.union(EvdFlags::RMR_BIND);

/// How arrivals of DTO completions notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// Every completion.
    Threshold,
    /// Those not posted UNSIGNALLED.
    Unsignalled,
    /// Receives whose sender asked for it, and errors.
    Solicited,
}

/// An event dispatcher.
#[derive(Debug)]
pub struct Evd<B: Bar> {
    pub(crate) ia: IaHandle,
    pub(crate) flags: EvdFlags,
    pub(crate) qlen: u32,
    pub(crate) cq: Option<Cq<B>>,
    /// Completions that attached EPs may cause at once.
    pub(crate) reserved: u32,
    /// Completions taken from the CQ, circular.
    pub(crate) consumed: u32,
    /// Completions looked at, never behind `consumed`.
    pub(crate) seen: u32,
    /// Completions between `consumed` and `seen` that will be delivered, and how many of them notify.
    pub(crate) seen_ready: u32,
    pub(crate) seen_notifying: u32,
    pub(crate) queue: EventQueue,
    /// EPs (each stream), service points and IAs that feed it.
    pub(crate) users: u32,
    /// EPs attached here that wait for the peer's confirmation: a receive completion of theirs establishes.
    pub(crate) awaiting: u32,
    pub(crate) enabled: bool,
    pub(crate) waitable: bool,
    pub(crate) overflowed: bool,
    /// The CQ was armed and has not notified since.
    pub(crate) armed: bool,
    pub(crate) notification: Notification,
    pub(crate) dto_streams: u32,
    pub(crate) wait: Option<WaitState>,
    pub(crate) cno: Option<CnoHandle>,
    /// Completions up to here have been told to the CNO, circular; may be behind `consumed`.
    pub(crate) announced: u32,
}

impl<B: Bar> Evd<B> {
    /// Whether there is nothing to think of but completions.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        // One branch for what is a number.
        (self.queue.len() | self.awaiting | u32::from(self.overflowed)) == 0 && self.wait.is_none()
    }

    /// Where an event queued now belongs: behind everything looked at so far.
    pub(crate) fn position(&self) -> u32 {
        self.seen
    }

    /// Completions that EPs can still reserve.
    pub(crate) fn unreserved(&self) -> u32 {
        self.cq.as_ref().map_or(0, |cq| cq.capacity().saturating_sub(self.reserved))
    }
}

/// Bit of the index difference that says "before".
pub(crate) fn is_due(follows: u32, consumed: u32) -> bool {
    consumed.wrapping_sub(follows) as i32 >= 0
}

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
        self.ias.get(ia)?;
        if let Some(cno) = cno {
            self.cnos.get(cno).and_then(|state| state.ia.check(ia, HandleType::Cno))?;
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
        if min_qlen > MAX_QLEN || self.evds.len() >= self.evds.capacity() {
            return Err(FULL);
        }
        let mut queue = self.events.create(software_events(flags, min_qlen)).ok_or(FULL)?;
        let cq = if flags.intersects(CQ_STREAMS) {
            let config = CqConfig { entries: min_qlen.max(LEAST_COMPLETIONS), eq: 0 };
            match self.hca.create_cq(&config) {
                Ok(cq) => Some(cq),
                Err(error) => {
                    self.events.destroy(&mut queue);
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
            seen: 0,
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
        };
        let evd = self.evds.insert(evd).map_err(|_| FULL)?;
        if let Some(Ok(cno)) = cno.map(|cno| self.cnos.get_mut(cno)) {
            cno.users += 1;
        }
        Ok(evd)
    }

    /// `dat_evd_free`. Events not taken are lost; a wait on it ends with ABORT.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE (EVD_IN_USE) while a stream feeds it.
    pub fn evd_free(&mut self, evd: EvdHandle) -> DatResult<()> {
        if self.evds.get(evd)?.users > 0 {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdInUse));
        }
        let own_async = self.ias.iter().any(|(_, ia)| ia.async_evd == evd);
        if own_async {
            // NetPIPE frees the asynchronous EVD before it closes the IA: the IA goes on without one.
            for slot in 0..self.ias.end() {
                if let Some(ia) = self.ias.at_mut(slot)
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
        let mut evd = self.evds.remove(evd)?;
        self.events.destroy(&mut evd.queue);
        if let Some(cno) = evd.cno {
            self.detach_from_cno(cno);
        }
        if let Some(cq) = evd.cq
            && !self.is_dead()
        {
            self.hca.destroy_cq(cq).map_err(|_| DatReturn::new(ReturnType::InternalError))?;
        }
        Ok(())
    }

    /// `dat_evd_dequeue`. If there is nothing, the adapter is polled once and the EVD looked at again.
    ///
    /// # Errors
    /// QUEUE_EMPTY (without class bits, see [`DatReturn::QUEUE_EMPTY`]); INVALID_HANDLE; INVALID_STATE while a wait is open or
    /// after an overflow.
    #[inline]
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        // The usual event where much is posted: a request of a connection in good order is done. Everything else goes elsewhere, without
        // coming back here, so that this way keeps to registers.
        let Ok(state) = self.evds.get_mut(evd) else { return self.dequeue_any(evd) };
        if !state.is_plain() {
            return self.dequeue_any(evd);
        }
        let Some(cq) = &mut state.cq else { return self.dequeue_any(evd) };
        let Some(completion) = cq.poll_send() else { return self.dequeue_any(evd) };
        // In good order is an EP that is connected; only then the completion is nothing but a completion.
        let Some(ep) = self.eps.at_mut(completion.user_index() as u16) else {
            return self.dequeue_sent(evd, completion);
        };
        if ep.state != EpState::Connected {
            return self.dequeue_sent(evd, completion);
        }
        let Some(qp) = &mut ep.qp else { return self.dequeue_sent(evd, completion) };
        let Some(cookie) = qp.retire_send(&completion) else {
            let owned = ep.qpn == completion.qpn();
            return self.dequeue_nothing(evd, owned);
        };
        let cookie = Cookie(cookie);
        if cookie.is_special() {
            let slot = ep.handle.handle().slot();
            return self.dequeue_specially(evd, slot, cookie);
        }
        let Some(user_cookie) = ep.requests.retire_oldest(cookie.index()) else {
            let slot = ep.handle.handle().slot();
            return self.dequeue_specially(evd, slot, cookie);
        };
        state.count_plain();
        let data = EventData::Dto(DtoCompletion {
            ep: ep.handle,
            user_cookie,
            transferred_length: u64::from(cookie.length()),
            operation: cookie.operation(),
            status: DtoStatus::Success,
            received: Received::Plain,
            vendor_syndrome: 0,
        });
        Ok(Event { evd, data })
    }

    /// A success of a send queue, of an EP that is not simply connected.
    #[cold]
    #[inline(never)]
    fn dequeue_sent(&mut self, evd: EvdHandle, completion: SendCompletion) -> DatResult<Event> {
        match self.dequeued(evd, completion.into()) {
            Some(event) => Ok(event),
            None => self.dequeue_any(evd),
        }
    }

    /// A completion of a connected EP, or of a QP that it had, that names nothing outstanding.
    #[cold]
    #[inline(never)]
    fn dequeue_nothing(&mut self, evd: EvdHandle, owned: bool) -> DatResult<Event> {
        if !owned {
            self.counters.stale_completions += 1;
        }
        if let Ok(state) = self.evds.get_mut(evd) {
            state.count_consumed(false);
        }
        self.dequeue_any(evd)
    }

    /// A request of a connected EP that is retired from its QP, and is suppressed, our own, a bind, or not the oldest.
    #[cold]
    #[inline(never)]
    fn dequeue_specially(&mut self, evd: EvdHandle, ep: u16, cookie: Cookie) -> DatResult<Event> {
        let ep = self.eps.at_mut(ep);
        let data = ep.and_then(|ep| deliver_sent(ep, &mut self.shared, cookie));
        if let Ok(state) = self.evds.get_mut(evd) {
            state.count_consumed(data.is_some());
        }
        match data {
            Some(data) => Ok(Event { evd, data }),
            None => self.dequeue_any(evd),
        }
    }

    /// The event of a completion taken from the CQ, if it is one.
    #[inline(never)]
    fn dequeued(&mut self, evd: EvdHandle, completion: Completion) -> Option<Event> {
        let index = completion.user_index() as u16;
        let (delivered, reaction) = match self.eps.at_mut(index) {
            Some(ep) if ep.owns(&completion) => {
                let reaction = ep.reaction(&completion);
                (deliver(ep, &mut self.shared, &completion), reaction)
            }
            _ => {
                self.counters.stale_completions += 1;
                (None, Reaction::None)
            }
        };
        // Before the reaction, which asks how many completions there are.
        if let Ok(state) = self.evds.get_mut(evd) {
            state.count_consumed(delivered.is_some());
        }
        // Success on a connected EP: nothing but the event.
        if reaction != Reaction::None {
            self.react(index, reaction);
        }
        delivered.map(|data| Event { evd, data })
    }

    /// Anything at all, looked for in the CQ first.
    #[inline(never)]
    fn dequeue_any(&mut self, evd: EvdHandle) -> DatResult<Event> {
        let state = self.evds.get_mut(evd)?;
        if state.is_plain()
            && let Some(cq) = &mut state.cq
        {
            match cq.poll() {
                Ok(Some(completion)) => {
                    if let Some(event) = self.dequeued(evd, completion) {
                        return Ok(event);
                    }
                }
                Ok(None) => {}
                Err(_) => {
                    state.count_consumed(false);
                    self.bad_completion();
                }
            }
        }
        self.evd_dequeue_slow(evd)
    }

    #[inline(never)]
    fn evd_dequeue_slow(&mut self, evd: EvdHandle) -> DatResult<Event> {
        let state = self.evds.get(evd)?;
        EvdCall::Dequeue.in_condition(state.condition())?;
        let slot = evd.handle().slot();
        if let Some(data) = self.take(slot) {
            return Ok(Event { evd, data });
        }
        let now = self.hca.platform().now();
        self.poll(now);
        match self.take(slot) {
            Some(data) => Ok(Event { evd, data }),
            None => Err(DatReturn::QUEUE_EMPTY),
        }
    }

    /// The oldest event of an EVD.
    pub(crate) fn take(&mut self, slot: u16) -> Option<EventData> {
        loop {
            let evd = self.evds.at_mut(slot)?;
            if (!evd.queue.is_empty() || evd.awaiting != 0)
                && let Some(data) = self.take_queued(slot)
            {
                return Some(data);
            }
            let evd = self.evds.at_mut(slot)?;
            let Some(cq) = &mut evd.cq else { return None };
            let completion = match cq.poll() {
                Ok(Some(completion)) => completion,
                Ok(None) => return self.take_without_cq(slot),
                Err(_) => {
                    evd.count_consumed(false);
                    self.bad_completion();
                    continue;
                }
            };
            let index = completion.user_index() as u16;
            let (delivered, reaction) = match self.eps.at_mut(index) {
                Some(ep) if ep.owns(&completion) => {
                    let reaction = ep.reaction(&completion);
                    (deliver(ep, &mut self.shared, &completion), reaction)
                }
                _ => {
                    self.counters.stale_completions += 1;
                    (None, Reaction::None)
                }
            };
            // Before the reaction, which asks how many completions there are.
            evd.count_consumed(delivered.is_some());
            if reaction != Reaction::None {
                self.react(index, reaction);
            }
            if let Some(delivered) = delivered {
                return Some(delivered);
            }
        }
    }

    /// Takes the completion at the head of a CQ, known to be suppressed.
    pub(crate) fn consume_silent(&mut self, slot: u16) {
        let Some(evd) = self.evds.at_mut(slot) else { return };
        let Some(cq) = &mut evd.cq else { return };
        if let Ok(Some(completion)) = cq.poll()
            && let Some(ep) = self.eps.at_mut(completion.user_index() as u16)
        {
            deliver(ep, &mut self.shared, &completion);
        }
        evd.count_consumed(false);
    }

    /// A queued event whose turn it is. Before that, a receive completion on an EP that waits for its peer's confirmation
    /// makes it established.
    #[cold]
    fn take_queued(&mut self, slot: u16) -> Option<EventData> {
        let evd = self.evds.at_mut(slot)?;
        if evd.awaiting != 0 && evd.seen == evd.consumed {
            self.look_ahead(slot, 1);
        }
        let evd = self.evds.at_mut(slot)?;
        let due = match self.events.follows(&evd.queue) {
            Some(follows) => is_due(follows, evd.consumed),
            None => false,
        };
        if due { self.events.pop(&mut evd.queue) } else { None }
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
        let evd = self.evds.at_mut(slot)?;
        self.events.pop(&mut evd.queue)
    }

    /// The next flush that a dead device will not report, of any EP whose completions go to this EVD.
    fn take_dead(&mut self, slot: u16) -> Option<EventData> {
        let evd = self.evds.handle_at(slot)?;
        for index in 0..self.eps.end() {
            let handle = self.eps.handle_at(index);
            let (Some(handle), Some(ep)) = (handle, self.eps.at_mut(index)) else { continue };
            for receive in [true, false] {
                let of = if receive { ep.recv_evd } else { ep.request_evd };
                if of != Some(evd) {
                    continue;
                }
                if let Some((user_cookie, window)) = ep.take_unfinished(receive) {
                    if let Some(rmr) = window.and_then(|slot| self.shared.rmrs.handle_at(slot)) {
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
        let Some(evd) = self.evds.handle_at(slot) else { return 0 };
        let of = |ep: &Ep<P::Bar>| {
            let receives = if ep.recv_evd == Some(evd) { ep.receives.outstanding() } else { 0 };
            let marker = u32::from(
                ep.marker
                    .is_some_and(|marker| marker.wrapping_sub(ep.requests.tail) < ep.requests.outstanding()),
            );
            let requests = ep.requests.outstanding().saturating_sub(marker);
            receives + if ep.request_evd == Some(evd) { requests } else { 0 }
        };
        self.eps.iter().map(|(_, ep)| of(ep)).sum()
    }

    /// Queues an event behind everything its EVD has looked at. A full queue is an overflow.
    pub(crate) fn post_event(&mut self, evd: EvdHandle, data: EventData) {
        let Ok(state) = self.evds.get(evd) else { return };
        let position = state.position();
        self.post_event_at(evd, position, data);
    }

    /// Queues an event at a position of its EVD.
    pub(crate) fn post_event_at(&mut self, evd: EvdHandle, position: u32, data: EventData) {
        let Ok(state) = self.evds.get_mut(evd) else { return };
        if self.events.push(&mut state.queue, position, data) {
            self.progress = true;
            self.arrived(evd);
            return;
        }
        if !state.overflowed {
            state.overflowed = true;
            self.counters.overflows += 1;
            let ia = state.ia;
            self.async_error(Some(ia), crate::event::AsyncError::EvdOverflow, evd.into());
        }
    }
}

impl<B: Bar> Evd<B> {
    /// How it stands toward who waits.
    pub(crate) fn condition(&self) -> EvdCondition {
        match &self.wait {
            _ if self.overflowed => EvdCondition::Overflowed,
            Some(wait) if wait.interrupted => EvdCondition::Interrupted,
            Some(_) => EvdCondition::Waited,
            None if self.waitable => EvdCondition::Open,
            None => EvdCondition::Unwaitable,
        }
    }

    /// Completions in the CQ, looked at or not.
    pub(crate) fn completions(&self) -> u32 {
        let Some(cq) = &self.cq else { return 0 };
        let mut count = 0;
        while count <= cq.capacity().saturating_mul(2) && !matches!(cq.peek(count), Ok(None)) {
            count += 1;
        }
        count
    }

    /// Places that its software queue needs if `min_qlen` events shall fit.
    pub(crate) fn software_events(&self, min_qlen: u32) -> u32 {
        software_events(self.flags, min_qlen)
    }

    /// One more completion was taken and delivered, of an EVD where nothing is looked at ahead.
    #[inline(always)]
    fn count_plain(&mut self) {
        if self.seen == self.consumed {
            self.consumed = self.consumed.wrapping_add(1);
            self.seen = self.consumed;
        } else {
            self.count_consumed(true);
        }
    }

    /// One more completion was taken.
    #[inline(always)]
    pub(crate) fn count_consumed(&mut self, delivered: bool) {
        self.consumed = self.consumed.wrapping_add(1);
        if is_due(self.seen, self.consumed) {
            self.seen = self.consumed;
            self.seen_ready = 0;
            self.seen_notifying = 0;
        } else if delivered {
            self.seen_ready = self.seen_ready.saturating_sub(1);
            self.seen_notifying = self.seen_notifying.min(self.seen_ready);
        }
    }
}

/// An EVD for completions alone needs little room for other events.
fn software_events(flags: EvdFlags, min_qlen: u32) -> u32 {
    if CQ_STREAMS.contains(flags) { LEAST_EVENTS } else { min_qlen.max(LEAST_EVENTS) }
}

/// The EVD that a stream needs: alive, of this IA if one is given, with the stream's flag.
pub(crate) fn check_stream<B: Bar>(
    evds: &Table<'_, EvdHandle, Evd<B>>,
    ia: Option<IaHandle>,
    evd: Option<EvdHandle>,
    flag: EvdFlags,
    subtype: Subtype,
) -> Result<(), DatReturn> {
    let bad = DatReturn::error(ReturnType::InvalidHandle, subtype);
    match evd {
        None => Ok(()),
        Some(evd) => match evds.get(evd) {
            Ok(evd) if evd.flags.contains(flag) && ia.is_none_or(|ia| ia == evd.ia) => Ok(()),
            _ => Err(bad),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_circular() {
        assert!(is_due(5, 5) && is_due(5, 6) && !is_due(6, 5));
        assert!(is_due(u32::MAX, 0) && !is_due(0, u32::MAX));
    }
}
