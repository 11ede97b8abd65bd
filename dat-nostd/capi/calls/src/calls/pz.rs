//! Protection zones.

use super::exported::calls;
use crate::args::{need, put};
use crate::handles::{Kinded, RawHandle};
use crate::layout::PzParam;
use crate::reach::with;
use dat_nostd::{IaHandle, PzHandle, Subtype};

calls! {
    /// `dat_pz_create`.
    fn dat_pz_create(ia_handle: RawHandle, pz_handle: *mut RawHandle) {
        need(pz_handle, Subtype::InvalidArg2)?;
        let pz = with::<N, _, _>(ia_handle, |inner, ia: IaHandle| inner.adapter.pz_create(ia))?;
        // SAFETY: the caller's.
        unsafe { put(pz_handle, pz.raw()) };
        Ok(())
    }

    /// `dat_pz_query`.
    fn dat_pz_query(pz_handle: RawHandle, mask: u32, pz_param: *mut PzParam) {
        let ia = with::<N, _, _>(pz_handle, |inner, pz: PzHandle| inner.adapter.pz_query_masked(pz, mask))?;
        need(pz_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(pz_param, PzParam { ia_handle: ia.raw() }) };
        Ok(())
    }

    /// `dat_pz_free`.
    fn dat_pz_free(pz_handle: RawHandle) {
        with::<N, _, _>(pz_handle, |inner, pz: PzHandle| inner.adapter.pz_free(pz))
    }
}
