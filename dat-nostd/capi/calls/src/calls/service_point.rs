//! Public and reserved service points.

use super::exported::calls;
use crate::args::{need, put};
use crate::convert::psp_flags;
use crate::handles::{Kinded, RawHandle};
use crate::layout::{PspParam, RspParam};
use crate::reach::{control, with};
use dat_nostd::{EpHandle, EvdHandle, IaHandle, PspHandle, RspHandle, Subtype};

calls! {
    /// `dat_psp_create`.
    fn dat_psp_create(
        ia_handle: RawHandle,
        conn_qual: u64,
        evd_handle: RawHandle,
        flags: u32,
        psp_handle: *mut RawHandle,
    ) {
        need(psp_handle, Subtype::InvalidArg5)?;
        let psp = control::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            inner.adapter.psp_create(ia, conn_qual, EvdHandle::of(evd_handle), psp_flags(flags)?)
        })?;
        // SAFETY: the caller's.
        unsafe { put(psp_handle, psp.raw()) };
        Ok(())
    }

    /// `dat_psp_create_any`.
    fn dat_psp_create_any(
        ia_handle: RawHandle,
        conn_qual: *mut u64,
        evd_handle: RawHandle,
        flags: u32,
        psp_handle: *mut RawHandle,
    ) {
        need(conn_qual, Subtype::InvalidArg2)?;
        need(psp_handle, Subtype::InvalidArg5)?;
        let (qualifier, psp) = control::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            inner.adapter.psp_create_any(ia, EvdHandle::of(evd_handle), psp_flags(flags)?)
        })?;
        // SAFETY: the caller's.
        unsafe {
            put(conn_qual, qualifier);
            put(psp_handle, psp.raw());
        }
        Ok(())
    }

    /// `dat_psp_query`.
    fn dat_psp_query(psp_handle: RawHandle, mask: u32, psp_param: *mut PspParam) {
        let found = with::<N, _, _>(psp_handle, |inner, psp: PspHandle| inner.adapter.psp_query_masked(psp, mask))?;
        need(psp_param, Subtype::InvalidArg3)?;
        let param = PspParam {
            ia_handle: found.ia.raw(),
            conn_qual: found.conn_qual,
            evd_handle: found.evd.raw(),
            psp_flags: found.psp_flags as u32,
        };
        // SAFETY: the caller's.
        unsafe { put(psp_param, param) };
        Ok(())
    }

    /// `dat_psp_free`.
    fn dat_psp_free(psp_handle: RawHandle) {
        control::<N, _, _>(psp_handle, |inner, psp: PspHandle| inner.adapter.psp_free(psp))
    }

    /// `dat_rsp_create`.
    fn dat_rsp_create(
        ia_handle: RawHandle,
        conn_qual: u64,
        ep_handle: RawHandle,
        evd_handle: RawHandle,
        rsp_handle: *mut RawHandle,
    ) {
        need(rsp_handle, Subtype::InvalidArg5)?;
        let rsp = control::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            inner.adapter.rsp_create(ia, conn_qual, EpHandle::given(ep_handle), EvdHandle::of(evd_handle))
        })?;
        // SAFETY: the caller's.
        unsafe { put(rsp_handle, rsp.raw()) };
        Ok(())
    }

    /// `dat_rsp_query`.
    fn dat_rsp_query(rsp_handle: RawHandle, mask: u32, rsp_param: *mut RspParam) {
        let found = with::<N, _, _>(rsp_handle, |inner, rsp: RspHandle| inner.adapter.rsp_query_masked(rsp, mask))?;
        need(rsp_param, Subtype::InvalidArg3)?;
        let param = RspParam {
            ia_handle: found.ia.raw(),
            conn_qual: found.conn_qual,
            evd_handle: found.evd.raw(),
            ep_handle: Kinded::raw_or_null(found.ep),
        };
        // SAFETY: the caller's.
        unsafe { put(rsp_param, param) };
        Ok(())
    }

    /// `dat_rsp_free`.
    fn dat_rsp_free(rsp_handle: RawHandle) {
        control::<N, _, _>(rsp_handle, |inner, rsp: RspHandle| inner.adapter.rsp_free(rsp))
    }
}
