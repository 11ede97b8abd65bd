//! Protection zones.

use super::exported::exported;
use crate::args::{need, put};
use crate::handles::{Kinded, RawHandle};
use crate::layout::PzParam;
use crate::reach::with;
use dat_nostd::{IaHandle, PzHandle, Subtype};

exported! {
    /// `dat_pz_create`.
    checked fn dat_pz_create(ia_handle: RawHandle, pz_handle: *mut RawHandle) as pz_create_func {
        need(pz_handle, Subtype::InvalidArg2)?;
        let pz = with(ia_handle, |inner, ia: IaHandle| inner.adapter.pz_create(ia))?;
        // SAFETY: the caller's.
        unsafe { put(pz_handle, pz.raw()) };
        Ok(())
    }

    /// `dat_pz_query`.
    checked fn dat_pz_query(pz_handle: RawHandle, mask: u32, pz_param: *mut PzParam) as pz_query_func {
        let ia = with(pz_handle, |inner, pz: PzHandle| inner.adapter.pz_query_masked(pz, mask))?;
        need(pz_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(pz_param, PzParam { ia_handle: ia.raw() }) };
        Ok(())
    }

    /// `dat_pz_free`.
    checked fn dat_pz_free(pz_handle: RawHandle) as pz_free_func {
        with(pz_handle, |inner, pz: PzHandle| inner.adapter.pz_free(pz))
    }
}
