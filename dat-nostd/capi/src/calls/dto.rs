//! Data transfers: the calls that are made often.

use super::exported::exported;
use crate::args::{aligned, bad, segments};
use crate::handles::RawHandle;
use crate::reach::with;
use dat_nostd::{CompletionFlags, DatResult, EpHandle, LmrTriplet, RmrTriplet, Subtype};

/// INVALID_PARAMETER, unless the handle is bad already.
#[cold]
fn refuse<T>(ep: RawHandle, argument: Subtype) -> DatResult<T> {
    with(ep, |inner, ep: EpHandle| inner.adapter.ep_get_status(ep).map(drop))?;
    Err(bad(argument))
}

/// The segments of a post; mostly that is one.
///
/// # Safety
/// `from` is null or `count` segments.
#[inline(always)]
unsafe fn local<'a>(ep: RawHandle, count: i32, from: *const LmrTriplet) -> DatResult<&'a [LmrTriplet]> {
    if count == 1
        // SAFETY: this function's contract.
        && let Some(one) = unsafe { aligned(from) }
    {
        return Ok(std::slice::from_ref(one));
    }
    // SAFETY: this function's contract.
    unsafe { other_local(ep, count, from) }
}

/// Any number of segments.
///
/// # Safety
/// As [`local`].
#[cold]
#[inline(never)]
unsafe fn other_local<'a>(ep: RawHandle, count: i32, from: *const LmrTriplet) -> DatResult<&'a [LmrTriplet]> {
    // SAFETY: this function's contract.
    match unsafe { segments(from, count.into(), Subtype::InvalidArg3) } {
        Err(_) if count < 0 => refuse(ep, Subtype::InvalidArg2),
        Err(_) => refuse(ep, Subtype::InvalidArg3),
        iov => iov,
    }
}

/// Memory of a peer's.
///
/// # Safety
/// `from` is null or a triplet.
#[inline(always)]
unsafe fn remote<'a>(ep: RawHandle, from: *const RmrTriplet) -> DatResult<&'a RmrTriplet> {
    // SAFETY: this function's contract.
    match unsafe { aligned(from) } {
        Some(remote) => Ok(remote),
        None => refuse(ep, Subtype::InvalidArg5),
    }
}

exported! {
    /// `dat_ep_post_send`.
    quick fn dat_ep_post_send(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        completion_flags: u32,
    ) as ep_post_send_func {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let iov = unsafe { local(ep_handle, num_segments, local_iov) }?;
        with(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_post_send(ep, iov, user_cookie, flags))
    }

    /// `dat_ep_post_recv`.
    quick fn dat_ep_post_recv(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        completion_flags: u32,
    ) as ep_post_recv_func {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let iov = unsafe { local(ep_handle, num_segments, local_iov) }?;
        with(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_post_recv(ep, iov, user_cookie, flags))
    }

    /// `dat_ep_post_rdma_read`.
    quick fn dat_ep_post_rdma_read(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        completion_flags: u32,
    ) as ep_post_rdma_read_func {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let (iov, remote) =
            unsafe { (local(ep_handle, num_segments, local_iov)?, remote(ep_handle, remote_iov)?) };
        with(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_rdma_read(ep, iov, user_cookie, remote, flags)
        })
    }

    /// `dat_ep_post_rdma_write`.
    quick fn dat_ep_post_rdma_write(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        completion_flags: u32,
    ) as ep_post_rdma_write_func {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: the caller's.
        let (iov, remote) =
            unsafe { (local(ep_handle, num_segments, local_iov)?, remote(ep_handle, remote_iov)?) };
        with(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_rdma_write(ep, iov, user_cookie, remote, flags)
        })
    }
}
