//! Connection requests.

use super::exported::calls;
use crate::args::{need, private_data, put};
use crate::handles::{Kinded, RawHandle};
use crate::layout::CrParam;
use crate::reach::{control, with};
use dat_nostd::{CrHandle, EpHandle, Subtype};

calls! {
    /// `dat_cr_query`. What the answer points to stays until the request is answered.
    fn dat_cr_query(cr_handle: RawHandle, mask: u32, cr_param: *mut CrParam) {
        let param = with::<N, _, _>(cr_handle, |inner, cr: CrHandle| {
            let local = inner.adapter.address();
            let found = inner.adapter.cr_query_masked(cr, mask)?;
            let (_, remote) = inner.beside.asides.addresses(cr_handle, local, found.remote_address);
            Ok(CrParam {
                remote_ia_address_ptr: remote,
                remote_port_qual: found.remote_port,
                private_data_size: found.private_data.len() as i32,
                private_data: inner.beside.asides.private_data(cr_handle, found.private_data),
                local_ep_handle: Kinded::raw_or_null(found.local_ep),
            })
        })?;
        need(cr_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(cr_param, param) };
        Ok(())
    }

    /// `dat_cr_accept`.
    fn dat_cr_accept(
        cr_handle: RawHandle,
        ep_handle: RawHandle,
        private_data_size: i32,
        data: *const u8,
    ) {
        // SAFETY: the caller's.
        let data = unsafe { private_data(data, private_data_size, Subtype::InvalidArg3, Subtype::InvalidArg4) };
        control::<N, _, _>(cr_handle, |inner, cr: CrHandle| inner.adapter.cr_accept(cr, EpHandle::given(ep_handle), data?))
    }

    /// `dat_cr_reject`.
    fn dat_cr_reject(cr_handle: RawHandle) {
        control::<N, _, _>(cr_handle, |inner, cr: CrHandle| inner.adapter.cr_reject(cr))
    }

    /// `dat_ib_cr_reject`: with private data.
    fn dat_ib_cr_reject(cr_handle: RawHandle, private_data_size: i32, data: *const u8) {
        // SAFETY: this module's contract.
        let data = unsafe { private_data(data, private_data_size, Subtype::InvalidArg2, Subtype::InvalidArg3) };
        control::<N, _, _>(cr_handle, |inner, cr: CrHandle| {
            inner.adapter.cr_query(cr)?;
            inner.adapter.cr_reject_with(cr, data?)
        })
    }

    /// `dat_cr_handoff`.
    fn dat_cr_handoff(cr_handle: RawHandle, handoff: u64) {
        control::<N, _, _>(cr_handle, |inner, cr: CrHandle| inner.adapter.cr_handoff(cr, handoff))
    }
}
