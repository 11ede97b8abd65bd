//! Remote memory regions: windows.

use super::exported::calls;
use crate::args::{bad, get, need, put};
use crate::convert::EXISTING_RIGHTS;
use crate::handles::{Kinded, RawHandle};
use crate::layout::RmrParam;
use crate::reach::with;
use dat_nostd::{CompletionFlags, EpHandle, LmrTriplet, MemPriv, PzHandle, RmrHandle, Subtype};

calls! {
    /// `dat_rmr_create`.
    fn dat_rmr_create(pz_handle: RawHandle, rmr_handle: *mut RawHandle) {
        need(rmr_handle, Subtype::InvalidArg2)?;
        let rmr = with::<N, _, _>(pz_handle, |inner, pz: PzHandle| inner.adapter.rmr_create(pz))?;
        // SAFETY: the caller's.
        unsafe { put(rmr_handle, rmr.raw()) };
        Ok(())
    }

    /// `dat_rmr_create_for_ep`: a window that a peer's send can invalidate.
    fn dat_rmr_create_for_ep(pz_handle: RawHandle, rmr_handle: *mut RawHandle) {
        need(rmr_handle, Subtype::InvalidArg2)?;
        let rmr = with::<N, _, _>(pz_handle, |inner, pz: PzHandle| inner.adapter.rmr_create_invalidatable(pz))?;
        // SAFETY: this module's contract.
        unsafe { put(rmr_handle, rmr.raw()) };
        Ok(())
    }

    /// `dat_rmr_query`. Of a window that is bound to nothing the rest is 0.
    fn dat_rmr_query(rmr_handle: RawHandle, mask: u32, rmr_param: *mut RmrParam) {
        let found = with::<N, _, _>(rmr_handle, |inner, rmr: RmrHandle| inner.adapter.rmr_query_masked(rmr, mask))?;
        need(rmr_param, Subtype::InvalidArg3)?;
        let binding = found.binding;
        let param = RmrParam {
            ia_handle: found.ia.raw(),
            pz_handle: found.pz.raw(),
            lmr_triplet: binding.map_or(LmrTriplet::default(), |binding| binding.lmr_triplet),
            mem_priv: binding.map_or(0, |binding| binding.mem_priv.bits()),
            rmr_context: binding.map_or(0, |binding| binding.rmr_context),
        };
        // SAFETY: the caller's.
        unsafe { put(rmr_param, param) };
        Ok(())
    }

    /// `dat_rmr_bind`.
    fn dat_rmr_bind(
        rmr_handle: RawHandle,
        lmr_triplet: *const LmrTriplet,
        mem_privileges: u32,
        ep_handle: RawHandle,
        user_cookie: u64,
        completion_flags: u32,
        rmr_context: *mut u32,
    ) {
        // SAFETY: the caller's.
        let triplet = unsafe { get(lmr_triplet, Subtype::InvalidArg2) };
        let context = with::<N, _, _>(rmr_handle, |inner, rmr: RmrHandle| {
            inner.adapter.rmr_query(rmr)?;
            let mem_priv = MemPriv::from_bits_retain(mem_privileges);
            if !EXISTING_RIGHTS.contains(mem_priv) {
                return Err(bad(Subtype::InvalidArg3));
            }
            let flags = CompletionFlags::from_bits_retain(completion_flags);
            inner.adapter.rmr_bind(rmr, &triplet?, mem_priv, EpHandle::of(ep_handle), user_cookie, flags)
        })?;
        // SAFETY: the caller's.
        unsafe { put(rmr_context, context) };
        Ok(())
    }

    /// `dat_rmr_free`.
    fn dat_rmr_free(rmr_handle: RawHandle) {
        with::<N, _, _>(rmr_handle, |inner, rmr: RmrHandle| inner.adapter.rmr_free(rmr))
    }
}
