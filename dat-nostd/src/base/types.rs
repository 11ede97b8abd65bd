//! Enums, flags and small records, with the numbers of the DAT 1.2 headers.

use bitflags::bitflags;
use driver_mlx::{Duration, Instant};

use crate::base::ret::{DatReturn, ReturnType, Subtype};

/// `DAT_TIMEOUT_INFINITE`, in microseconds as every `DAT_TIMEOUT`.
pub const TIMEOUT_INFINITE: u32 = 0xffff_ffff;

/// When a `DAT_TIMEOUT` that begins now ends: [`Instant::MAX`] for one without an end.
pub(crate) fn deadline_of(now: Instant, timeout_us: u32) -> Instant {
    match timeout_us {
        TIMEOUT_INFINITE => Instant::MAX,
        _ => now + Duration::from_micros(timeout_us.into()),
    }
}

/// `DAT_NAME_MAX_LENGTH`, the terminating NUL of the C form included.
pub const NAME_MAX_LENGTH: usize = 256;
/// `DAT_OPTIMAL_ALIGNMENT`, bytes.
pub const OPTIMAL_ALIGNMENT: u64 = 256;
/// `DAT_WATERMARK_INFINITE`: never.
pub const WATERMARK_INFINITE: i32 = -1;
/// `DAT_HW_DEFAULT` in an unsigned count (-1 in C): as many receives as the SRQ gives.
pub const HW_DEFAULT: u32 = u32::MAX;
/// `DAT_VALUE_UNKNOWN`.
pub const VALUE_UNKNOWN: i32 = -2;

/// An IA's address. Ports are part of the connection qualifier.
pub type IaAddress = core::net::IpAddr;

/// `DAT_EP_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EpState {
    /// May connect or be given to an accept.
    Unconnected = 0,
    /// Held by a reserved service point.
    Reserved = 2,
    /// A request arrived at the reserved service point.
    PassiveConnectionPending = 4,
    /// Connecting.
    ActiveConnectionPending = 6,
    /// Made by the provider for a request.
    TentativeConnectionPending = 7,
    /// Transfers flow.
    Connected = 9,
    /// Graceful disconnect: requests are being finished.
    DisconnectPending = 10,
    /// Ended, or never came to be; everything posted is flushed.
    Disconnected = 11,
    /// Accepted, waiting for the peer's confirmation.
    CompletionPending = 12,
}

impl EpState {
    /// INVALID_STATE with this state's subtype.
    pub(crate) const fn invalid(self) -> DatReturn {
        DatReturn::error(
            ReturnType::InvalidState,
            match self {
                EpState::Unconnected => Subtype::InvalidStateEpUnconnected,
                EpState::Reserved => Subtype::InvalidStateEpReserved,
                EpState::PassiveConnectionPending => Subtype::InvalidStateEpPassconnpending,
                EpState::ActiveConnectionPending => Subtype::InvalidStateEpActconnpending,
                EpState::TentativeConnectionPending => Subtype::InvalidStateEpTentconnpending,
                EpState::Connected => Subtype::InvalidStateEpConnected,
                EpState::DisconnectPending => Subtype::InvalidStateEpDiscpending,
                EpState::Disconnected => Subtype::InvalidStateEpDisconnected,
                EpState::CompletionPending => Subtype::InvalidStateEpComplpending,
            },
        )
    }
}

bitflags! {
    /// `DAT_COMPLETION_FLAGS`. Empty is `DAT_COMPLETION_DEFAULT_FLAG`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CompletionFlags: u32 {
        /// No event if the operation succeeds. Not on receives.
        const SUPPRESS = 0x01;
        /// On sends: the matching receive completion notifies a solicited waiter.
        const SOLICITED_WAIT = 0x02;
        /// Event without notification; legal only if the EP's attribute says so.
        const UNSIGNALLED = 0x04;
        /// Starts only after all earlier RDMA reads of the EP have completed. Not on receives.
        const BARRIER_FENCE = 0x08;
        /// As an EP attribute only: the consumer controls waking by threshold.
        const EVD_THRESHOLD = 0x10;
    }

    /// `DAT_EVD_FLAGS`: the event streams that may feed an EVD.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EvdFlags: u32 {
        /// Software events.
        const SOFTWARE = 0x001;
        /// Connection requests.
        const CR = 0x010;
        /// DTO completions.
        const DTO = 0x020;
        /// Connection events.
        const CONNECTION = 0x040;
        /// RMR bind completions.
        const RMR_BIND = 0x080;
        /// Asynchronous errors; not with any other.
        const ASYNC = 0x100;
    }

    /// `DAT_MEM_PRIV_FLAGS`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MemPriv: u32 {
        /// Local read.
        const LOCAL_READ = 0x01;
        /// Remote read.
        const REMOTE_READ = 0x02;
        /// Local write.
        const LOCAL_WRITE = 0x10;
        /// Remote write; needs local write on InfiniBand.
        const REMOTE_WRITE = 0x20;
        /// Extension: remote atomic operations; need local write.
        const REMOTE_ATOMIC = 0x40;
        /// Both reads.
        const READ = 0x03;
        /// Both writes.
        const WRITE = 0x30;
        /// All four.
        const ALL = 0x33;
    }

    /// `DAT_EVD_STATE`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EvdState: u32 {
        /// Arrivals trigger the CNO.
        const ENABLED = 0x01;
        /// They do not.
        const DISABLED = 0x02;
        /// May be waited on.
        const WAITABLE = 0x04;
        /// May not.
        const UNWAITABLE = 0x08;
        /// Notifies for completions that are not UNSIGNALLED.
        const CONFIG_NOTIFY = 0x10;
        /// Notifies for solicited completions.
        const CONFIG_SOLICITED = 0x20;
        /// Notifies by threshold.
        const CONFIG_THRESHOLD = 0x30;
    }
}

/// `DAT_QOS`; only best effort exists on this provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Qos {
    /// `DAT_QOS_BEST_EFFORT`
    #[default]
    BestEffort = 0,
    /// `DAT_QOS_HIGH_THROUGHPUT`
    HighThroughput = 1,
    /// `DAT_QOS_LOW_LATENCY`
    LowLatency = 2,
    /// `DAT_QOS_ECONOMY`
    Economy = 4,
    /// `DAT_QOS_PREMIUM`
    Premium = 8,
}

/// `DAT_CONNECT_FLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum ConnectFlags {
    /// One path.
    #[default]
    Default = 0,
    /// `DAT_CONNECT_MULTIPATH_FLAG`; not supported by this provider.
    Multipath = 1,
}

/// `DAT_CLOSE_FLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum CloseFlags {
    /// Ends at once, unfinished operations are flushed.
    #[default]
    Abrupt = 0,
    /// Lets outstanding requests finish; `ia_close` refuses while objects are left.
    Graceful = 1,
}

/// `DAT_PSP_FLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PspFlags {
    /// The consumer gives an EP at accept.
    #[default]
    Consumer = 0,
    /// The provider makes one per request.
    Provider = 1,
}

/// `DAT_MEM_TYPE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemType {
    /// `DAT_MEM_TYPE_VIRTUAL`
    Virtual = 0,
    /// `DAT_MEM_TYPE_LMR`
    Lmr = 1,
    /// `DAT_MEM_TYPE_SHARED_VIRTUAL`
    SharedVirtual = 2,
}

/// `DAT_DTO_COMPLETION_STATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DtoStatus {
    /// Done.
    Success = 0,
    /// Never started, or unfinished when the connection ended.
    ErrFlushed = 1,
    /// Message longer than the buffer.
    ErrLocalLength = 2,
    /// Queue pair operation error.
    ErrLocalEp = 3,
    /// Local key, rights or protection zone.
    ErrLocalProtection = 4,
    /// Malformed response.
    ErrBadResponse = 5,
    /// The peer denied the access.
    ErrRemoteAccess = 6,
    /// The peer could not perform it.
    ErrRemoteResponder = 7,
    /// Retries exhausted.
    ErrTransport = 8,
    /// The peer had no receive posted.
    ErrReceiverNotReady = 9,
    /// Partial packet; does not occur on InfiniBand.
    ErrPartialPacket = 10,
    /// Window bind failed.
    RmrOperationFailed = 11,
}

/// `DAT_LMR_TRIPLET`: one local segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct LmrTriplet {
    /// From `lmr_create`.
    pub lmr_context: u32,
    /// Zero.
    pub pad: u32,
    /// Address in the region: virtual, or an offset if the region is zero-based.
    pub virtual_address: u64,
    /// Bytes.
    pub segment_length: u64,
}

impl LmrTriplet {
    /// A segment.
    pub const fn new(lmr_context: u32, virtual_address: u64, segment_length: u64) -> Self {
        Self { lmr_context, pad: 0, virtual_address, segment_length }
    }
}

/// `DAT_RMR_TRIPLET`: the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RmrTriplet {
    /// The rkey that the peer told.
    pub rmr_context: u32,
    /// Zero.
    pub pad: u32,
    /// Address in the peer's region.
    pub target_address: u64,
    /// Bytes.
    pub segment_length: u64,
}

impl RmrTriplet {
    /// A remote buffer.
    pub const fn new(rmr_context: u32, target_address: u64, segment_length: u64) -> Self {
        Self { rmr_context, pad: 0, target_address, segment_length }
    }
}
