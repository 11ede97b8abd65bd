//! Events: dispatchers, waits. DAT 1.2, event management.

pub(crate) mod completion;
pub(crate) mod control;
pub(crate) mod cq_map;
pub(crate) mod delivery;
pub(crate) mod dequeue;
pub(crate) mod dispatchers;
pub(crate) mod evds;
pub(crate) mod life;
pub(crate) mod looks;
pub(crate) mod queue;
pub(crate) mod reaction;
pub(crate) mod wait;
pub(crate) mod waiter;

use core::mem::offset_of;

use driver_mlx::{Bar, Cq, Cqe, Error, Hca, MmioBar, Platform};

use crate::base::event::EventData;
use crate::base::handle::{CnoHandle, EvdHandle, IaHandle};
use crate::base::list::{Link, linked};
use crate::base::reports::{Ready, Waited};
use crate::base::ret::{DatReturn, ReturnType, Subtype};
use crate::base::states::EvdCondition;
use crate::base::table::{Slot, Table, of_ia};
use crate::base::types::EvdFlags;
use crate::base::users::Users;
use crate::evd::looks::Looks;
use crate::evd::queue::{EventPool, EventQueue};
use crate::evd::waiter::WaitState;

/// Least software events of any EVD, because programs request too few in practice.
pub(crate) const LEAST_EVENTS: u32 = 8;

/// Longest queue that a consumer may request.
pub(crate) const MAX_QLEN: u32 = 1 << 17;

/// Streams that bring completions and so need a CQ.
pub(crate) const CQ_STREAMS: EvdFlags = EvdFlags::DTO.union(EvdFlags::RMR_BIND);

/// Polls that find nothing new in a CQ before it is armed and left alone until it notifies.
const LOOKS_BEFORE_ARMING: u8 = 64;

/// The list of EVDs whose CQs every poll looks at, because they would not notify.
#[derive(Debug)]
struct Looked;

/// Mode in which DTO completions notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// Every completion.
    Threshold,
    /// Completions of operations posted without UNSIGNALLED.
    Unsignalled,
    /// Receives of a sender's SOLICITED_WAIT, and errors.
    Solicited,
}

/// An event dispatcher. In its place of the table a dequeue touches two cache lines, the second with what [`driver_mlx::Cq`] begins with.
#[derive(Debug)]
#[repr(C)]
pub struct Evd<B: Bar> {
    /// Completions taken from the CQ, and those looked at before.
    looks: Looks,
    /// The next event can only be a completion of the CQ. A stale `false` is safe: the slow path recomputes it.
    fast_path: bool,
    cq: Option<Cq<B>>,
    ia: IaHandle,
    flags: EvdFlags,
    /// Completions that attached EPs may cause at once.
    reserved: u32,
    queue: EventQueue,
    /// EPs (each stream), service points and IAs that feed it.
    users: Users,
    /// EPs attached here that wait for the peer's confirmation: a receive completion of theirs establishes.
    awaiting: u32,
    enabled: bool,
    waitable: bool,
    overflowed: bool,
    /// The CQ was armed and has not notified since.
    armed: bool,
    notification: Notification,
    dto_streams: u32,
    wait: Option<WaitState>,
    cno: Option<CnoHandle>,
    /// Completions up to here have been reported to the CNO, circular; may be behind `consumed`.
    announced: u32,
    /// The position after the last look, and how many since then found nothing new.
    rested_at: u32,
    quiet: u8,
    /// The next EVD, slot plus one, whose CQ's number has the same place in the map.
    next_in_chain: u32,
    looked: Link<Looked>,
    ready: Link<Ready>,
    waited: Link<Waited>,
}

const _: () = assert!(offset_of!(Evd<MmioBar>, fast_path) == Slot::<Evd<MmioBar>>::HOT);

of_ia! { Evd<B> }
linked! { Evd<B>, Looked, looked }
linked! { Evd<B>, Ready, ready }
linked! { Evd<B>, Waited, waited }

impl<B: Bar> Evd<B> {
    /// Enabled, waitable and empty.
    pub(crate) fn new(
        ia: IaHandle,
        flags: EvdFlags,
        cq: Option<Cq<B>>,
        queue: EventQueue,
        cno: Option<CnoHandle>,
    ) -> Self {
        Self {
            ia,
            flags,
            cq,
            reserved: 0,
            looks: Looks::default(),
            queue,
            users: Users::default(),
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
            fast_path: false,
            rested_at: 0,
            quiet: 0,
            next_in_chain: 0,
            looked: Link::OUT,
            ready: Link::OUT,
            waited: Link::OUT,
        }
    }

    /// Its CQ must be looked at again: it has notified, or who feeds it has changed.
    pub(crate) fn disarmed(&mut self) {
        (self.armed, self.quiet) = (false, 0);
    }

    /// Arms the CQ, unless it is armed or no EP feeds it. Arms it for solicited completions if only those notify, unless an EP waits
    /// for its peer's first message.
    pub(crate) fn arm(&mut self) {
        if self.armed || self.reserved == 0 {
            return;
        }
        if let Some(cq) = &mut self.cq {
            cq.arm(self.notification == Notification::Solicited && self.awaiting == 0);
            self.armed = true;
        }
    }

    /// After a look: whether polls may leave the CQ alone until it notifies. A CQ that was found unchanged for a while is armed and
    /// looked at once more. A CQ with completions would notify immediately, so polls continue.
    pub(crate) fn rests(&mut self) -> bool {
        let position = self.position();
        let changed = core::mem::replace(&mut self.rested_at, position) != position;
        if self.reserved == 0 {
            return true;
        }
        if changed || self.looks.ahead() != 0 || self.awaiting != 0 {
            self.quiet = 0;
            return false;
        }
        if self.armed {
            return true;
        }
        self.quiet += 1;
        if self.quiet >= LOOKS_BEFORE_ARMING {
            self.arm();
        }
        false
    }

    /// Returns whether the next event can only be a completion of the CQ.
    #[inline]
    pub(crate) fn is_on_fast_path(&self) -> bool {
        debug_assert!(!self.fast_path || self.has_completions_only());
        self.fast_path
    }

    /// Recomputes whether the next event can only be a completion of the CQ. Never true on a dead device, whose outstanding
    /// operations become events without a CQE.
    pub(crate) fn find_fast_path(&mut self, is_dead: bool) -> bool {
        self.fast_path = !is_dead && self.has_completions_only();
        self.fast_path
    }

    /// The device is dead.
    pub(crate) fn leave_fast_path(&mut self) {
        self.fast_path = false;
    }

    fn has_completions_only(&self) -> bool {
        self.queue.is_empty() && self.awaiting == 0 && !self.overflowed && self.wait.is_none()
    }

    /// Where an event queued now belongs: behind everything looked at so far.
    pub(crate) fn position(&self) -> u32 {
        self.looks.position()
    }

    /// Queues an event; false if there is no room.
    #[must_use]
    pub(crate) fn push(&mut self, events: &mut EventPool<'_>, position: u32, data: EventData) -> bool {
        self.fast_path = false;
        events.push(&mut self.queue, position, data)
    }

    /// Counts an EP that waits for its peer's confirmation.
    pub(crate) fn await_one(&mut self) {
        self.fast_path = false;
        self.awaiting += 1;
    }

    /// An EP waits here for its peer's confirmation no more.
    pub(crate) fn await_one_less(&mut self) {
        self.awaiting = self.awaiting.saturating_sub(1);
    }

    /// A wait is open from now on.
    pub(crate) fn set_wait(&mut self, wait: WaitState) {
        self.fast_path = false;
        self.wait = Some(wait);
    }

    /// Events are lost from now on; false if they were already.
    #[must_use]
    pub(crate) fn overflow(&mut self) -> bool {
        self.fast_path = false;
        !core::mem::replace(&mut self.overflowed, true)
    }

    /// Returns whether it takes this stream.
    pub(crate) fn takes(&self, stream: EvdFlags) -> bool {
        self.flags.contains(stream)
    }

    /// Its CQ, if it takes completions.
    pub(crate) fn cq(&self) -> Option<&Cq<B>> {
        self.cq.as_ref()
    }

    /// The length of its queue for the consumer: completions that fit, or other events if it takes none.
    pub(crate) fn qlen(&self) -> u32 {
        self.cq.as_ref().map_or(self.queue.limit(), Cq::capacity)
    }

    /// Events besides completions that fit.
    pub(crate) fn event_limit(&self) -> u32 {
        self.queue.limit()
    }

    /// Returns whether an event besides completions would be lost.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full() || self.overflowed
    }

    /// Returns whether a stream of completions that notify in this mode conflicts with the others.
    pub(crate) fn conflicts(&self, mode: Notification) -> bool {
        let mixed = !CQ_STREAMS.contains(self.flags) && mode != Notification::Threshold;
        mixed || self.dto_streams > 0 && self.notification != mode
    }

    /// Reserves `completions` entries of the CQ, or releases them.
    pub(crate) fn reserve(&mut self, completions: u32, keep: bool) {
        let released = self.reserved.saturating_sub(completions);
        self.reserved = if keep { self.reserved + completions } else { released };
    }

    /// Places in the CQ that are kept.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Counts an object that feeds the EVD in or out, with the `completions` that it may cause. `mode` says how these notify; `None` for
    /// an object without completions.
    pub(crate) fn count_user(&mut self, completions: u32, mode: Option<Notification>, come: bool) {
        self.users.count(come);
        self.reserve(completions, come);
        if let Some(mode) = mode {
            let left = self.dto_streams.saturating_sub(1);
            self.dto_streams = if come { self.dto_streams + 1 } else { left };
            // Streams that share an EVD have one mode.
            self.notification = if self.dto_streams == 0 { Notification::Threshold } else { mode };
        }
    }

    /// Completions that EPs can still reserve.
    pub(crate) fn unreserved(&self) -> u32 {
        self.cq.as_ref().map_or(0, |cq| cq.capacity().saturating_sub(self.reserved))
    }
}

/// Returns whether `consumed` completions have reached position `follows`. Both wrap; the sign of
/// their difference gives the order.
pub(crate) fn is_due(follows: u32, consumed: u32) -> bool {
    consumed.wrapping_sub(follows) as i32 >= 0
}

impl<B: Bar> Evd<B> {
    /// Returns the state of its wait, as the tables of calls name it.
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
        self.peek_all().count() as u32
    }

    /// The completions in the CQ, looked at or not; `None` for each that cannot be.
    pub(crate) fn peek_all(&self) -> impl Iterator<Item = Option<Cqe<'_>>> {
        self.cq.iter().flat_map(|cq| {
            let places = 0..=cq.capacity().saturating_mul(2);
            places.map_while(|ahead| cq.peek(ahead).transpose().map(Result::ok))
        })
    }

    /// The position after all completions that are there; `None` if it takes none.
    pub(crate) fn end(&self) -> Option<u32> {
        self.cq.as_ref().map(|_| self.looks.taken().wrapping_add(self.completions()))
    }

    /// Makes the CQ hold so many completions, and all that attached EPs may cause. Returns whether it has changed.
    pub(crate) fn resize_cq<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        entries: u32,
    ) -> Result<bool, Error> {
        let entries = entries.max(self.reserved);
        let Some(cq) = self.cq.as_mut().filter(|cq| cq.capacity() < entries) else { return Ok(false) };
        hca.resize_cq(cq, entries).map(|()| true)
    }
}

/// An EVD for completions alone needs little room for other events.
pub(crate) fn software_events(flags: EvdFlags, min_qlen: u32) -> u32 {
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
    let takes = |evd: &Evd<B>| evd.flags.contains(flag) && ia.is_none_or(|ia| ia == evd.ia);
    if evd.is_none_or(|evd| evds.get(evd).is_ok_and(takes)) {
        Ok(())
    } else {
        Err(DatReturn::error(ReturnType::InvalidHandle, subtype))
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
