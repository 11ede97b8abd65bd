//! Attributes of IAs, providers and endpoints.

use crate::args::bad;
use crate::convert::{count, name, qos, signed};
use crate::layout::{EpAttr, IaAttr, Name, Pointer, ProviderAttr};
use core::ptr;
use dat_nostd::{
    CompletionFlags, DatResult, EpAttributes, HW_DEFAULT, IaAttributes, ProviderAttributes, Subtype,
    WATERMARK_INFINITE,
};

/// More transfers than any endpoint of any provider has.
const ABSURD: u32 = 65535;

/// An endpoint's attributes as a program gives them, in argument `argument`. What programs leave 0 because their providers had defaults
/// for it has ours; counts of transfers above the device's (`most`) are cut to that, because programs ask for thousands that they never
/// post. Attributes by name are none of ours, and passed over.
pub(crate) fn ep_attributes(
    given: &EpAttr,
    argument: Subtype,
    on_srq: bool,
    most: u32,
) -> DatResult<EpAttributes> {
    let wrong = bad(argument);
    let count = |value: i32| count(value, argument);
    let transfers = |value: i32| match count(value) {
        Ok(asked) if asked <= ABSURD => Ok(asked.min(most)),
        _ => Err(wrong),
    };
    let named_badly = |count: i32, list: *const u8| count < 0 || count > 0 && list.is_null();
    if given.service_type != 0
        || named_badly(given.ep_transport_specific_count, given.ep_transport_specific.cast::<u8>())
        || named_badly(given.ep_provider_specific_count, given.ep_provider_specific.cast::<u8>())
    {
        return Err(wrong);
    }
    let flags = |bits: u32| CompletionFlags::from_bits(bits).ok_or(wrong);
    Ok(EpAttributes {
        max_message_size: given.max_message_size,
        max_rdma_size: given.max_rdma_size,
        qos: qos(given.qos, argument)?,
        recv_completion_flags: flags(given.recv_completion_flags)?,
        request_completion_flags: flags(given.request_completion_flags)?,
        max_recv_dtos: match given.max_recv_dtos {
            -1 if on_srq => HW_DEFAULT,
            dtos => transfers(dtos)?,
        },
        max_request_dtos: transfers(given.max_request_dtos)?,
        max_recv_iov: count(given.max_recv_iov)?,
        max_request_iov: count(given.max_request_iov)?,
        max_rdma_read_in: count(given.max_rdma_read_in)?,
        max_rdma_read_out: count(given.max_rdma_read_out)?,
        max_rdma_read_iov: count(given.max_rdma_read_iov)?,
        max_rdma_write_iov: count(given.max_rdma_write_iov)?,
        srq_soft_hw: match given.srq_soft_hw {
            // Of an endpoint without an SRQ it says nothing, and programs leave it 0.
            0 => WATERMARK_INFINITE,
            _ if !on_srq => WATERMARK_INFINITE,
            mark => mark,
        },
        ..EpAttributes::DEFAULT
    })
}

/// An endpoint's attributes as C has them.
pub(crate) fn ep_attr(attributes: &EpAttributes) -> EpAttr {
    EpAttr {
        service_type: 0,
        max_message_size: attributes.max_message_size,
        max_rdma_size: attributes.max_rdma_size,
        qos: attributes.qos as u32,
        recv_completion_flags: attributes.recv_completion_flags.bits(),
        request_completion_flags: attributes.request_completion_flags.bits(),
        max_recv_dtos: match attributes.max_recv_dtos {
            HW_DEFAULT => -1,
            dtos => signed(dtos),
        },
        max_request_dtos: signed(attributes.max_request_dtos),
        max_recv_iov: signed(attributes.max_recv_iov),
        max_request_iov: signed(attributes.max_request_iov),
        max_rdma_read_in: signed(attributes.max_rdma_read_in),
        max_rdma_read_out: signed(attributes.max_rdma_read_out),
        srq_soft_hw: attributes.srq_soft_hw,
        max_rdma_read_iov: signed(attributes.max_rdma_read_iov),
        max_rdma_write_iov: signed(attributes.max_rdma_write_iov),
        ep_transport_specific_count: 0,
        ep_transport_specific: ptr::null(),
        ep_provider_specific_count: 0,
        ep_provider_specific: ptr::null(),
    }
}

/// An IA's attributes; `ia_name` is the name that it was opened by.
pub(crate) fn ia_attr(ia: &IaAttributes<'_>, ia_name: Name, address: Pointer) -> IaAttr {
    IaAttr {
        adapter_name: ia_name,
        vendor_name: name(ia.vendor_name),
        hardware_version_major: ia.hardware_version_major,
        hardware_version_minor: ia.hardware_version_minor,
        firmware_version_major: ia.firmware_version_major,
        firmware_version_minor: ia.firmware_version_minor,
        ia_address_ptr: address,
        max_eps: signed(ia.max_eps),
        max_dto_per_ep: signed(ia.max_dto_per_ep),
        max_rdma_read_per_ep_in: signed(ia.max_rdma_read_per_ep_in),
        max_rdma_read_per_ep_out: signed(ia.max_rdma_read_per_ep_out),
        max_evds: signed(ia.max_evds),
        max_evd_qlen: signed(ia.max_evd_qlen),
        max_iov_segments_per_dto: signed(ia.max_iov_segments_per_dto),
        max_lmrs: signed(ia.max_lmrs),
        max_lmr_block_size: ia.max_lmr_block_size,
        max_lmr_virtual_address: ia.max_lmr_virtual_address,
        max_pzs: signed(ia.max_pzs),
        max_message_size: ia.max_message_size,
        max_rdma_size: ia.max_rdma_size,
        max_rmrs: signed(ia.max_rmrs),
        max_rmr_target_address: ia.max_rmr_target_address,
        max_srqs: signed(ia.max_srqs),
        max_ep_per_srq: signed(ia.max_ep_per_srq),
        max_recv_per_srq: signed(ia.max_recv_per_srq),
        max_iov_segments_per_rdma_read: signed(ia.max_iov_segments_per_rdma_read),
        max_iov_segments_per_rdma_write: signed(ia.max_iov_segments_per_rdma_write),
        max_rdma_read_in: signed(ia.max_rdma_read_in),
        max_rdma_read_out: signed(ia.max_rdma_read_out),
        max_rdma_read_per_ep_in_guaranteed: ia.max_rdma_read_per_ep_in_guaranteed.into(),
        max_rdma_read_per_ep_out_guaranteed: ia.max_rdma_read_per_ep_out_guaranteed.into(),
        num_transport_attr: 0,
        transport_attr: ptr::null(),
        num_vendor_attr: 0,
        vendor_attr: ptr::null(),
    }
}

/// The provider's attributes.
pub(crate) fn provider_attr(provider: &ProviderAttributes) -> ProviderAttr {
    ProviderAttr {
        provider_name: name(provider.provider_name),
        provider_version_major: provider.provider_version_major,
        provider_version_minor: provider.provider_version_minor,
        dapl_version_major: provider.dapl_version_major,
        dapl_version_minor: provider.dapl_version_minor,
        lmr_mem_types_supported: provider.lmr_mem_types_supported,
        iov_ownership_on_return: provider.iov_ownership_on_return as u32,
        dat_qos_supported: provider.dat_qos_supported,
        completion_flags_supported: provider.completion_flags_supported.bits(),
        // An adapter is not; this library puts a lock around it.
        is_thread_safe: 1,
        max_private_data_size: signed(provider.max_private_data_size),
        supports_multipath: provider.supports_multipath.into(),
        ep_creator: provider.ep_creator as u32,
        pz_support: provider.pz_support,
        optimal_buffer_alignment: provider.optimal_buffer_alignment,
        evd_stream_merging_supported: provider.evd_stream_merging_supported.map(|row| row.map(i32::from)),
        srq_supported: provider.srq_supported.into(),
        srq_watermarks_supported: signed(provider.srq_watermarks_supported),
        srq_ep_pz_difference_supported: provider.srq_ep_pz_difference_supported.into(),
        srq_info_supported: signed(provider.srq_info_supported),
        ep_recv_info_supported: signed(provider.ep_recv_info_supported),
        lmr_sync_req: provider.lmr_sync_req.into(),
        dto_async_return_guaranteed: provider.dto_async_return_guaranteed.into(),
        rdma_write_for_rdma_read_req: provider.rdma_write_for_rdma_read_req.into(),
        num_provider_specific_attr: 0,
        provider_specific_attr: ptr::null(),
    }
}
