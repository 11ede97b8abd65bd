//! Endpoints.

use super::exported::calls;
use crate::args::{bad, get, need, put};
use crate::convert::{self, ep_attr, ep_attributes};
use crate::handles::{Kinded, RawHandle};
use crate::layout::{EpAttr, EpParam};
use crate::node::Node;
use crate::reach::{control, with};
use crate::state::State;
use dat_nostd::{
    DatResult, EpAttributes, EpFields, EpHandle, EvdHandle, HW_DEFAULT, IaHandle, PzHandle, SrqHandle,
    Subtype,
};

/// A bit of the mask that means nothing, and that programs set (MVAPICH2 asks by 0xffff).
const UNUSED: u64 = 0x800;

/// What `dat_ep_modify` takes from a program's parameters: only what the mask names is looked at.
fn attributes_to_modify(
    mask: EpFields,
    given: &EpAttr,
    on_srq: bool,
    old: EpAttributes,
) -> DatResult<EpAttributes> {
    const ARGUMENT: Subtype = Subtype::InvalidArg3;
    let named = |field| mask.contains(field);
    let number = |field, value: i32, old: u32| match value {
        _ if !named(field) => Ok(old),
        -1 if on_srq && field == EpFields::MAX_RECV_DTOS => Ok(HW_DEFAULT),
        value => convert::count(value, ARGUMENT),
    };
    let flags = |field, bits: u32, old| match dat_nostd::CompletionFlags::from_bits(bits) {
        _ if !named(field) => Ok(old),
        flags => flags.ok_or(bad(ARGUMENT)),
    };
    if named(EpFields::SERVICE_TYPE) && given.service_type != 0 {
        return Err(bad(ARGUMENT));
    }
    Ok(EpAttributes {
        max_message_size: given.max_message_size,
        max_rdma_size: given.max_rdma_size,
        qos: if named(EpFields::QOS) { convert::qos(given.qos, ARGUMENT)? } else { old.qos },
        recv_completion_flags: flags(
            EpFields::RECV_COMPLETION_FLAGS,
            given.recv_completion_flags,
            old.recv_completion_flags,
        )?,
        request_completion_flags: flags(
            EpFields::REQUEST_COMPLETION_FLAGS,
            given.request_completion_flags,
            old.request_completion_flags,
        )?,
        max_recv_dtos: number(EpFields::MAX_RECV_DTOS, given.max_recv_dtos, old.max_recv_dtos)?,
        max_request_dtos: number(EpFields::MAX_REQUEST_DTOS, given.max_request_dtos, old.max_request_dtos)?,
        max_recv_iov: number(EpFields::MAX_RECV_IOV, given.max_recv_iov, old.max_recv_iov)?,
        max_request_iov: number(EpFields::MAX_REQUEST_IOV, given.max_request_iov, old.max_request_iov)?,
        max_rdma_read_in: number(EpFields::MAX_RDMA_READ_IN, given.max_rdma_read_in, old.max_rdma_read_in)?,
        max_rdma_read_out: number(
            EpFields::MAX_RDMA_READ_OUT,
            given.max_rdma_read_out,
            old.max_rdma_read_out,
        )?,
        max_rdma_read_iov: number(
            EpFields::MAX_RDMA_READ_IOV,
            given.max_rdma_read_iov,
            old.max_rdma_read_iov,
        )?,
        max_rdma_write_iov: number(
            EpFields::MAX_RDMA_WRITE_IOV,
            given.max_rdma_write_iov,
            old.max_rdma_write_iov,
        )?,
        ..old
    })
}

/// An endpoint's parameters as C has them.
fn param<N: Node>(inner: &mut State<N>, ep: EpHandle, mask: u64) -> DatResult<EpParam> {
    let found = inner.adapter.ep_query_masked(ep, mask & !UNUSED)?;
    let (local, remote) = inner.beside.asides.addresses(ep.raw(), found.local_address, found.remote_address);
    Ok(EpParam {
        ia_handle: found.ia.raw(),
        ep_state: found.state as u32,
        local_ia_address_ptr: local,
        local_port_qual: found.local_port,
        remote_ia_address_ptr: remote,
        remote_port_qual: found.remote_port,
        pz_handle: Kinded::raw_or_null(found.pz),
        recv_evd_handle: Kinded::raw_or_null(found.recv_evd),
        request_evd_handle: Kinded::raw_or_null(found.request_evd),
        connect_evd_handle: Kinded::raw_or_null(found.connect_evd),
        srq_handle: Kinded::raw_or_null(found.srq),
        ep_attr: ep_attr(&found.attributes),
    })
}

calls! {
    /// `dat_ep_create`.
    fn dat_ep_create(
        ia_handle: RawHandle,
        pz_handle: RawHandle,
        recv_evd_handle: RawHandle,
        request_evd_handle: RawHandle,
        connect_evd_handle: RawHandle,
        attributes: *const EpAttr,
        ep_handle: *mut RawHandle,
    ) {
        need(ep_handle, Subtype::InvalidArg7)?;
        // SAFETY: the caller's.
        let given = (!attributes.is_null()).then(|| unsafe { attributes.read_unaligned() });
        let ep = control::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            let most = inner.adapter.ia_query(ia)?.1.max_dto_per_ep;
            let given = given.map(|given| ep_attributes(&given, Subtype::InvalidArg6, false, most)).transpose();
            let evds = [recv_evd_handle, request_evd_handle, connect_evd_handle].map(EvdHandle::given);
            let pz = PzHandle::given(pz_handle);
            // Handles are looked at before attributes.
            let given = match given {
                Ok(given) => given,
                Err(error) => {
                    pz.map_or(Ok(()), |pz| inner.adapter.pz_query(pz).map(drop))?;
                    return Err(error);
                }
            };
            inner.adapter.ep_create(ia, pz, evds[0], evds[1], evds[2], given.as_ref())
        })?;
        // SAFETY: the caller's.
        unsafe { put(ep_handle, ep.raw()) };
        Ok(())
    }

    /// `dat_ep_create_with_srq`.
    fn dat_ep_create_with_srq(
        ia_handle: RawHandle,
        pz_handle: RawHandle,
        recv_evd_handle: RawHandle,
        request_evd_handle: RawHandle,
        connect_evd_handle: RawHandle,
        srq_handle: RawHandle,
        attributes: *const EpAttr,
        ep_handle: *mut RawHandle,
    ) {
        need(ep_handle, Subtype::InvalidArg8)?;
        // SAFETY: the caller's.
        let given = unsafe { get(attributes, Subtype::InvalidArg7) };
        let ep = control::<N, _, _>(ia_handle, |inner, ia: IaHandle| {
            let evds = [recv_evd_handle, request_evd_handle, connect_evd_handle].map(EvdHandle::given);
            let (pz, srq) = (PzHandle::of(pz_handle), SrqHandle::of(srq_handle));
            // Handles are looked at before attributes.
            let most = inner.adapter.ia_query(ia)?.1.max_dto_per_ep;
            inner.adapter.pz_query(pz)?;
            inner.adapter.srq_query(srq)?;
            let given = ep_attributes(&given?, Subtype::InvalidArg7, true, most)?;
            inner.adapter.ep_create_with_srq(ia, pz, evds[0], evds[1], evds[2], srq, &given)
        })?;
        // SAFETY: the caller's.
        unsafe { put(ep_handle, ep.raw()) };
        Ok(())
    }

    /// `dat_ep_query`. What the answer points to stays until the endpoint is freed.
    fn dat_ep_query(ep_handle: RawHandle, mask: u64, ep_param: *mut EpParam) {
        let found = with::<N, _, _>(ep_handle, |inner, ep: EpHandle| param(inner, ep, mask))?;
        need(ep_param, Subtype::InvalidArg3)?;
        // SAFETY: the caller's.
        unsafe { put(ep_param, found) };
        Ok(())
    }

    /// `dat_ep_modify`.
    fn dat_ep_modify(ep_handle: RawHandle, mask: u64, ep_param: *const EpParam) {
        // SAFETY: the caller's.
        let given = unsafe { get(ep_param, Subtype::InvalidArg3) };
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            let old = inner.adapter.ep_query(ep)?;
            let mask = EpFields::check(mask & !UNUSED)?;
            let given = given?;
            let attributes = attributes_to_modify(mask, &given.ep_attr, old.srq.is_some(), old.attributes)?;
            let new = dat_nostd::EpParameters {
                pz: PzHandle::given(given.pz_handle),
                recv_evd: EvdHandle::given(given.recv_evd_handle),
                request_evd: EvdHandle::given(given.request_evd_handle),
                connect_evd: EvdHandle::given(given.connect_evd_handle),
                attributes,
                ..old
            };
            inner.adapter.ep_modify(ep, mask, &new)
        })
    }

    /// `dat_ep_get_status`. Null pointers ask for nothing.
    fn dat_ep_get_status(
        ep_handle: RawHandle,
        ep_state: *mut u32,
        recv_idle: *mut i32,
        request_idle: *mut i32,
    ) {
        let status = with::<N, _, _>(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_get_status(ep))?;
        // SAFETY: the caller's.
        unsafe {
            put(ep_state, status.state as u32);
            put(recv_idle, status.recv_idle.into());
            put(request_idle, status.request_idle.into());
        }
        Ok(())
    }

    /// `dat_ep_free`.
    fn dat_ep_free(ep_handle: RawHandle) {
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_free(ep))
    }

    /// `dat_ep_reset`.
    fn dat_ep_reset(ep_handle: RawHandle) {
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_reset(ep))
    }

    /// `dat_ep_recv_query`. Null pointers ask for nothing.
    fn dat_ep_recv_query(
        ep_handle: RawHandle,
        nbufs_allocated: *mut i32,
        bufs_alloc_span: *mut i32,
    ) {
        let found = with::<N, _, _>(ep_handle, |inner, ep: EpHandle| inner.adapter.ep_recv_query(ep))?;
        // SAFETY: the caller's.
        unsafe {
            put(nbufs_allocated, found.nbufs_allocated);
            put(bufs_alloc_span, found.bufs_alloc_span);
        }
        Ok(())
    }

    /// `dat_ep_set_watermark`.
    fn dat_ep_set_watermark(
        ep_handle: RawHandle,
        soft_high_watermark: i32,
        hard_high_watermark: i32,
    ) {
        control::<N, _, _>(ep_handle, |inner, ep: EpHandle| {
            inner.adapter.ep_set_watermark(ep, soft_high_watermark, hard_high_watermark)
        })
    }
}
