//! Data transfers: the calls that are made often.

use super::exported::calls;
use crate::args::{aligned, bad, segments};
use crate::handles::RawHandle;
use crate::node::Node;
use crate::reach::with;
use dat_nostd::{CompletionFlags, DatResult, EpHandle, LmrTriplet, RmrTriplet, Subtype};

/// INVALID_PARAMETER, unless the handle is bad already.
#[cold]
pub(super) fn refuse<N: Node, T>(ep: RawHandle, argument: Subtype) -> DatResult<T> {
    with::<N, _, _>(ep, |inner, ep: EpHandle| inner.adapter.ep_get_status(ep).map(drop))?;
    Err(bad(argument))
}

/// The segments of a post; mostly that is one.
///
/// # Safety
/// `from` is null or `count` segments.
#[inline(always)]
pub(super) unsafe fn local<'a, N: Node>(
    ep: RawHandle,
    count: i32,
    from: *const LmrTriplet,
) -> DatResult<&'a [LmrTriplet]> {
    // SAFETY: this function's contract.
    match unsafe { one(count, from) } {
        Some(one) => Ok(core::slice::from_ref(one)),
        // SAFETY: this function's contract.
        None => unsafe { other_local::<N>(ep, count, from) },
    }
}

/// The only segment, if there is one.
///
/// # Safety
/// As [`local`].
#[inline(always)]
unsafe fn one<'a>(count: i32, from: *const LmrTriplet) -> Option<&'a LmrTriplet> {
    // SAFETY: this function's contract.
    if count == 1 { unsafe { aligned(from) } } else { None }
}

/// Any number of segments.
///
/// # Safety
/// As [`local`].
#[cold]
#[inline(never)]
unsafe fn other_local<'a, N: Node>(
    ep: RawHandle,
    count: i32,
    from: *const LmrTriplet,
) -> DatResult<&'a [LmrTriplet]> {
    // SAFETY: this function's contract.
    match unsafe { segments(from, count.into(), Subtype::InvalidArg3) } {
        Err(_) if count < 0 => refuse::<N, _>(ep, Subtype::InvalidArg2),
        Err(_) => refuse::<N, _>(ep, Subtype::InvalidArg3),
        iov => iov,
    }
}

/// Memory of a peer's.
///
/// # Safety
/// `from` is null or a triplet.
#[inline(always)]
pub(super) unsafe fn remote<'a, N: Node>(
    ep: RawHandle,
    from: *const RmrTriplet,
    argument: Subtype,
) -> DatResult<&'a RmrTriplet> {
    // SAFETY: this function's contract.
    match unsafe { aligned(from) } {
        Some(remote) => Ok(remote),
        None => refuse::<N, _>(ep, argument),
    }
}

/// `dat_ep_post_rdma_write` of none or several segments, or with wrong pointers: apart, so that the usual call has the registers for itself.
///
/// # Safety
/// That of the call.
#[cold]
#[inline(never)]
unsafe fn write_examined<N: Node>(
    ep: RawHandle,
    count: i32,
    from: *const LmrTriplet,
    user_cookie: u64,
    to: *const RmrTriplet,
    flags: CompletionFlags,
) -> DatResult<()> {
    // SAFETY: this function's contract.
    let (iov, remote) = unsafe { (local::<N>(ep, count, from)?, remote::<N>(ep, to, Subtype::InvalidArg5)?) };
    with::<N, _, _>(ep, |inner, ep: EpHandle| {
        inner.adapter.ep_post_rdma_write(ep, iov, user_cookie, remote, flags)
    })
}

calls! {
    /// `dat_ep_post_send`.
    fn dat_ep_post_send(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let iov = unsafe { local::<N>(ep_handle, num_segments, local_iov) }?;
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_post_send(ep, iov, user_cookie, flags))
    }

    /// `dat_ep_post_recv`.
    fn dat_ep_post_recv(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let iov = unsafe { local::<N>(ep_handle, num_segments, local_iov) }?;
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_post_recv(ep, iov, user_cookie, flags))
    }

    /// `dat_ep_post_rdma_read`.
    fn dat_ep_post_rdma_read(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let (iov, remote) = unsafe {
            let iov = local::<N>(ep_handle, num_segments, local_iov)?;
            (iov, remote::<N>(ep_handle, remote_iov, Subtype::InvalidArg5)?)
        };
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_rdma_read(ep, iov, user_cookie, remote, flags)
        })
    }

    /// `dat_ep_post_rdma_write`.
    fn dat_ep_post_rdma_write(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let usual = unsafe { (one(num_segments, local_iov), aligned(remote_iov)) };
        let (Some(segment), Some(remote)) = usual else {
            // SAFETY: the caller's.
            return unsafe {
                write_examined::<N>(ep_handle, num_segments, local_iov, user_cookie, remote_iov, flags)
            };
        };
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_rdma_write(ep, core::slice::from_ref(segment), user_cookie, remote, flags)
        })
    }
}
