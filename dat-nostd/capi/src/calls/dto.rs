//! Data transfers: the calls that are made often.

use super::exported::exported;
use crate::args::{bad, segments};
use crate::handles::RawHandle;
use crate::node::Inner;
use crate::reach::with;
use dat_nostd::{CompletionFlags, DatResult, EpHandle, LmrTriplet, RmrTriplet, Subtype};

/// INVALID_PARAMETER, unless the handle is bad already.
#[cold]
fn refuse(inner: &Inner, ep: EpHandle, argument: Subtype) -> DatResult<()> {
    inner.adapter.ep_get_status(ep)?;
    Err(bad(argument))
}

/// Posts to an endpoint what `post` posts.
///
/// # Safety
/// `local_iov` is null or `count` segments.
#[inline(always)]
unsafe fn post(
    ep: RawHandle,
    count: i32,
    local_iov: *const LmrTriplet,
    post: impl FnOnce(&mut Inner, EpHandle, &[LmrTriplet]) -> DatResult<()>,
) -> DatResult<()> {
    // SAFETY: this function's contract.
    let iov = unsafe { segments(local_iov, count.into(), Subtype::InvalidArg3) };
    with(ep, |inner, ep: EpHandle| match iov {
        Ok(iov) => post(inner, ep, iov),
        Err(_) if count < 0 => refuse(inner, ep, Subtype::InvalidArg2),
        Err(_) => refuse(inner, ep, Subtype::InvalidArg3),
    })
}

/// The same, of a transfer to or from a peer's memory.
///
/// # Safety
/// As [`post`]; `remote` is null or a triplet.
#[inline(always)]
unsafe fn post_rdma(
    ep: RawHandle,
    count: i32,
    local_iov: *const LmrTriplet,
    remote: *const RmrTriplet,
    post_with: impl FnOnce(&mut Inner, EpHandle, &[LmrTriplet], &RmrTriplet) -> DatResult<()>,
) -> DatResult<()> {
    let call = |inner: &mut Inner, ep, iov: &[LmrTriplet]| {
        if remote.is_null() {
            return refuse(inner, ep, Subtype::InvalidArg5);
        }
        // SAFETY: this function's contract; alignment is not assumed.
        let remote = unsafe { remote.read_unaligned() };
        post_with(inner, ep, iov, &remote)
    };
    // SAFETY: this function's contract.
    unsafe { post(ep, count, local_iov, call) }
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
        let call = |inner: &mut Inner, ep, iov: &[_]| inner.adapter.ep_post_send(ep, iov, user_cookie, flags);
        // SAFETY: the caller's.
        unsafe { post(ep_handle, num_segments, local_iov, call) }
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
        let call = |inner: &mut Inner, ep, iov: &[_]| inner.adapter.ep_post_recv(ep, iov, user_cookie, flags);
        // SAFETY: the caller's.
        unsafe { post(ep_handle, num_segments, local_iov, call) }
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
        let call = |inner: &mut Inner, ep, iov: &[_], remote: &_| {
            inner.adapter.ep_post_rdma_read(ep, iov, user_cookie, remote, flags)
        };
        // SAFETY: the caller's.
        unsafe { post_rdma(ep_handle, num_segments, local_iov, remote_iov, call) }
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
        let call = |inner: &mut Inner, ep, iov: &[_], remote: &_| {
            inner.adapter.ep_post_rdma_write(ep, iov, user_cookie, remote, flags)
        };
        // SAFETY: the caller's.
        unsafe { post_rdma(ep_handle, num_segments, local_iov, remote_iov, call) }
    }
}
