//! Calls that wait, without the lock.
//!
//! A wait is turned on until it is over: each turn looks at the object, and between two turns the
//! thread sleeps. Where it sleeps is the library's choice: within the call ([`sleep_through`]), or
//! after the call has returned to where C called it.

use crate::handles::{Kinded, RawHandle};
use crate::node::{Node, Sleep};
use crate::reach::{lock_urgently, node_of};
use crate::state::State;
use dat_nostd::{
    CnoHandle, CnoWait, CnoWaiter, DatResult, DatReturn, EvdHandle, EvdWaiter, Event, Instant, ReturnType,
    Subtype, Wait as EvdWaitState, Wake,
};

/// A signal handler ran while the call waited.
const INTERRUPTED: DatReturn = DatReturn::error(ReturnType::InterruptedCall, Subtype::SubInterrupted);
/// The device has failed, so that nothing comes any more: as all calls say that need it.
const FAILED: DatReturn = DatReturn::new(ReturnType::InternalError);

/// Result of one look at a wait's object.
pub enum Look<R> {
    /// The wait is over.
    Over(R),
    /// The wait goes on; the next look is due at this time, or when the object is ready.
    Pending(Wake),
}

/// A wait that has begun.
pub trait Wait<N: Node>: Sized {
    /// Result of the wait.
    type Answer;
    /// Returns the object that the wait is for.
    fn object(&self) -> RawHandle;
    /// Checks whether the wait is over.
    fn look(&mut self, state: &mut State<N>, now: Instant) -> Look<Self::Answer>;
    /// Gives the wait up. Nothing is lost: the object can be waited for again.
    fn end(self, state: &mut State<N>, why: DatReturn) -> Self::Answer;
}

/// Result of one turn of a wait.
pub enum Turn<N: Node, W: Wait<N>> {
    /// The wait is over.
    Over(W::Answer),
    /// The thread has to sleep before the next turn.
    Pause(Pause<N, W>),
}

/// A wait whose thread is about to sleep, without the lock.
pub struct Pause<N: Node, W> {
    /// Where its object is.
    pub node: &'static N,
    /// The lock.
    pub guard: N::Guard<'static>,
    /// The wait.
    pub wait: W,
    /// The time of the turn.
    pub now: Instant,
    /// When the next turn is due, if the object is not ready before.
    pub wake: Wake,
}

/// A call that waits, with the arguments that C gave.
pub trait WaitCall<N: Node>: Copy {
    /// Its wait.
    type Wait: Wait<N>;
    /// Begins the wait and makes its first turn.
    ///
    /// # Errors
    /// The call's errors in the specification.
    ///
    /// # Safety
    /// As [`WaitCall::finish`].
    unsafe fn begin(&self) -> DatResult<Turn<N, Self::Wait>>;
    /// Stores what the wait has come to.
    ///
    /// # Errors
    /// The call's errors in the specification.
    ///
    /// # Safety
    /// The arguments' pointers are as the header says.
    unsafe fn finish(&self, answer: <Self::Wait as Wait<N>>::Answer) -> DatResult<()>;
}

/// Begins a wait, and makes its first turn.
pub(crate) fn begin<N: Node, H: Kinded, W: Wait<N>>(
    raw: RawHandle,
    begin: impl FnOnce(&mut State<N>, H, Instant) -> DatResult<W>,
) -> DatResult<Turn<N, W>> {
    let node = node_of::<N, H>(raw)?;
    let mut guard = lock_urgently::<N, H>(node)?;
    let now = guard.adapter.now();
    let wait = begin(&mut guard, H::of(raw), now)?;
    Ok(Turn::new(node, guard, wait, false))
}

impl<N: Node, W: Wait<N>> Turn<N, W> {
    /// Looks whether a wait is over. A signal handler that has run while the thread slept ends it,
    /// and so does a device that has failed.
    pub fn new(node: &'static N, mut guard: N::Guard<'static>, mut wait: W, interrupted: bool) -> Self {
        let now = guard.adapter.now();
        match wait.look(&mut guard, now) {
            Look::Over(answer) => Self::Over(answer),
            Look::Pending(_) if interrupted => Self::Over(wait.end(&mut guard, INTERRUPTED)),
            Look::Pending(_) if guard.adapter.is_dead() => Self::Over(wait.end(&mut guard, FAILED)),
            Look::Pending(wake) => Self::Pause(Pause { node, guard, wait, now, wake }),
        }
    }
}

/// Makes a call that waits, and sleeps within it.
///
/// # Safety
/// As [`WaitCall::finish`].
pub(crate) unsafe fn sleep_through<N: Sleep, C: WaitCall<N>>(call: &C) -> DatResult<()> {
    // SAFETY: this function's contract.
    let mut turn = unsafe { call.begin() }?;
    loop {
        match turn {
            // SAFETY: this function's contract.
            Turn::Over(answer) => return unsafe { call.finish(answer) },
            Turn::Pause(Pause { node, guard, wait, now, wake }) => {
                let guard = node.sleep(guard, wait.object(), now, wake)?;
                turn = Turn::new(node, guard, wait, false);
            }
        }
    }
}

/// What `dat_evd_wait` answers: an event or an error, and `nmore` where that is defined.
pub struct Waited {
    pub(crate) event: DatResult<Event>,
    pub(crate) more: Option<u32>,
}

/// `dat_evd_wait`, begun.
pub struct EvdWait {
    waiter: EvdWaiter<'static>,
    threshold: u32,
}

impl EvdWait {
    pub(crate) fn begin<N: Node>(
        raw: RawHandle,
        timeout_us: u32,
        threshold: u32,
    ) -> DatResult<Turn<N, Self>> {
        begin(raw, |state: &mut State<N>, evd: EvdHandle, now| {
            let waiter = state.adapter.evd_wait_begin(evd, now, timeout_us, threshold)?;
            Ok(Self { waiter, threshold })
        })
    }
}

impl<N: Node> Wait<N> for EvdWait {
    type Answer = Waited;

    fn object(&self) -> RawHandle {
        self.waiter.evd().raw()
    }

    fn look(&mut self, state: &mut State<N>, now: Instant) -> Look<Waited> {
        let expired = DatReturn::new(ReturnType::TimeoutExpired);
        match state.adapter.evd_wait_poll(&mut self.waiter, now) {
            Ok(EvdWaitState::Pending(wake)) => Look::Pending(wake),
            Ok(EvdWaitState::Ready(event, more)) => Look::Over(Waited { event: Ok(event), more: Some(more) }),
            Ok(EvdWaitState::TimedOut(more)) => Look::Over(Waited { event: Err(expired), more: Some(more) }),
            Err(error) => Look::Over(Waited { event: Err(error), more: None }),
        }
    }

    fn end(self, state: &mut State<N>, why: DatReturn) -> Waited {
        let evd = self.waiter.evd();
        let _ = state.adapter.evd_wait_end(self.waiter);
        Waited { event: Err(why), more: Some(queued(state, evd, self.threshold)) }
    }
}

/// How many events are queued on an EVD on which a wait for `threshold` of them has not come to an end.
fn queued<N: Node>(inner: &mut State<N>, evd: EvdHandle, threshold: u32) -> u32 {
    let now = inner.adapter.now();
    let Ok(mut waiter) = inner.adapter.evd_wait_begin(evd, now, 0, threshold.saturating_add(1)) else {
        return 0;
    };
    match inner.adapter.evd_wait_poll(&mut waiter, now) {
        Ok(EvdWaitState::TimedOut(queued)) => queued,
        _ => 0,
    }
}

/// `dat_cno_wait`, begun.
pub struct CnoWaitBegun {
    waiter: CnoWaiter<'static>,
}

impl CnoWaitBegun {
    pub(crate) fn begin<N: Node>(raw: RawHandle, timeout_us: u32) -> DatResult<Turn<N, Self>> {
        begin(raw, |state: &mut State<N>, cno: CnoHandle, now| {
            Ok(Self { waiter: state.adapter.cno_wait_begin(cno, now, timeout_us)? })
        })
    }
}

impl<N: Node> Wait<N> for CnoWaitBegun {
    /// The EVD that triggered, if it still is.
    type Answer = DatResult<Option<EvdHandle>>;

    fn object(&self) -> RawHandle {
        self.waiter.cno().raw()
    }

    fn look(&mut self, state: &mut State<N>, now: Instant) -> Look<Self::Answer> {
        match state.adapter.cno_wait_poll(&mut self.waiter, now) {
            Ok(CnoWait::Pending(wake)) => Look::Pending(wake),
            Ok(CnoWait::Triggered(evd)) => Look::Over(Ok(evd)),
            Err(error) => Look::Over(Err(error)),
        }
    }

    fn end(self, state: &mut State<N>, why: DatReturn) -> Self::Answer {
        let _ = state.adapter.cno_wait_end(self.waiter);
        Err(why)
    }
}
