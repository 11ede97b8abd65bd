//! Events. DAT 1.2, `DAT_EVENT` and its data.

use crate::base::handle::{CrHandle, EpHandle, EvdHandle, Handle, PspHandle, RmrHandle, RspHandle};
use crate::base::types::{DtoStatus, IaAddress};

/// `DAT_EVENT_NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventNumber {
    /// A transfer completed.
    DtoCompletion = 0x00001,
    /// A window bind completed.
    RmrBindCompletion = 0x01001,
    /// A peer asks for a connection.
    ConnectionRequest = 0x02001,
    /// The connection is up.
    ConnectionEstablished = 0x04001,
    /// The remote consumer refused.
    ConnectionPeerRejected = 0x04002,
    /// The remote machinery refused.
    ConnectionNonPeerRejected = 0x04003,
    /// An accept did not come to an end.
    ConnectionAcceptCompletionError = 0x04004,
    /// One side disconnected.
    ConnectionDisconnected = 0x04005,
    /// The connection failed.
    ConnectionBroken = 0x04006,
    /// The consumer's time-out passed.
    ConnectionTimedOut = 0x04007,
    /// Address or path resolution failed, or nobody answers.
    ConnectionUnreachable = 0x04008,
    /// An EVD lost events.
    AsyncErrorEvdOverflow = 0x08001,
    /// The adapter is gone.
    AsyncErrorIaCatastrophic = 0x08002,
    /// An EP failed outside a transfer.
    AsyncErrorEpBroken = 0x08003,
    /// A provider timer passed.
    AsyncErrorTimedOut = 0x08004,
    /// The provider failed.
    AsyncErrorProviderInternalError = 0x08005,
    /// Posted by the consumer.
    Software = 0x10001,
}

/// What a completed transfer was. DAT 1.2 does not tell; an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DtoOperation {
    /// `ep_post_send` and its variants.
    Send = 0,
    /// `ep_post_recv`.
    Receive = 1,
    /// `ep_post_rdma_write`.
    RdmaWrite = 2,
    /// `ep_post_rdma_read`.
    RdmaRead = 3,
    /// `ep_post_compare_swap` (extension).
    CompareSwap = 4,
    /// `ep_post_fetch_add` (extension).
    FetchAdd = 5,
}

/// What came with a received message. An extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Received {
    /// An ordinary send.
    #[default]
    Plain,
    /// Send or RDMA write with immediate data.
    Immediate(u32),
    /// Send with invalidate: the local rkey that is dead now.
    Invalidated(u32),
}

/// One receive that succeeded: see [`Adapter::evd_take_receives`](crate::Adapter::evd_take_receives).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveDto {
    /// As given to [`Adapter::ep_post_recv`](crate::Adapter::ep_post_recv).
    pub user_cookie: u64,
    /// Bytes of the message.
    pub length: u32,
}

/// `DAT_DTO_COMPLETION_EVENT_DATA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DtoCompletion {
    /// The endpoint.
    pub ep: EpHandle,
    /// As given to the post.
    pub user_cookie: u64,
    /// The result.
    pub status: DtoStatus,
    /// Bytes moved; undefined on error.
    pub transferred_length: u64,
    /// The operation (extension).
    pub operation: DtoOperation,
    /// Immediate data or invalidated key of a receive (extension).
    pub received: Received,
    /// mlx5 vendor syndrome of a failed transfer, else 0 (extension, for logs).
    pub vendor_syndrome: u8,
}

/// `DAT_RMR_BIND_COMPLETION_EVENT_DATA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmrCompletion {
    /// The window.
    pub rmr: RmrHandle,
    /// As given to the bind.
    pub user_cookie: u64,
    /// The result.
    pub status: DtoStatus,
}

/// How a connection attempt or a connection changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u32)]
pub enum ConnectionEvent {
    /// Up.
    Established = 0x04001,
    /// The remote consumer refused.
    PeerRejected = 0x04002,
    /// The remote machinery refused.
    NonPeerRejected = 0x04003,
    /// An accept did not come to an end.
    AcceptCompletionError = 0x04004,
    /// One side disconnected.
    Disconnected = 0x04005,
    /// Failed.
    Broken = 0x04006,
    /// The consumer's time-out passed.
    TimedOut = 0x04007,
    /// No path, or nobody answers.
    Unreachable = 0x04008,
}

/// Asynchronous errors: `DAT_ASYNCH_ERROR_EVENT_DATA`. The reason is 0 of the object's list, except for watermarks (see
/// [`states`](crate::base::states)): the soft high watermark of an EP comes as EP_BROKEN, though it is not, because that is the number
/// which shares its reasons; what concerns an SRQ comes as PROVIDER_INTERNAL_ERROR, as no number is reserved for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u32)]
pub enum AsyncError {
    /// An EVD lost events.
    EvdOverflow = 0x08001,
    /// The adapter is gone.
    IaCatastrophic = 0x08002,
    /// An EP failed outside a transfer.
    EpBroken = 0x08003,
    /// A provider timer passed.
    TimedOut = 0x08004,
    /// The provider failed.
    ProviderInternalError = 0x08005,
}

/// The service point of a request: `sp_handle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePoint {
    /// Public.
    Psp(PspHandle),
    /// Reserved.
    Rsp(RspHandle),
}

/// An event's number and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventData {
    /// A transfer completed.
    Dto(DtoCompletion),
    /// A window bind completed.
    RmrBind(RmrCompletion),
    /// A peer asks for a connection.
    ConnectionRequest {
        /// The service point that listens.
        sp: ServicePoint,
        /// This IA's address.
        local_address: IaAddress,
        /// The qualifier listened to.
        conn_qual: u64,
        /// For `cr_query`, `cr_accept`, `cr_reject`.
        cr: CrHandle,
    },
    /// A connection changed.
    Connection {
        /// How.
        event: ConnectionEvent,
        /// The endpoint.
        ep: EpHandle,
        /// Bytes that `ep_private_data` lends: of the accept (active side, Established) or the reject (extension).
        private_data_size: usize,
    },
    /// Posted by `evd_post_se`.
    Software {
        /// The consumer's value (`pointer` in C).
        value: u64,
    },
    /// An asynchronous error.
    Async {
        /// What happened.
        error: AsyncError,
        /// The object that it happened to.
        handle: Handle,
        /// From the reason list of that kind of object.
        reason: i32,
    },
}

/// `DAT_EVENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The EVD that the event came from.
    pub evd: EvdHandle,
    /// Number and data.
    pub data: EventData,
}

impl Event {
    /// `event_number`.
    pub const fn number(&self) -> EventNumber {
        match self.data {
            EventData::Dto(_) => EventNumber::DtoCompletion,
            EventData::RmrBind(_) => EventNumber::RmrBindCompletion,
            EventData::ConnectionRequest { .. } => EventNumber::ConnectionRequest,
            EventData::Connection { event, .. } => match event {
                ConnectionEvent::Established => EventNumber::ConnectionEstablished,
                ConnectionEvent::PeerRejected => EventNumber::ConnectionPeerRejected,
                ConnectionEvent::NonPeerRejected => EventNumber::ConnectionNonPeerRejected,
                ConnectionEvent::AcceptCompletionError => EventNumber::ConnectionAcceptCompletionError,
                ConnectionEvent::Disconnected => EventNumber::ConnectionDisconnected,
                ConnectionEvent::Broken => EventNumber::ConnectionBroken,
                ConnectionEvent::TimedOut => EventNumber::ConnectionTimedOut,
                ConnectionEvent::Unreachable => EventNumber::ConnectionUnreachable,
            },
            EventData::Software { .. } => EventNumber::Software,
            EventData::Async { error, .. } => match error {
                AsyncError::EvdOverflow => EventNumber::AsyncErrorEvdOverflow,
                AsyncError::IaCatastrophic => EventNumber::AsyncErrorIaCatastrophic,
                AsyncError::EpBroken => EventNumber::AsyncErrorEpBroken,
                AsyncError::TimedOut => EventNumber::AsyncErrorTimedOut,
                AsyncError::ProviderInternalError => EventNumber::AsyncErrorProviderInternalError,
            },
        }
    }
}
