//! Shared receive queues.

use super::exported::calls;
use crate::args::{bad, get, need, put, segments};
use crate::convert::{count, signed};
use crate::handles::{Kinded, RawHandle};
use crate::layout::{SrqAttr, SrqParam};
use crate::reach::{control, with};
use dat_nostd::{IaHandle, LmrTriplet, PzHandle, SrqAttributes, SrqHandle, Subtype};

calls! {
    /// `dat_srq_create`.
    fn dat_srq_create(
        ia_handle: RawHandle,
        pz_handle: RawHandle,
        srq_attr: *const SrqAttr,
        srq_handle: *mut RawHandle,
    ) {
        need(srq_handle, Subtype::InvalidArg4)?;
        // SAFETY: the caller's.
        let given = unsafe { get(srq_attr, Subtype::InvalidArg3) };
        let srq = with::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            let (given, count) = (given?, |value| count(value, Subtype::InvalidArg3));
            let attributes = SrqAttributes {
                max_recv_dtos: count(given.max_recv_dtos)?,
                max_recv_iov: count(given.max_recv_iov)?,
                low_watermark: count(given.low_watermark)?,
            };
            inner.adapter.srq_create(ia, PzHandle::of(pz_handle), &attributes)
        })?;
        // SAFETY: the caller's.
        unsafe { put(srq_handle, srq.raw()) };
        Ok(())
    }

    /// `dat_srq_free`.
    fn dat_srq_free(srq_handle: RawHandle) {
        control::<N, _, _>(srq_handle, |inner, srq: SrqHandle| inner.adapter.srq_free(srq))
    }

    /// `dat_srq_post_recv`.
    fn dat_srq_post_recv(
        srq_handle: RawHandle,
        num_segments: i32,
        local_iov: *const LmrTriplet,
        user_cookie: u64,
    ) {
        // SAFETY: the caller's.
        let iov = unsafe { segments(local_iov, num_segments.into(), Subtype::InvalidArg2) };
        with::<N, _, _>(srq_handle, |inner, srq: SrqHandle| {
            let Ok(iov) = iov else {
                inner.adapter.srq_query(srq)?;
                return Err(bad(Subtype::InvalidArg2));
            };
            inner.adapter.srq_post_recv(srq, iov, user_cookie)
        })
    }

    /// `dat_srq_query`.
    fn dat_srq_query(srq_handle: RawHandle, mask: u32, srq_param: *mut SrqParam) {
        let found = with::<N, _, _>(srq_handle, |inner, srq: SrqHandle| inner.adapter.srq_query_masked(srq, mask))?;
        need(srq_param, Subtype::InvalidArg3)?;
        let param = SrqParam {
            ia_handle: found.ia.raw(),
            srq_state: found.state as u32,
            pz_handle: found.pz.raw(),
            max_recv_dtos: signed(found.max_recv_dtos),
            max_recv_iov: signed(found.max_recv_iov),
            low_watermark: signed(found.low_watermark),
            available_dto_count: found.available_dto_count,
            outstanding_dto_count: found.outstanding_dto_count,
        };
        // SAFETY: the caller's.
        unsafe { put(srq_param, param) };
        Ok(())
    }

    /// `dat_srq_resize`.
    fn dat_srq_resize(srq_handle: RawHandle, srq_max_recv_dto: i32) {
        control::<N, _, _>(srq_handle, |inner, srq: SrqHandle| {
            inner.adapter.srq_resize(srq, u32::try_from(srq_max_recv_dto).unwrap_or(0))
        })
    }

    /// `dat_srq_set_lw`.
    fn dat_srq_set_lw(srq_handle: RawHandle, low_watermark: i32) {
        control::<N, _, _>(srq_handle, |inner, srq: SrqHandle| {
            inner.adapter.srq_query(srq)?;
            inner.adapter.srq_set_lw(srq, count(low_watermark, Subtype::InvalidArg2)?)
        })
    }
}
