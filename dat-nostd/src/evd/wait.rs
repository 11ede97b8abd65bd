//! `dat_evd_wait` as begin, poll and end. DAT 1.2, event management.

use crate::base::states::EvdCall;
use driver_mlx::{Instant, Platform, Wake};

use crate::adapter::Adapter;
use crate::base::event::Event;
use crate::base::handle::EvdHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::deadline_of;
use crate::evd::dispatcher::Notification;
use crate::evd::wait_state::{Wait, WaitState};

/// Completions looked at in one go.
const LOOK_AHEAD: u32 = 1 << 12;

impl<'s, P: Platform> Adapter<'s, P> {
    /// Begins `dat_evd_wait`. While it is open, other waits and dequeues on the EVD are INVALID_STATE.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a threshold of 0 or above the queue's length; INVALID_STATE if a wait is open, the
    /// EVD is unwaitable, or the threshold is not 1 where completions notify one by one.
    pub fn evd_wait_begin(
        &mut self,
        evd: EvdHandle,
        now: Instant,
        timeout_us: u32,
        threshold: u32,
    ) -> DatResult<()> {
        let evd = self.objects.evds.get_mut(evd)?;
        if threshold == 0 || threshold > evd.qlen {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3));
        }
        EvdCall::WaitBegin.in_condition(evd.condition())?;
        let state = |subtype| Err(DatReturn::error(ReturnType::InvalidState, subtype));
        match evd.notification {
            Notification::Unsignalled if threshold != 1 => {
                return state(Subtype::InvalidStateEvdConfigNotify);
            }
            Notification::Solicited if threshold != 1 => {
                return state(Subtype::InvalidStateEvdConfigSolicited);
            }
            _ => {}
        }
        let deadline = deadline_of(now, timeout_us);
        evd.set_wait(WaitState { deadline, threshold, first: true, interrupted: false });
        // Completions are counted for a wait only, so what was looked at without one is looked at again.
        evd.look_again();
        Ok(())
    }

    /// Whether the wait is over; it has ended when this answers anything but `Pending`.
    ///
    /// # Errors
    /// INVALID_HANDLE; ABORT if the EVD went away under the wait (its handle was valid when the wait began); INVALID_STATE if it
    /// was made unwaitable, or no wait is open.
    pub fn evd_wait_poll(&mut self, evd: EvdHandle, now: Instant) -> DatResult<Wait> {
        let slot = match self.objects.evds.check(evd) {
            Ok(slot) => slot,
            Err(_) if self.objects.evds.is_past(evd) => return Err(DatReturn::new(ReturnType::Abort)),
            Err(error) => return Err(error),
        };
        let state = self.objects.evds.get_mut(evd)?;
        if let Err(error) = EvdCall::WaitPoll.in_condition(state.condition()) {
            state.wait = None;
            return Err(error);
        }
        let Some(wait) = state.wait else {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdWaiter));
        };
        if let Some(wait) = &mut state.wait {
            wait.first = false;
        }
        let queued = self.events_ready(slot);
        if !self.is_woken(slot, &wait, queued) {
            let _ = self.poll(now);
        }
        let queued = self.events_ready(slot);
        let woken = self.is_woken(slot, &wait, queued);
        let state = self.objects.evds.get_mut(evd)?;
        if woken {
            state.wait = None;
            return match self.take(slot) {
                Some(data) => Ok(Wait::Ready(Event { evd, data }, self.events_ready(slot))),
                // Cannot be: an event was counted. The consumer waits again.
                None => Ok(Wait::TimedOut(0)),
            };
        }
        if now >= wait.deadline {
            state.wait = None;
            return Ok(Wait::TimedOut(queued));
        }
        Ok(Wait::Pending(Wake::by(wait.deadline)))
    }

    /// Gives up a wait; nothing is lost.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE if no wait is open.
    pub fn evd_wait_end(&mut self, evd: EvdHandle) -> DatResult<()> {
        let evd = self.objects.evds.get_mut(evd)?;
        let condition = evd.condition();
        evd.wait = None;
        EvdCall::WaitEnd.in_condition(condition).map(|_| ())
    }

    /// Events that could be dequeued now.
    fn events_ready(&mut self, slot: u16) -> u32 {
        self.look_ahead(slot, LOOK_AHEAD);
        let unfinished = if self.is_dead() { self.unfinished(slot) } else { 0 };
        match self.objects.evds.at(slot) {
            Some(evd) => evd.seen_ready + evd.queue.len() + unfinished,
            None => 0,
        }
    }

    fn is_woken(&self, slot: u16, wait: &WaitState, queued: u32) -> bool {
        let Some(evd) = self.objects.evds.at(slot) else { return false };
        let notified = wait.first || self.is_dead() || evd.seen_notifying > 0 || !evd.queue.is_empty();
        queued >= wait.threshold && notified
    }

    /// When the first of the open waits times out.
    pub(crate) fn first_wait_ends(&self) -> Wake {
        let evds = self.objects.evds.iter().filter_map(|(_, evd)| evd.wait).map(|wait| wait.deadline);
        let cnos = self.objects.cnos.iter().filter_map(|(_, cno)| cno.wait);
        evds.chain(cnos).min().map_or(Wake::Idle, Wake::by)
    }
}
