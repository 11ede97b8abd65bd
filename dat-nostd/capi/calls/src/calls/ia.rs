//! Interface adapters.

use super::exported::calls;
use crate::args::{need, put};
use crate::convert::{ia_attr, name, provider_attr};
use crate::handles::{Kinded, RawHandle};
use crate::layout::{IaAttr, ProviderAttr};
use crate::node::OUT_OF_SCOPE;
use crate::reach::{lock, node_of};
use dat_nostd::{IaHandle, Subtype};

calls! {
    /// `dat_ia_query`.
    fn dat_ia_query(
        ia_handle: RawHandle,
        async_evd_handle: *mut RawHandle,
        ia_attr_mask: u64,
        attributes: *mut IaAttr,
        provider_attr_mask: u64,
        provider_attributes: *mut ProviderAttr,
    ) {
        let node = node_of::<N, IaHandle>(ia_handle)?;
        let inner = lock::<N, IaHandle>(node)?;
        let found = inner.adapter.ia_query_masked(IaHandle::of(ia_handle), ia_attr_mask, provider_attr_mask)?;
        if ia_attr_mask != 0 {
            need(attributes, Subtype::InvalidArg4)?;
        }
        if provider_attr_mask != 0 {
            need(provider_attributes, Subtype::InvalidArg6)?;
        }
        let note = inner.beside.ias.get(ia_handle);
        let ia_name = note.map_or_else(|| name(found.1.adapter_name), |note| note.name);
        let evd = if note.is_some_and(|note| note.out_of_scope) { OUT_OF_SCOPE } else { found.0.raw() };
        // SAFETY: the caller's. Without a mask the pointers mean nothing.
        unsafe {
            put(async_evd_handle, evd);
            if ia_attr_mask != 0 {
                put(attributes, ia_attr(&found.1, ia_name, inner.beside.address()));
            }
            if provider_attr_mask != 0 {
                put(provider_attributes, provider_attr(&found.2));
            }
        }
        Ok(())
    }

    /// `dat_ia_close`.
    fn dat_ia_close(ia_handle: RawHandle, flags: u32) {
        node_of::<N, IaHandle>(ia_handle)?.close_ia(IaHandle::of(ia_handle), flags)
    }
}
