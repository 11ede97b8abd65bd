//! Which QP has its turn and when: the run queue, timers, and the watch over QPs in error.

use std::collections::{BTreeSet, VecDeque};

use super::state::{QpTransport, Requester, Room};
use crate::meter::{Budget, Meter};
use crate::object::qp::Qp;
use crate::object::qps::Qps;

/// Nanoseconds between two looks at QPs in error, at first and at last: nothing rings for a receive.
const ERROR_LOOK_NS: (u64, u64) = (50_000, 5_000_000);

/// Run queue, timers and QPs in error.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    run: VecDeque<u32>,
    /// Work put off to the end of the call.
    later: Vec<Later>,
    /// QPs by the time of their next timer or an earlier one.
    timers: BTreeSet<(u64, u32)>,
    errors: Errors,
}

/// Work put off to the end of the call.
#[derive(Clone, Copy, Debug)]
enum Later {
    /// The QP's next turn is in the next call.
    Turn(u32),
    /// The QP could have more requests in progress.
    Room(u32),
}

/// QPs in error with a receive queue: their doorbell records are polled for receives to flush.
#[derive(Debug, Default)]
struct Errors {
    qpns: BTreeSet<u32>,
    /// A look that the meter interrupted.
    look: Option<Look>,
    next_look: u64,
    /// Nanoseconds until the look after that: it doubles while no receive is found.
    every: u64,
    held: bool,
}

/// A look at the QPs in error, in the order of their numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    at: u32,
    /// A receive was flushed.
    pub(super) found: bool,
}

impl Schedule {
    /// Queues a QP for its turn.
    #[inline]
    pub(super) fn add(&mut self, qp: &mut Qp) {
        if !qp.transport.place.enter() {
            self.run.push_back(qp.qpn());
        }
    }

    /// Queues a QP, which is not in the run queue, for a turn in the next call.
    pub(super) fn postpone(&mut self, qp: &mut Qp) {
        qp.transport.place.enter();
        self.later.push(Later::Turn(qp.qpn()));
    }

    /// Returns whether a QP can have a WQE of `blocks` basic blocks under way, too. Where there is no memory for it
    /// yet, it is requested, from the next call on.
    #[cold]
    #[inline(never)]
    pub(super) fn has_room(&mut self, qp: &Qp, blocks: u16) -> bool {
        let QpTransport { queue, requester: Requester { room, .. }, .. } = &qp.transport;
        let under_way = queue.under_way();
        if under_way == 0 || under_way.saturating_add(blocks) <= room.0 {
            return true;
        }
        if *room == Room::default() {
            self.later.push(Later::Room(qp.qpn()));
        }
        false
    }

    /// Takes the next QP out of the run queue.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u32> {
        self.run.pop_front()
    }

    /// Returns whether a QP waits for its turn in this call.
    #[inline]
    pub(super) fn has_runnable(&self) -> bool {
        !self.run.is_empty()
    }

    /// Does the work that was put off during a call. QPs that could have more requests in progress get memory for
    /// them while the budget lasts.
    #[inline]
    pub(super) fn end_call(&mut self, qps: &mut Qps, budget: &mut Budget) {
        if !self.later.is_empty() {
            self.do_later(qps, budget);
        }
    }

    #[cold]
    fn do_later(&mut self, qps: &mut Qps, budget: &mut Budget) {
        let mut list = std::mem::take(&mut self.later);
        for later in list.drain(..) {
            let qpn = match later {
                Later::Turn(qpn) => {
                    self.run.push_back(qpn);
                    continue;
                }
                Later::Room(qpn) => qpn,
            };
            let Some(qp) = qps.get_mut(qpn) else { continue };
            let before = qp.memory();
            if !qp.transport.make_room() {
                continue;
            }
            if budget.hold_spare(qp.memory() - before).is_ok() {
                self.add(qp);
            } else {
                qp.transport.give_room_back();
            }
        }
        // The list keeps its memory.
        self.later = list;
    }

    /// Sets a QP's timer to the earliest of its deadlines.
    pub(super) fn arm(&mut self, qp: &mut Qp) {
        let requester = &qp.transport.requester;
        let deadline = requester.ack_deadline.into_iter().chain(requester.rnr_until).min();
        qp.transport.deadline = deadline;
        // An entry that is too early is corrected when its time comes.
        if let Some(deadline) = deadline
            && qp.transport.place.timer().is_none_or(|entry| deadline < entry)
        {
            if let Some(entry) = qp.transport.place.set_timer(Some(deadline)) {
                self.timers.remove(&(entry, qp.qpn()));
            }
            self.timers.insert((deadline, qp.qpn()));
        }
    }

    /// Starts the acknowledgement timer anew if packets are outstanding, and stops it otherwise.
    pub(super) fn restart_ack_timer(&mut self, qp: &mut Qp, now: u64) {
        let Requester { unacked, sent, ack_time, .. } = qp.transport.requester;
        let runs = unacked != sent && ack_time != 0;
        qp.transport.requester.ack_deadline = runs.then(|| now.saturating_add(ack_time));
        self.arm(qp);
    }

    /// Takes the next QP whose timer has expired.
    pub(super) fn next_expired<'q>(&mut self, qps: &'q mut Qps, now: u64) -> Option<&'q mut Qp> {
        let entry = self.timers.first().copied().filter(|(due, _)| *due <= now)?;
        self.timers.remove(&entry);
        let qp = qps.get_mut(entry.1)?;
        qp.transport.place.set_timer(None);
        Some(qp)
    }

    /// Returns whether a timer has expired.
    #[inline]
    pub(super) fn has_expired(&self, now: u64) -> bool {
        self.timers.first().is_some_and(|(due, _)| *due <= now)
    }

    /// Removes a QP that is about to be freed.
    pub(super) fn forget(&mut self, qp: &Qp, meter: &mut Meter) {
        self.unwatch(qp.qpn());
        if qp.transport.place.is_queued() {
            meter.charge(self.run.len() as u64 / 8);
            self.run.retain(|other| *other != qp.qpn());
        }
        if let Some(deadline) = qp.transport.place.timer() {
            self.timers.remove(&(deadline, qp.qpn()));
        }
    }

    /// Polls for receives of a QP in error from now on.
    pub(super) fn watch(&mut self, qpn: u32, now: u64) {
        if self.errors.qpns.insert(qpn) {
            self.errors.every = 0;
            self.errors.next_look = now;
        }
    }

    /// Stops polling for receives of a QP.
    pub(super) fn unwatch(&mut self, qpn: u32) {
        self.errors.qpns.remove(&qpn);
    }

    /// Returns whether QPs in error flush nothing.
    pub(super) const fn flushes_held(&self) -> bool {
        self.errors.held
    }

    /// See [`Hca::hold_flushes`](crate::Hca::hold_flushes).
    pub(super) const fn hold_flushes(&mut self, hold: bool) {
        self.errors.held = hold;
    }

    /// Returns whether [`begin_look`](Self::begin_look) may have something to do.
    #[inline]
    pub(super) fn watches(&self) -> bool {
        !self.errors.qpns.is_empty() || self.errors.look.is_some()
    }

    /// Begins a look at the QPs in error, or resumes one, if it is time.
    pub(super) fn begin_look(&mut self, now: u64) -> Option<Look> {
        let errors = &mut self.errors;
        if errors.held {
            errors.next_look = now.saturating_add(ERROR_LOOK_NS.1);
            return None;
        }
        let is_due = !errors.qpns.is_empty() && errors.next_look <= now;
        errors.look.take().or_else(|| is_due.then(Look::default))
    }

    /// Returns the next QP of a look, which remains at it.
    pub(super) fn look_at(&self, look: &mut Look) -> Option<u32> {
        let qpn = self.errors.qpns.range(look.at..).next().copied()?;
        look.at = qpn;
        Some(qpn)
    }

    /// Suspends a look until the next call.
    pub(super) const fn suspend_look(&mut self, look: Look) {
        self.errors.look = Some(look);
    }

    /// Ends a look.
    pub(super) fn end_look(&mut self, look: Look, now: u64) {
        let ((first, last), errors) = (ERROR_LOOK_NS, &mut self.errors);
        errors.every = if look.found { first } else { errors.every.saturating_mul(2).clamp(first, last) };
        errors.next_look = now.saturating_add(errors.every);
    }

    /// Returns whether nothing is due.
    #[inline]
    pub(super) fn is_idle(&self, now: u64) -> bool {
        !self.has_more(now) && (self.errors.qpns.is_empty() || self.errors.next_look > now)
    }

    /// Returns whether more could be done at once.
    #[inline]
    pub(super) fn has_more(&self, now: u64) -> bool {
        self.has_runnable() || self.errors.look.is_some() || self.has_expired(now)
    }

    /// When something is due although nothing happens until then, in nanoseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        if self.has_runnable() {
            return Some(0);
        }
        let timer = self.timers.first().map(|(deadline, _)| *deadline);
        let look = (!self.errors.qpns.is_empty()).then_some(self.errors.next_look);
        timer.into_iter().chain(look).min()
    }
}

impl Look {
    /// Moves on to the next QP.
    pub(super) const fn advance(&mut self) {
        self.at += 1;
    }
}
