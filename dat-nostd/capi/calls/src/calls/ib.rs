//! Transfers of `<dat/dat_ib_extensions.h>`.

use super::dto::{local, refuse, remote};
use super::exported::calls;
use crate::args::aligned;
use crate::handles::RawHandle;
use crate::node::Node;
use crate::reach::with;
use dat_nostd::{CompletionFlags, DatResult, EpHandle, LmrTriplet, RmrTriplet, Subtype};

/// The buffer of an atomic operation.
///
/// # Safety
/// `from` is null or a triplet.
unsafe fn result<'a, N: Node>(
    ep: RawHandle,
    from: *const LmrTriplet,
    argument: Subtype,
) -> DatResult<&'a LmrTriplet> {
    // SAFETY: this function's contract.
    unsafe { aligned(from) }.map_or_else(|| refuse::<N, _>(ep, argument), Ok)
}

calls! {
    /// `dat_ib_post_rdma_write_immed`.
    fn dat_ib_post_rdma_write_immed(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        immediate: u32,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: this module's contract.
        let (iov, remote) = unsafe {
            let iov = local::<N>(ep_handle, num_segments, local_iov)?;
            (iov, remote::<N>(ep_handle, remote_iov, Subtype::InvalidArg5)?)
        };
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_rdma_write_immediate(ep, iov, user_cookie, remote, immediate, flags)
        })
    }

    /// `dat_ib_post_cmp_and_swap`.
    fn dat_ib_post_cmp_and_swap(
        ep_handle: RawHandle,
        compare: u64,
        swap: u64,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: this module's contract.
        let (local, remote) = unsafe {
            let local = result::<N>(ep_handle, local_iov, Subtype::InvalidArg4)?;
            (local, remote::<N>(ep_handle, remote_iov, Subtype::InvalidArg6)?)
        };
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_compare_swap(ep, local, user_cookie, remote, compare, swap, flags)
        })
    }

    /// `dat_ib_post_fetch_and_add`.
    fn dat_ib_post_fetch_and_add(
        ep_handle: RawHandle,
        add: u64,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        remote_iov: *const RmrTriplet,
        completion_flags: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: this module's contract.
        let (local, remote) = unsafe {
            let local = result::<N>(ep_handle, local_iov, Subtype::InvalidArg3)?;
            (local, remote::<N>(ep_handle, remote_iov, Subtype::InvalidArg5)?)
        };
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_post_fetch_add(ep, local, user_cookie, remote, add, flags)
        })
    }

    /// `dat_ep_post_send_with_invalidate`.
    fn dat_ep_post_send_with_invalidate(
        ep_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
        completion_flags: u32,
        invalidate: u32,
        rmr_context: u32,
    ) {
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        // SAFETY: this module's contract.
        let iov = unsafe { local::<N>(ep_handle, num_segments, local_iov) }?;
        with::<N, _, _>(ep_handle, |inner, ep: EpHandle| match invalidate {
            0 => inner.adapter.ep_post_send(ep, iov, user_cookie, flags),
            _ => inner.adapter.ep_post_send_invalidate(ep, iov, user_cookie, rmr_context, flags),
        })
    }
}
