//! Event dispatchers: streams, software queue, CQ, life. DAT 1.2, event management.

use driver_mlx::{Bar, Cq, CqConfig, Platform};

use crate::adapter::Adapter;
use crate::event::{AsyncError, EventData};
use crate::handle::{CnoHandle, EvdHandle, HandleType, IaHandle};
use crate::memory::creation_error;
use crate::queue::{EventPool, EventQueue};
use crate::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::states::EvdCondition;
use crate::table::Table;
use crate::types::EvdFlags;
use crate::wait::WaitState;

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
    /// Completions looked at beyond those.
    pub(crate) ahead: u32,
    /// Of those `ahead`: how many will be delivered, and how many of these notify.
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
    /// There is nothing to think of but completions. May be false although it is so: then a dequeue finds it out.
    plain: bool,
}

impl<B: Bar> Evd<B> {
    /// Whether it is known that there is nothing to think of but completions.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        debug_assert!(!self.plain || self.has_completions_only());
        self.plain
    }

    /// Finds out whether there is nothing to think of but completions.
    pub(crate) fn find_plain(&mut self) -> bool {
        self.plain = self.has_completions_only();
        self.plain
    }

    fn has_completions_only(&self) -> bool {
        self.queue.is_empty() && self.awaiting == 0 && !self.overflowed && self.wait.is_none()
    }

    /// Where an event queued now belongs: behind everything looked at so far.
    pub(crate) fn position(&self) -> u32 {
        self.consumed.wrapping_add(self.ahead)
    }

    /// Queues an event; false if there is no room.
    #[must_use]
    pub(crate) fn push(&mut self, events: &mut EventPool<'_>, position: u32, data: EventData) -> bool {
        self.plain = false;
        events.push(&mut self.queue, position, data)
    }

    /// One more EP waits here for its peer's confirmation.
    pub(crate) fn await_one(&mut self) {
        self.plain = false;
        self.awaiting += 1;
    }

    /// A wait is open from now on.
    pub(crate) fn set_wait(&mut self, wait: WaitState) {
        self.plain = false;
        self.wait = Some(wait);
    }

    /// Events are lost from now on; false if they were already.
    #[must_use]
    pub(crate) fn overflow(&mut self) -> bool {
        self.plain = false;
        !core::mem::replace(&mut self.overflowed, true)
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

    /// Queues an event behind everything its EVD has looked at. A full queue is an overflow.
    pub(crate) fn post_event(&mut self, evd: EvdHandle, data: EventData) {
        let Ok(state) = self.evds.get(evd) else { return };
        let position = state.position();
        self.post_event_at(evd, position, data);
    }

    /// Queues an event at a position of its EVD.
    pub(crate) fn post_event_at(&mut self, evd: EvdHandle, position: u32, data: EventData) {
        let Ok(state) = self.evds.get_mut(evd) else { return };
        if state.push(&mut self.events, position, data) {
            self.progress = true;
            self.arrived(evd);
            return;
        }
        if state.overflow() {
            self.counters.overflows += 1;
            let ia = state.ia;
            self.async_error(Some(ia), AsyncError::EvdOverflow, evd.into());
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

    /// One more completion was taken.
    #[inline(always)]
    pub(crate) fn count_consumed(&mut self, delivered: bool) {
        self.consumed = self.consumed.wrapping_add(1);
        if self.ahead != 0 {
            self.count_ahead(delivered);
        }
    }

    /// So many more completions were taken and delivered.
    #[inline(always)]
    pub(crate) fn count_taken(&mut self, count: usize) {
        self.consumed = self.consumed.wrapping_add(count as u32);
        if self.ahead != 0 {
            self.count_many_ahead(count as u32);
        }
    }

    /// Of the completions taken some or all were looked at before.
    #[inline(never)]
    fn count_many_ahead(&mut self, count: u32) {
        self.ahead = self.ahead.saturating_sub(count);
        if self.ahead == 0 {
            self.look_again();
        } else {
            self.seen_ready = self.seen_ready.saturating_sub(count);
            self.seen_notifying = self.seen_notifying.min(self.seen_ready);
        }
    }

    /// The completion taken was looked at before.
    #[inline(never)]
    fn count_ahead(&mut self, delivered: bool) {
        self.ahead -= 1;
        if self.ahead == 0 {
            self.look_again();
        } else if delivered {
            self.seen_ready = self.seen_ready.saturating_sub(1);
            self.seen_notifying = self.seen_notifying.min(self.seen_ready);
        }
    }

    /// One more completion was looked at.
    pub(crate) fn looked_at_one(&mut self) {
        self.ahead += 1;
    }

    /// Counts as if nothing had been looked at.
    pub(crate) fn look_again(&mut self) {
        (self.ahead, self.seen_ready, self.seen_notifying) = (0, 0, 0);
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
