//! The structures of `<dat/udat.h>`, member for member. Enumerations of C are numbers here: a program may put anything into them.

use crate::handles::RawHandle;
use core::ffi::{c_char, c_void};
use dat_nostd::{LmrTriplet, RmrTriplet};

/// A pointer to memory of the program's or of the library's.
pub type Pointer = *mut c_void;

/// `AF_INET` of Linux.
pub const AF_INET: u16 = 2;
/// `AF_INET6` of Linux.
pub const AF_INET6: u16 = 10;

/// `DAT_NAME_MAX_LENGTH` bytes.
pub type Name = [c_char; 256];

/// `DAT_NAMED_ATTR`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct NamedAttr {
    pub name: *const c_char,
    pub value: *const c_char,
}

/// `DAT_OS_WAIT_PROXY_AGENT`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ProxyAgent {
    pub instance_data: Pointer,
    pub function: Option<AgentFunction>,
}

/// `DAT_AGENT_FUNC`.
pub type AgentFunction = unsafe extern "C" fn(Pointer, RawHandle);

/// `DAT_REGION_DESCRIPTION`: the two words of the union; the first is its address or its handle.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RegionDescription {
    pub first: Pointer,
    /// `shared_memory_id` of shared memory.
    pub cookie: *const [u8; 40],
}

/// `DAT_PROVIDER_INFO`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ProviderInfo {
    pub ia_name: Name,
    pub dapl_version_major: u32,
    pub dapl_version_minor: u32,
    pub is_thread_safe: i32,
}

/// `DAT_EVENT`. The data is the union's four words.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Event {
    pub event_number: u32,
    pub evd_handle: RawHandle,
    pub data: EventWords,
}

/// `DAT_IB_EVENT`: `DAT_EVENT` with `event_extension_data`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IbEvent {
    pub event: Event,
    pub extension: [u64; 8],
}

/// `DAT_EVENT_DATA`: every member of the union consists of words, or of halves of one.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EventWords {
    pub first: u64,
    pub second: u64,
    pub third: u64,
    pub fourth: u64,
}

/// `DAT_EVD_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EvdParam {
    pub ia_handle: RawHandle,
    pub evd_qlen: i32,
    pub evd_state: u32,
    pub cno_handle: RawHandle,
    pub evd_flags: u32,
}

/// `DAT_CNO_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct CnoParam {
    pub ia_handle: RawHandle,
    pub agent: ProxyAgent,
}

/// `DAT_LMR_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LmrParam {
    pub ia_handle: RawHandle,
    pub mem_type: u32,
    pub region_desc: RegionDescription,
    pub length: u64,
    pub pz_handle: RawHandle,
    pub mem_priv: u32,
    pub lmr_context: u32,
    pub rmr_context: u32,
    pub registered_size: u64,
    pub registered_address: u64,
}

/// `DAT_RMR_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RmrParam {
    pub ia_handle: RawHandle,
    pub pz_handle: RawHandle,
    pub lmr_triplet: LmrTriplet,
    pub mem_priv: u32,
    pub rmr_context: u32,
}

/// `DAT_PZ_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct PzParam {
    pub ia_handle: RawHandle,
}

/// `DAT_PSP_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct PspParam {
    pub ia_handle: RawHandle,
    pub conn_qual: u64,
    pub evd_handle: RawHandle,
    pub psp_flags: u32,
}

/// `DAT_RSP_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RspParam {
    pub ia_handle: RawHandle,
    pub conn_qual: u64,
    pub evd_handle: RawHandle,
    pub ep_handle: RawHandle,
}

/// `DAT_CR_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct CrParam {
    pub remote_ia_address_ptr: Pointer,
    pub remote_port_qual: u64,
    pub private_data_size: i32,
    pub private_data: Pointer,
    pub local_ep_handle: RawHandle,
}

/// `DAT_SRQ_ATTR`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SrqAttr {
    pub max_recv_dtos: i32,
    pub max_recv_iov: i32,
    pub low_watermark: i32,
}

/// `DAT_SRQ_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SrqParam {
    pub ia_handle: RawHandle,
    pub srq_state: u32,
    pub pz_handle: RawHandle,
    pub max_recv_dtos: i32,
    pub max_recv_iov: i32,
    pub low_watermark: i32,
    pub available_dto_count: i32,
    pub outstanding_dto_count: i32,
}

/// `DAT_EP_ATTR`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EpAttr {
    pub service_type: u32,
    pub max_message_size: u64,
    pub max_rdma_size: u64,
    pub qos: u32,
    pub recv_completion_flags: u32,
    pub request_completion_flags: u32,
    pub max_recv_dtos: i32,
    pub max_request_dtos: i32,
    pub max_recv_iov: i32,
    pub max_request_iov: i32,
    pub max_rdma_read_in: i32,
    pub max_rdma_read_out: i32,
    pub srq_soft_hw: i32,
    pub max_rdma_read_iov: i32,
    pub max_rdma_write_iov: i32,
    pub ep_transport_specific_count: i32,
    pub ep_transport_specific: *const NamedAttr,
    pub ep_provider_specific_count: i32,
    pub ep_provider_specific: *const NamedAttr,
}

/// `DAT_EP_PARAM`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EpParam {
    pub ia_handle: RawHandle,
    pub ep_state: u32,
    pub local_ia_address_ptr: Pointer,
    pub local_port_qual: u64,
    pub remote_ia_address_ptr: Pointer,
    pub remote_port_qual: u64,
    pub pz_handle: RawHandle,
    pub recv_evd_handle: RawHandle,
    pub request_evd_handle: RawHandle,
    pub connect_evd_handle: RawHandle,
    pub srq_handle: RawHandle,
    pub ep_attr: EpAttr,
}

/// `DAT_IA_ATTR`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IaAttr {
    pub adapter_name: Name,
    pub vendor_name: Name,
    pub hardware_version_major: u32,
    pub hardware_version_minor: u32,
    pub firmware_version_major: u32,
    pub firmware_version_minor: u32,
    pub ia_address_ptr: Pointer,
    pub max_eps: i32,
    pub max_dto_per_ep: i32,
    pub max_rdma_read_per_ep_in: i32,
    pub max_rdma_read_per_ep_out: i32,
    pub max_evds: i32,
    pub max_evd_qlen: i32,
    pub max_iov_segments_per_dto: i32,
    pub max_lmrs: i32,
    pub max_lmr_block_size: u64,
    pub max_lmr_virtual_address: u64,
    pub max_pzs: i32,
    pub max_message_size: u64,
    pub max_rdma_size: u64,
    pub max_rmrs: i32,
    pub max_rmr_target_address: u64,
    pub max_srqs: i32,
    pub max_ep_per_srq: i32,
    pub max_recv_per_srq: i32,
    pub max_iov_segments_per_rdma_read: i32,
    pub max_iov_segments_per_rdma_write: i32,
    pub max_rdma_read_in: i32,
    pub max_rdma_read_out: i32,
    pub max_rdma_read_per_ep_in_guaranteed: i32,
    pub max_rdma_read_per_ep_out_guaranteed: i32,
    pub num_transport_attr: i32,
    pub transport_attr: *const NamedAttr,
    pub num_vendor_attr: i32,
    pub vendor_attr: *const NamedAttr,
}

/// `DAT_PROVIDER_ATTR`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ProviderAttr {
    pub provider_name: Name,
    pub provider_version_major: u32,
    pub provider_version_minor: u32,
    pub dapl_version_major: u32,
    pub dapl_version_minor: u32,
    pub lmr_mem_types_supported: u32,
    pub iov_ownership_on_return: u32,
    pub dat_qos_supported: u32,
    pub completion_flags_supported: u32,
    pub is_thread_safe: i32,
    pub max_private_data_size: i32,
    pub supports_multipath: i32,
    pub ep_creator: u32,
    pub pz_support: u32,
    pub optimal_buffer_alignment: u32,
    pub evd_stream_merging_supported: [[i32; 6]; 6],
    pub srq_supported: i32,
    pub srq_watermarks_supported: i32,
    pub srq_ep_pz_difference_supported: i32,
    pub srq_info_supported: i32,
    pub ep_recv_info_supported: i32,
    pub lmr_sync_req: i32,
    pub dto_async_return_guaranteed: i32,
    pub rdma_write_for_rdma_read_req: i32,
    pub num_provider_specific_attr: i32,
    pub provider_specific_attr: *const NamedAttr,
}

// The sizes that the headers give; the C tests assert every offset.
const _: () = {
    assert!(size_of::<LmrTriplet>() == 24 && size_of::<RmrTriplet>() == 24);
    assert!(size_of::<NamedAttr>() == 16 && size_of::<ProxyAgent>() == 16);
    assert!(size_of::<RegionDescription>() == 16 && size_of::<ProviderInfo>() == 268);
    assert!(size_of::<Event>() == 48 && size_of::<EventWords>() == 32 && size_of::<IbEvent>() == 112);
    assert!(size_of::<EvdParam>() == 32 && size_of::<CnoParam>() == 24 && size_of::<LmrParam>() == 80);
    assert!(size_of::<RmrParam>() == 48 && size_of::<PzParam>() == 8 && size_of::<PspParam>() == 32);
    assert!(size_of::<RspParam>() == 32 && size_of::<CrParam>() == 40);
    assert!(size_of::<SrqAttr>() == 12 && size_of::<SrqParam>() == 48);
    assert!(size_of::<EpAttr>() == 104 && size_of::<EpParam>() == 192);
    assert!(size_of::<IaAttr>() == 688 && size_of::<ProviderAttr>() == 504);
};
