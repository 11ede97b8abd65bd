//! Calls that wait, without the lock.

use crate::handles::{Kinded, RawHandle};
use crate::node::Node;
use crate::reach::{lock_urgently, node_of};
use crate::state::State;
use dat_nostd::{
    CnoHandle, CnoWait, DatResult, DatReturn, EvdHandle, Event, Instant, Platform, ReturnType, Subtype, Wait,
    Wake,
};

/// A signal handler ran while the call waited.
const INTERRUPTED: DatReturn = DatReturn::error(ReturnType::InterruptedCall, Subtype::SubInterrupted);
/// The device has failed, so that nothing comes any more: as all calls say that need it.
const FAILED: DatReturn = DatReturn::new(ReturnType::InternalError);

/// What a wait has come to.
enum Step<R> {
    Over(R),
    Pending(Wake),
}

/// Begins a wait, and polls it until it is over. With the last poll's answer to a signal, and to a device that has failed, for which
/// `end` ends it.
fn wait<N: Node, H: Kinded, W, R>(
    raw: RawHandle,
    begin: impl FnOnce(&mut State<N>, H, Instant) -> DatResult<W>,
    mut step: impl FnMut(&mut State<N>, &mut W, Instant) -> Step<R>,
    end: impl FnOnce(&mut State<N>, W, DatReturn) -> R,
) -> DatResult<R> {
    let node = node_of::<N, H>(raw)?;
    let mut inner = lock_urgently::<N, H>(node)?;
    let now = inner.adapter.platform().now();
    let mut waiter = begin(&mut inner, H::of(raw), now)?;
    loop {
        let now = inner.adapter.platform().now();
        let wake = match step(&mut inner, &mut waiter, now) {
            Step::Over(answer) => return Ok(answer),
            Step::Pending(_) if inner.adapter.is_dead() => return Ok(end(&mut inner, waiter, FAILED)),
            Step::Pending(wake) => wake,
        };
        let interrupted;
        (inner, interrupted) = node.sleep(inner, raw, now, wake)?;
        if interrupted {
            let now = inner.adapter.platform().now();
            return Ok(match step(&mut inner, &mut waiter, now) {
                Step::Over(answer) => answer,
                Step::Pending(_) => end(&mut inner, waiter, INTERRUPTED),
            });
        }
    }
}

/// What `dat_evd_wait` answers: an event or an error, and `nmore` where that is defined.
pub(crate) struct Waited {
    pub(crate) event: DatResult<Event>,
    pub(crate) more: Option<u32>,
}

/// `dat_evd_wait`.
pub(crate) fn evd_wait<N: Node>(raw: RawHandle, timeout_us: u32, threshold: u32) -> DatResult<Waited> {
    wait::<N, _, _, _>(
        raw,
        |inner, evd: EvdHandle, now| inner.adapter.evd_wait_begin(evd, now, timeout_us, threshold),
        |inner, waiter, now| {
            let expired = DatReturn::new(ReturnType::TimeoutExpired);
            match inner.adapter.evd_wait_poll(waiter, now) {
                Ok(Wait::Pending(wake)) => Step::Pending(wake),
                Ok(Wait::Ready(event, more)) => Step::Over(Waited { event: Ok(event), more: Some(more) }),
                Ok(Wait::TimedOut(more)) => Step::Over(Waited { event: Err(expired), more: Some(more) }),
                Err(error) => Step::Over(Waited { event: Err(error), more: None }),
            }
        },
        |inner, waiter, why| {
            let evd = waiter.evd();
            let _ = inner.adapter.evd_wait_end(waiter);
            Waited { event: Err(why), more: Some(queued(inner, evd, threshold)) }
        },
    )
}

/// How many events are queued on an EVD on which a wait for `threshold` of them has not come to an end.
fn queued<N: Node>(inner: &mut State<N>, evd: EvdHandle, threshold: u32) -> u32 {
    let now = inner.adapter.platform().now();
    let Ok(mut waiter) = inner.adapter.evd_wait_begin(evd, now, 0, threshold.saturating_add(1)) else {
        return 0;
    };
    match inner.adapter.evd_wait_poll(&mut waiter, now) {
        Ok(Wait::TimedOut(queued)) => queued,
        _ => 0,
    }
}

/// `dat_cno_wait`: the EVD that triggered, if it still is.
pub(crate) fn cno_wait<N: Node>(raw: RawHandle, timeout_us: u32) -> DatResult<Option<EvdHandle>> {
    wait::<N, _, _, _>(
        raw,
        |inner, cno: CnoHandle, now| inner.adapter.cno_wait_begin(cno, now, timeout_us),
        |inner, waiter, now| match inner.adapter.cno_wait_poll(waiter, now) {
            Ok(CnoWait::Pending(wake)) => Step::Pending(wake),
            Ok(CnoWait::Triggered(evd)) => Step::Over(Ok(evd)),
            Err(error) => Step::Over(Err(error)),
        },
        |inner, waiter, why| {
            let _ = inner.adapter.cno_wait_end(waiter);
            Err(why)
        },
    )?
}
