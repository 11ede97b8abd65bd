//! Data transfers: the calls that are made often.

use super::exported::calls;
use crate::args::{aligned, bad, segments};
use crate::handles::RawHandle;
use crate::node::Node;
use crate::reach::with;
use dat_nostd::{CompletionFlags, DatResult, EpHandle, LmrTriplet, RmrTriplet, Subtype};

/// INVALID_PARAMETER, unless the handle is bad already.
#[cold]
fn refuse<N: Node, T>(ep: RawHandle, argument: Subtype) -> DatResult<T> {
    with::<N, _, _>(ep, |inner, ep: EpHandle| inner.adapter.ep_get_status(ep).map(drop))?;
    Err(bad(argument))
}

/// The segments of a post; mostly that is one.
///
/// # Safety
/// `from` is null or `count` segments.
#[inline(always)]
unsafe fn local<'a, N: Node>(
    ep: RawHandle,
    count: i32,
    from: *const LmrTriplet,
) -> DatResult<&'a [LmrTriplet]> {
    if count == 1
        // SAFETY: this function's contract.
        && let Some(one) = unsafe { aligned(from) }
    {
        return Ok(core::slice::from_ref(one));
    }
    // SAFETY: this function's contract.
    unsafe { other_local::<N>(ep, count, from) }
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
unsafe fn remote<'a, N: Node>(ep: RawHandle, from: *const RmrTriplet) -> DatResult<&'a RmrTriplet> {
    // SAFETY: this function's contract.
    match unsafe { aligned(from) } {
        Some(remote) => Ok(remote),
        None => refuse::<N, _>(ep, Subtype::InvalidArg5),
    }
}

/// `dat_ep_post_rdma_write` of none or several segments: apart, so that the registers of the usual call are its own.
#[cold]
#[inline(never)]
fn write_gathered<N: Node>(
    ep: RawHandle,
    iov: &[LmrTriplet],
    user_cookie: u64,
    remote: &RmrTriplet,
    flags: CompletionFlags,
) -> DatResult<()> {
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
        let (iov, remote) =
            unsafe { (local::<N>(ep_handle, num_segments, local_iov)?, remote::<N>(ep_handle, remote_iov)?) };
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
        let (iov, remote) =
            unsafe { (local::<N>(ep_handle, num_segments, local_iov)?, remote::<N>(ep_handle, remote_iov)?) };
        let [segment] = iov else { return write_gathered::<N>(ep_handle, iov, user_cookie, remote, flags) };
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_rdma_write(ep, core::slice::from_ref(segment), user_cookie, remote, flags)
        })
    }
}
