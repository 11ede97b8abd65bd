//! Attributes and parameters of objects. DAT 1.2, sections on attributes; limits are this provider's.

use crate::base::event::ConnectionEvent;
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PzHandle, SrqHandle};
use crate::base::states::SrqState;
use crate::base::types::{
    CompletionFlags, EpState, EvdFlags, EvdState, IaAddress, LmrTriplet, MemPriv, MemType, PspFlags, Qos,
    WATERMARK_INFINITE,
};
use crate::cno::upcall::ProxyAgent;

/// Private data of a REQ under RDMA-CM framing, bytes: 92 less the 36-byte header. InfiniBand annex A11.
pub const MAX_PRIVATE_DATA_RDMA_CM: usize = 56;
/// Private data under our own framing (`…-dat` names), bytes, every direction. The specification asks for 64.
pub const MAX_PRIVATE_DATA_DAT: usize = 64;
/// The most private data that any message hands over (REP), bytes.
pub const MAX_PRIVATE_DATA_ANY: usize = 196;

/// `DAT_EP_ATTR`; the service type is RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpAttributes {
    /// Longest message, bytes; 0 means the adapter's limit (real consumers leave it 0).
    pub max_message_size: u64,
    /// Longest RDMA transfer, bytes; 0 means the adapter's limit.
    pub max_rdma_size: u64,
    /// Only best effort.
    pub qos: Qos,
    /// Empty or EVD_THRESHOLD, UNSIGNALLED, SOLICITED_WAIT.
    pub recv_completion_flags: CompletionFlags,
    /// Empty or EVD_THRESHOLD, UNSIGNALLED.
    pub request_completion_flags: CompletionFlags,
    /// Receives outstanding; 0 exactly if there is no receive EVD.
    pub max_recv_dtos: u32,
    /// Requests outstanding; 0 exactly if there is no request EVD.
    pub max_request_dtos: u32,
    /// Segments of a receive.
    pub max_recv_iov: u32,
    /// Segments of a send.
    pub max_request_iov: u32,
    /// RDMA reads outstanding as target.
    pub max_rdma_read_in: u32,
    /// RDMA reads outstanding as originator.
    pub max_rdma_read_out: u32,
    /// Segments of an RDMA read; 0 means `max_request_iov`.
    pub max_rdma_read_iov: u32,
    /// Segments of an RDMA write; 0 means `max_request_iov`.
    pub max_rdma_write_iov: u32,
    /// Soft high watermark of an EP on an SRQ; [`WATERMARK_INFINITE`] for none.
    pub srq_soft_hw: i32,
    /// Extension: retries of this EP's requests that the peer does not acknowledge, 0..7. As the passive side, at most what the REQ
    /// says.
    pub retry_count: u8,
    /// Extension: retries of this EP's requests when the peer has no receive posted, 0..6; 7 without end. A peer of another provider
    /// may request fewer.
    pub rnr_retry: u8,
    /// Extension: the wait that this side asks for when it has no receive posted; code 0..31 of IBTA (10 is
    /// 0.32 ms, 12 is 0.64 ms).
    pub rnr_timer: u8,
    /// Extension: the service level, 0..15; None takes the path record's.
    pub sl: Option<u8>,
    /// Extension: traffic class, used when the path has a GRH.
    pub traffic_class: u8,
}

impl EpAttributes {
    /// What an EP gets that is created without attributes.
    pub const DEFAULT: EpAttributes = EpAttributes {
        max_message_size: 0,
        max_rdma_size: 0,
        qos: Qos::BestEffort,
        recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
        request_completion_flags: CompletionFlags::EVD_THRESHOLD,
        max_recv_dtos: 16,
        max_request_dtos: 16,
        max_recv_iov: 4,
        max_request_iov: 4,
        max_rdma_read_in: 4,
        max_rdma_read_out: 4,
        max_rdma_read_iov: 0,
        max_rdma_write_iov: 0,
        srq_soft_hw: WATERMARK_INFINITE,
        retry_count: 7,
        rnr_retry: 7,
        rnr_timer: 12,
        sl: None,
        traffic_class: 0,
    };
}

impl Default for EpAttributes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// `DAT_EP_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// State now.
    pub state: EpState,
    /// This IA's address.
    pub local_address: IaAddress,
    /// Source port or own qualifier.
    pub local_port: u64,
    /// The peer's address; unspecified before a connection is asked for.
    pub remote_address: IaAddress,
    /// The peer's port or qualifier.
    pub remote_port: u64,
    /// Protection zone.
    pub pz: Option<PzHandle>,
    /// EVD of receives.
    pub recv_evd: Option<EvdHandle>,
    /// EVD of requests.
    pub request_evd: Option<EvdHandle>,
    /// EVD of connection events.
    pub connect_evd: Option<EvdHandle>,
    /// The SRQ that receives come from.
    pub srq: Option<SrqHandle>,
    /// Attributes as in force.
    pub attributes: EpAttributes,
    /// Extension: the peer's port GID, once its request came or ours was sent.
    pub remote_gid: Option<[u8; 16]>,
    /// Extension: the event that its connection is ending with, until that is queued behind the last completion.
    pub ending: Option<ConnectionEvent>,
}

/// What `ep_get_status` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpStatus {
    /// State now.
    pub state: EpState,
    /// No receive outstanding.
    pub recv_idle: bool,
    /// No request outstanding.
    pub request_idle: bool,
}

/// What `ep_recv_query` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpRecvInfo {
    /// Buffers that the EP holds.
    pub nbufs_allocated: i32,
    /// From the last message completed to the last that has a buffer.
    pub bufs_alloc_span: i32,
}

/// `DAT_SRQ_ATTR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Buffers that fit.
    pub max_recv_dtos: u32,
    /// Segments of a buffer.
    pub max_recv_iov: u32,
    /// `DAT_SRQ_LW_DEFAULT`, 0; `srq_set_lw` sets another.
    pub low_watermark: u32,
}

/// `DAT_SRQ_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// State now.
    pub state: SrqState,
    /// Its protection zone.
    pub pz: PzHandle,
    /// Buffers that fit.
    pub max_recv_dtos: u32,
    /// Segments of a buffer.
    pub max_recv_iov: u32,
    /// As last set.
    pub low_watermark: u32,
    /// Buffers still in the queue.
    pub available_dto_count: i32,
    /// Buffers posted whose completions have not been dequeued.
    pub outstanding_dto_count: i32,
}

/// `DAT_RMR_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmrParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// Its protection zone.
    pub pz: PzHandle,
    /// What it was bound to last; None if to nothing.
    pub binding: Option<RmrBinding>,
}

/// What an RMR is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmrBinding {
    /// The local memory.
    pub lmr_triplet: LmrTriplet,
    /// What peers may do.
    pub mem_priv: MemPriv,
    /// For the peer.
    pub rmr_context: u32,
}

/// `DAT_IA_ATTR`, members in the header's order; 0 of a count means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are the specification's.
pub struct IaAttributes<'a> {
    pub adapter_name: &'a str,
    pub vendor_name: &'static str,
    pub hardware_version_major: u32,
    pub hardware_version_minor: u32,
    pub firmware_version_major: u32,
    pub firmware_version_minor: u32,
    pub ia_address: IaAddress,
    pub max_eps: u32,
    pub max_dto_per_ep: u32,
    pub max_rdma_read_per_ep_in: u32,
    pub max_rdma_read_per_ep_out: u32,
    pub max_evds: u32,
    pub max_evd_qlen: u32,
    pub max_iov_segments_per_dto: u32,
    pub max_lmrs: u32,
    pub max_lmr_block_size: u64,
    pub max_lmr_virtual_address: u64,
    pub max_pzs: u32,
    pub max_message_size: u64,
    pub max_rdma_size: u64,
    pub max_rmrs: u32,
    pub max_rmr_target_address: u64,
    pub max_srqs: u32,
    pub max_ep_per_srq: u32,
    pub max_recv_per_srq: u32,
    pub max_iov_segments_per_rdma_read: u32,
    pub max_iov_segments_per_rdma_write: u32,
    pub max_rdma_read_in: u32,
    pub max_rdma_read_out: u32,
    pub max_rdma_read_per_ep_in_guaranteed: bool,
    pub max_rdma_read_per_ep_out_guaranteed: bool,
}

/// `DAT_IOV_OWNERSHIP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IovOwnership {
    /// The consumer may use the segment array again when the post returns.
    Consumer = 0,
}

/// `DAT_EP_CREATOR_FOR_PSP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EpCreator {
    /// The provider never makes EPs.
    Never = 0,
    /// It makes them where the consumer asks for it.
    IfAsked = 1,
    /// It always does.
    Always = 2,
}

/// `DAT_PROVIDER_ATTR`, members in the header's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are the specification's.
pub struct ProviderAttributes {
    pub provider_name: &'static str,
    pub provider_version_major: u32,
    pub provider_version_minor: u32,
    pub dapl_version_major: u32,
    pub dapl_version_minor: u32,
    pub lmr_mem_types_supported: u32,
    pub iov_ownership_on_return: IovOwnership,
    pub dat_qos_supported: u32,
    pub completion_flags_supported: CompletionFlags,
    pub is_thread_safe: bool,
    pub max_private_data_size: u32,
    pub supports_multipath: bool,
    pub ep_creator: EpCreator,
    pub pz_support: u32,
    pub optimal_buffer_alignment: u32,
    /// Index 0 software, 1 CR, 2 DTO, 3 connection, 4 RMR bind, 5 async.
    pub evd_stream_merging_supported: [[bool; 6]; 6],
    pub srq_supported: bool,
    pub srq_watermarks_supported: u32,
    pub srq_ep_pz_difference_supported: bool,
    pub srq_info_supported: u32,
    pub ep_recv_info_supported: u32,
    pub lmr_sync_req: bool,
    pub dto_async_return_guaranteed: bool,
    pub rdma_write_for_rdma_read_req: bool,
}

/// `DAT_LMR_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmrParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// Kind of the region description.
    pub mem_type: MemType,
    /// Its protection zone.
    pub pz: PzHandle,
    /// Bytes asked for.
    pub length: u64,
    /// Rights.
    pub mem_priv: MemPriv,
    /// For local segments.
    pub lmr_context: u32,
    /// For the peer; 0 without remote rights.
    pub rmr_context: u32,
    /// Bytes registered.
    pub registered_size: u64,
    /// First address; 0 if zero-based.
    pub registered_address: u64,
}

/// What `lmr_create` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmrCreated {
    /// The object.
    pub lmr: LmrHandle,
    /// For local segments: slot and generation, translated at post.
    pub lmr_context: u32,
    /// The rkey for the peer; 0 without remote rights.
    pub rmr_context: u32,
    /// Bytes registered.
    pub registered_size: u64,
    /// First address; 0 if zero-based.
    pub registered_address: u64,
}

/// `DAT_EVD_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvdParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// Events that fit, per kind of queue.
    pub evd_qlen: u32,
    /// Enabled, waitable, configuration.
    pub evd_state: EvdState,
    /// The CNO that it feeds.
    pub cno: Option<CnoHandle>,
    /// Streams.
    pub evd_flags: EvdFlags,
}

/// `DAT_CNO_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CnoParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// The proxy agent, if there is one that has not been called.
    pub agent: Option<ProxyAgent>,
}

/// `DAT_PSP_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PspParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// Qualifier listened to.
    pub conn_qual: u64,
    /// EVD of the requests.
    pub evd: EvdHandle,
    /// Who makes the EP.
    pub psp_flags: PspFlags,
}

/// `DAT_RSP_PARAM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RspParameters {
    /// Its IA.
    pub ia: IaHandle,
    /// Qualifier listened to, until a request has come.
    pub conn_qual: u64,
    /// EVD of the request.
    pub evd: EvdHandle,
    /// The reserved EP; None if the provider makes one when the request comes.
    pub ep: Option<EpHandle>,
}

/// `DAT_CR_PARAM`. The private data lives until the request is accepted or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrParameters<'a> {
    /// The peer's address, as it says.
    pub remote_address: IaAddress,
    /// The peer's port.
    pub remote_port: u64,
    /// What the peer gave to its connect. Under RDMA-CM framing padded with zeros to 56 bytes.
    pub private_data: &'a [u8],
    /// The reserved EP, or the one that the provider made; None: the consumer gives it.
    pub local_ep: Option<EpHandle>,
    /// Extension: the peer's port GID.
    pub remote_gid: [u8; 16],
}
