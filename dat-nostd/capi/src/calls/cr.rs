//! Connection requests.

use super::exported::exported;
use crate::args::{need, private_data, put};
use crate::handles::{Kinded, RawHandle};
use crate::layout::CrParam;
use crate::reach::{control, with};
use dat_nostd::{CrHandle, EpHandle, Subtype};

exported! {
    /// `dat_cr_query`. What the answer points to stays until the request is answered.
    checked fn dat_cr_query(cr_handle: RawHandle, mask: u32, cr_param: *mut CrParam) as cr_query_func {
        let param = with(cr_handle, |inner, cr: CrHandle| {
            let local = inner.adapter.address();
            let found = inner.adapter.cr_query_masked(cr, mask)?;
            let (_, remote) = inner.asides.addresses(cr_handle, local, found.remote_address);
            Ok(CrParam {
                remote_ia_address_ptr: remote,
                remote_port_qual: found.remote_port,
                private_data_size: found.private_data.len() as i32,
                private_data: inner.asides.private_data(cr_handle, found.private_data),
                local_ep_handle: Kinded::raw_or_null(found.local_ep),
            })
        })?;
        need(cr_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(cr_param, param) };
        Ok(())
    }

    /// `dat_cr_accept`.
    checked fn dat_cr_accept(
        cr_handle: RawHandle,
        ep_handle: RawHandle,
        private_data_size: i32,
        data: *const u8,
    ) as cr_accept_func {
        // SAFETY: the caller's.
        let data = unsafe { private_data(data, private_data_size, Subtype::InvalidArg3, Subtype::InvalidArg4) };
        control(cr_handle, |inner, cr: CrHandle| {
            inner.adapter.cr_accept(cr, EpHandle::given(ep_handle), data?)?;
            inner.asides.forget(cr_handle);
            Ok(())
        })
    }

    /// `dat_cr_reject`.
    checked fn dat_cr_reject(cr_handle: RawHandle) as cr_reject_func {
        control(cr_handle, |inner, cr: CrHandle| {
            inner.adapter.cr_reject(cr)?;
            inner.asides.forget(cr_handle);
            Ok(())
        })
    }

    /// `dat_cr_handoff`.
    checked fn dat_cr_handoff(cr_handle: RawHandle, handoff: u64) as cr_handoff_func {
        control(cr_handle, |inner, cr: CrHandle| {
            inner.adapter.cr_handoff(cr, handoff)?;
            inner.asides.forget(cr_handle);
            Ok(())
        })
    }
}
