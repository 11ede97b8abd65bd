//! Waits on event dispatchers: `dat_evd_wait` as begin, poll and end, and a loop around them for simple programs. DAT 1.2, event
//! management.

use driver_mlx::{Duration, Instant, Platform, Wake};

use crate::adapter::Adapter;
use crate::base::event::Event;
use crate::base::handle::EvdHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::states::EvdCall;
use crate::base::types::deadline_of;
use crate::evd::Notification;
use crate::evd::delivery::Ready;
use crate::evd::waiter::{EvdWaiter, Wait};

const NO_WAIT: DatReturn = DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdWaiter);

impl<'s, P: Platform> Adapter<'s, P> {
    /// Waits for the next event of an EVD, for programs that have nothing else to do: polls the adapter, calls agents, and idles on the
    /// platform until something happens or `timeout` has passed.
    ///
    /// # Errors
    /// TIMEOUT_EXPIRED; those of [`Adapter::evd_dequeue`].
    pub fn wait(&mut self, evd: EvdHandle, timeout: Duration) -> DatResult<Event> {
        let end = self.device().now() + timeout;
        loop {
            let now = self.device().now();
            let _ = self.poll(now);
            self.deliver_upcalls();
            match self.evd_dequeue(evd) {
                Err(error) if error.is(ReturnType::QueueEmpty) => {}
                result => return result,
            }
            if now >= end {
                return Err(DatReturn::new(ReturnType::TimeoutExpired));
            }
            if let Some(deadline) = self.rest(now) {
                self.idle(deadline.min(end));
            }
        }
    }

    /// Begins `dat_evd_wait`. While the waiter lives, other waits and dequeues on the EVD are INVALID_STATE.
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
    ) -> DatResult<EvdWaiter<'s>> {
        let state = self.objects_mut().evds_mut().settled(evd)?;
        if threshold == 0 || threshold > state.qlen() {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg3));
        }
        EvdCall::WaitBegin.in_condition(state.condition())?;
        let one_by_one = match state.notification {
            Notification::Unsignalled => Subtype::InvalidStateEvdConfigNotify,
            _ => Subtype::InvalidStateEvdConfigSolicited,
        };
        if threshold != 1 && state.notification != Notification::Threshold {
            return Err(DatReturn::error(ReturnType::InvalidState, one_by_one));
        }
        let deadline = deadline_of(now, timeout_us);
        self.objects_mut().evds_mut().begin_wait(evd, deadline, threshold).ok_or(NO_WAIT)
    }

    /// Whether the wait is over; it has ended when this answers anything but `Pending`.
    ///
    /// # Errors
    /// INVALID_HANDLE if the EVD is another adapter's; ABORT if it went away under the wait; INVALID_STATE if it was made unwaitable,
    /// or the wait has ended.
    pub fn evd_wait_poll(&mut self, waiter: &mut EvdWaiter<'s>, now: Instant) -> DatResult<Wait> {
        let evd = waiter.evd();
        if self.objects().table().is_past(evd) {
            return Err(DatReturn::new(ReturnType::Abort));
        }
        let slot = self.objects().table().check(evd)?;
        let state = self.objects_mut().get_mut(evd)?;
        let allowed = EvdCall::WaitPoll.in_condition(state.condition());
        let Some(wait) = state.wait.filter(|_| waiter.token().is_open()) else {
            return Err(allowed.err().unwrap_or(NO_WAIT));
        };
        if let Some(wait) = &mut state.wait {
            wait.first = false;
        }
        let (mut queued, mut is_woken) = (0, false);
        if allowed.is_ok() {
            (queued, is_woken) = self.dispatchers().look_for(slot, &wait);
            if !is_woken {
                let _ = self.poll(now);
                (queued, is_woken) = self.dispatchers().look_for(slot, &wait);
            }
            if !is_woken && now < wait.deadline {
                return Ok(Wait::Pending(Wake::by(wait.deadline)));
            }
        }
        waiter.token().end();
        self.objects_mut().evds_mut().end_wait(slot);
        allowed?;
        match is_woken.then(|| self.dispatchers().take(slot)).flatten() {
            Some(data) => Ok(Wait::Ready(Event { evd, data }, self.dispatchers().events_ready(slot))),
            None => Ok(Wait::TimedOut(queued)),
        }
    }

    /// Gives up a wait; nothing is lost. So does dropping the waiter.
    ///
    /// # Errors
    /// INVALID_HANDLE if the EVD is gone; INVALID_STATE if the wait has ended.
    pub fn evd_wait_end(&mut self, mut waiter: EvdWaiter<'s>) -> DatResult<()> {
        let slot = self.objects().table().check(waiter.evd())?;
        let condition = self.objects().get(waiter.evd())?.condition();
        let ended = EvdCall::WaitEnd.in_condition(condition).map(|_| ());
        if !waiter.token().is_open() {
            return Err(ended.err().unwrap_or(NO_WAIT));
        }
        self.objects_mut().evds_mut().end_wait(slot);
        ended
    }

    /// What became ready since it was last asked, the oldest first: EVDs with new events or whose wait is over, CNOs that triggered or
    /// on which a wait is over. Each is named once however much happened there; what was taken meanwhile is named too. A consumer with
    /// many EVDs asks this after [`Adapter::poll`], so that it need not look at all.
    pub fn next_ready(&mut self) -> Option<Ready> {
        self.delivery().next_ready()
    }
}
