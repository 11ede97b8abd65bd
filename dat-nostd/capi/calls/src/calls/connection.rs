//! Connections: the active side, and the end.

use super::exported::calls;
use crate::args::{address, private_data};
use crate::convert::{close_flags, connect_flags, qos};
use crate::handles::{Kinded, RawHandle};
use crate::reach::control;
use dat_nostd::{EpHandle, Subtype};

calls! {
    /// `dat_ep_connect`.
    fn dat_ep_connect(
        ep_handle: RawHandle,
        remote_ia_address: *const u8,
        remote_conn_qual: u64,
        timeout: u32,
        private_data_size: i32,
        data: *const u8,
        quality_of_service: u32,
        flags: u32,
    ) {
        // SAFETY: the caller's.
        let (remote, data) = unsafe {
            (
                address(remote_ia_address, Subtype::InvalidArg2),
                private_data(data, private_data_size, Subtype::InvalidArg5, Subtype::InvalidArg6),
            )
        };
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_get_status(ep)?;
            let qos = qos(quality_of_service, Subtype::InvalidArg7)?;
            let flags = connect_flags(flags)?;
            inner.adapter.ep_connect(ep, &remote?, remote_conn_qual, timeout, data?, qos, flags)
        })
    }

    /// `dat_ep_dup_connect`.
    fn dat_ep_dup_connect(
        ep_handle: RawHandle,
        dup_ep_handle: RawHandle,
        timeout: u32,
        private_data_size: i32,
        data: *const u8,
        quality_of_service: u32,
    ) {
        // SAFETY: the caller's.
        let data = unsafe { private_data(data, private_data_size, Subtype::InvalidArg4, Subtype::InvalidArg5) };
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_get_status(ep)?;
            let qos = qos(quality_of_service, Subtype::InvalidArg6)?;
            inner.adapter.ep_dup_connect(ep, EpHandle::of(dup_ep_handle), timeout, data?, qos)
        })
    }

    /// `dat_ep_disconnect`.
    fn dat_ep_disconnect(ep_handle: RawHandle, flags: u32) {
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_get_status(ep)?;
            inner.adapter.ep_disconnect(ep, close_flags(flags)?)
        })
    }
}
