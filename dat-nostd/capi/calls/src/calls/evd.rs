//! Event dispatchers.

use super::exported::calls;
use crate::args::{bad, get, need, put};
use crate::convert::{self, TakenEvent, signed};
use crate::handles::{Kinded, RawHandle};
use crate::layout::{EvdParam, Event, IbEvent};
use crate::node::{Node, Sleep};
use crate::reach::{control, lock, node_of, with};
use crate::waits::{EvdWait, Turn, WaitCall, Waited, sleep_through};
use dat_nostd::{CnoHandle, DatResult, EvdFlags, EvdHandle, EventData, EventNumber, IaHandle, Subtype};

/// Takes an event of any kind.
///
/// # Safety
/// `event` may be written.
#[cold]
#[inline(never)]
unsafe fn dequeue_other<N: Node, E: TakenEvent>(
    node: &N,
    mut inner: N::Guard<'_>,
    taken: DatResult<dat_nostd::Event>,
    event: *mut E,
) -> DatResult<()> {
    match taken {
        Ok(taken) => {
            let taken = E::of(&taken, &mut *inner);
            // SAFETY: this function's contract.
            unsafe { put(event, taken) };
            Ok(())
        }
        Err(error) => {
            drop(inner);
            node.make_way();
            Err(error)
        }
    }
}

/// The arguments of `dat_evd_wait` and `dat_ib_evd_wait`.
#[derive(Clone, Copy)]
pub struct EvdWaitCall<E> {
    evd_handle: RawHandle,
    timeout: u32,
    threshold: i32,
    event: *mut E,
    nmore: *mut i32,
}

/// A wait for an event, not yet made.
pub fn evd_wait_call<E>(
    evd_handle: RawHandle,
    timeout: u32,
    threshold: i32,
    event: *mut E,
    nmore: *mut i32,
) -> EvdWaitCall<E> {
    EvdWaitCall { evd_handle, timeout, threshold, event, nmore }
}

impl<N: Node, E: TakenEvent> WaitCall<N> for EvdWaitCall<E> {
    type Wait = EvdWait;

    unsafe fn begin(&self) -> DatResult<Turn<N, EvdWait>> {
        need(self.event, Subtype::InvalidArg4)?;
        need(self.nmore, Subtype::InvalidArg5)?;
        // A negative threshold is none, which the adapter refuses, behind the handle.
        let threshold = u32::try_from(self.threshold).unwrap_or(0);
        EvdWait::begin(self.evd_handle, self.timeout, threshold)
    }

    unsafe fn finish(&self, waited: Waited) -> DatResult<()> {
        if let Some(more) = waited.more {
            // SAFETY: this function's contract.
            unsafe { put(self.nmore, signed(more)) };
        }
        let taken = waited.event?;
        let node = node_of::<N, EvdHandle>(self.evd_handle)?;
        let taken = E::of(&taken, &mut *lock::<N, EvdHandle>(node)?);
        // SAFETY: this function's contract.
        unsafe { put(self.event, taken) };
        Ok(())
    }
}

/// `dat_evd_wait`, where threads sleep within it.
///
/// # Errors
/// The call's errors in the specification.
pub unsafe fn dat_evd_wait<N: Sleep>(
    evd_handle: RawHandle,
    timeout: u32,
    threshold: i32,
    event: *mut Event,
    nmore: *mut i32,
) -> DatResult<()> {
    // SAFETY: the caller's.
    unsafe { sleep_through::<N, _>(&evd_wait_call(evd_handle, timeout, threshold, event, nmore)) }
}

/// `dat_ib_evd_wait`, where threads sleep within it.
///
/// # Errors
/// Errors of `dat_evd_wait`.
pub unsafe fn dat_ib_evd_wait<N: Sleep>(
    evd_handle: RawHandle,
    timeout: u32,
    threshold: i32,
    event: *mut IbEvent,
    nmore: *mut i32,
) -> DatResult<()> {
    // SAFETY: this module's contract.
    unsafe { sleep_through::<N, _>(&evd_wait_call(evd_handle, timeout, threshold, event, nmore)) }
}

calls! {
    /// `dat_evd_create`.
    fn dat_evd_create(
        ia_handle: RawHandle,
        evd_min_qlen: i32,
        cno_handle: RawHandle,
        evd_flags: u32,
        evd_handle: *mut RawHandle,
    ) {
        need(evd_handle, Subtype::InvalidArg5)?;
        let evd = with::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            // A negative length is none, which the adapter refuses, behind the handles.
            let qlen = u32::try_from(evd_min_qlen).unwrap_or(0);
            let flags = EvdFlags::from_bits_retain(evd_flags);
            inner.adapter.evd_create(ia, qlen, CnoHandle::given(cno_handle), flags)
        })?;
        // SAFETY: the caller's.
        unsafe { put(evd_handle, evd.raw()) };
        Ok(())
    }

    /// `dat_evd_query`.
    fn dat_evd_query(evd_handle: RawHandle, mask: u32, evd_param: *mut EvdParam) {
        let found = with::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_query_masked(evd, mask))?;
        need(evd_param, Subtype::InvalidArg3)?;
        let param = EvdParam {
            ia_handle: found.ia.raw(),
            evd_qlen: signed(found.evd_qlen),
            evd_state: found.evd_state.bits(),
            cno_handle: Kinded::raw_or_null(found.cno),
            evd_flags: found.evd_flags.bits(),
        };
        // SAFETY: the caller's.
        unsafe { put(evd_param, param) };
        Ok(())
    }

    /// `dat_evd_modify_cno`.
    fn dat_evd_modify_cno(evd_handle: RawHandle, cno_handle: RawHandle) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_modify_cno(evd, CnoHandle::given(cno_handle)))
    }

    /// `dat_evd_enable`.
    fn dat_evd_enable(evd_handle: RawHandle) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_enable(evd))
    }

    /// `dat_evd_disable`.
    fn dat_evd_disable(evd_handle: RawHandle) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_disable(evd))
    }

    /// `dat_evd_set_unwaitable`.
    fn dat_evd_set_unwaitable(evd_handle: RawHandle) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_set_unwaitable(evd))
    }

    /// `dat_evd_clear_unwaitable`.
    fn dat_evd_clear_unwaitable(evd_handle: RawHandle) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_clear_unwaitable(evd))
    }

    /// `dat_evd_resize`.
    fn dat_evd_resize(evd_handle: RawHandle, evd_min_qlen: i32) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| {
            inner.adapter.evd_resize(evd, u32::try_from(evd_min_qlen).unwrap_or(0))
        })
    }

    /// `dat_evd_post_se`.
    fn dat_evd_post_se(evd_handle: RawHandle, event: *const Event) {
        // SAFETY: the caller's.
        let event = unsafe { get(event, Subtype::InvalidArg2) };
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| {
            // The handle is looked at before the event.
            inner.adapter.evd_query(evd)?;
            let event = event?;
            if event.event_number != EventNumber::Software as u32 {
                return Err(bad(Subtype::InvalidArg2));
            }
            inner.adapter.evd_post_se(evd, event.data.first)
        })
    }

    /// `dat_evd_dequeue`.
    fn dat_evd_dequeue(evd_handle: RawHandle, event: *mut Event) {
        need(event, Subtype::InvalidArg2)?;
        let node = node_of::<N, EvdHandle>(evd_handle)?;
        let evd = EvdHandle::of(evd_handle);
        let mut inner = lock::<N, EvdHandle>(node)?;
        let put_completion = |taken: DatResult<dat_nostd::Event>| match &taken {
            Ok(dat_nostd::Event { data: EventData::Dto(done), .. }) => {
                // SAFETY: the caller's.
                unsafe { put(event, convert::completion(evd, done)) };
                None
            }
            _ => Some(taken),
        };
        match inner.adapter.evd_dequeue_with(evd, put_completion) {
            None => Ok(()),
            // SAFETY: the caller's.
            Some(taken) => unsafe { dequeue_other(node, inner, taken, event) },
        }
    }

    /// `dat_ib_evd_dequeue`: the event with its extension data.
    fn dat_ib_evd_dequeue(evd_handle: RawHandle, event: *mut IbEvent) {
        need(event, Subtype::InvalidArg2)?;
        let node = node_of::<N, EvdHandle>(evd_handle)?;
        let mut inner = lock::<N, EvdHandle>(node)?;
        let taken = inner.adapter.evd_dequeue(EvdHandle::of(evd_handle));
        // SAFETY: this module's contract; `event` is not null.
        unsafe { dequeue_other(node, inner, taken, event) }
    }

    /// `dat_evd_free`.
    fn dat_evd_free(evd_handle: RawHandle) {
        control::<N, _, _>(evd_handle, |inner, evd: EvdHandle| inner.adapter.evd_free(evd))
    }
}
