//! Arguments of `sendmsg` and results of `recvmsg`.

use core::net::SocketAddr;

use crate::frames::Place;
use crate::ids::SocketHandle;
use crate::rdma::{Control, RdmaCookie, RdmaNotify};

bitflags::bitflags! {
    /// Flags of `sendmsg` and `recvmsg`, with the values of Linux.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MsgFlags: u32 {
        /// Out-of-band data; never present.
        const OOB = 0x0001;
        /// Leave the message in the queue.
        const PEEK = 0x0002;
        /// Argument: return the message's full length. Result: the buffer was too short.
        const TRUNC = 0x0020;
        /// No effect, because calls never wait.
        const DONTWAIT = 0x0040;
        /// `sendmsg`: more messages follow. The message may wait for the next message without this
        /// flag to the same peer and type of service, or for [`Rds::poll`](crate::Rds::poll), so
        /// that one doorbell serves all. If the next message is refused, it waits for `poll`.
        /// Messages with control messages do not wait. (`MSG_MORE`, which Linux's RDS refuses.)
        const MORE = 0x8000;
        /// `recvmsg`: lend the message's frames instead of a copy. (`sendmsg` uses
        /// [`Control::lend`](crate::Control::lend) instead.)
        const ZEROCOPY = 0x0400_0000;
        const _ = !0;
    }
}

/// A message to send: `struct msghdr` of `sendmsg`, and its flags.
#[derive(Clone, Copy, Debug)]
pub struct Msg<'a> {
    /// Destination; `None` for that of [`connect`](crate::Rds::connect).
    pub to: Option<&'a SocketAddr>,
    /// Payload, which is copied.
    pub payload: &'a [u8],
    /// Control messages.
    pub control: Option<&'a Control<'a>>,
    /// DONTWAIT and MORE, or none.
    pub flags: MsgFlags,
}

impl<'a> Msg<'a> {
    /// Creates a message to the destination of [`connect`](crate::Rds::connect).
    #[inline]
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { to: None, payload, control: None, flags: MsgFlags::empty() }
    }

    /// Creates a message to this address and port.
    #[inline]
    #[must_use]
    pub const fn to(to: &'a SocketAddr, payload: &'a [u8]) -> Self {
        Self { to: Some(to), ..Self::new(payload) }
    }

    /// Adds control messages.
    #[inline]
    #[must_use]
    pub const fn with(self, control: &'a Control<'a>) -> Self {
        Self { control: Some(control), ..self }
    }

    /// Sets the flags.
    #[inline]
    #[must_use]
    pub const fn flags(self, flags: MsgFlags) -> Self {
        Self { flags, ..self }
    }
}

/// A received message, or its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sender: address and port.
    pub from: SocketAddr,
    /// Bytes written to the caller's buffer.
    pub len: usize,
    /// Bytes of the message; more than `len` if the buffer was too short.
    pub message_len: usize,
    /// Memory that the sender offers (`RDS_CMSG_RDMA_DEST`).
    pub cookie: Option<RdmaCookie>,
}

/// A received message whose frames are lent until [`give_back`](crate::Rds::give_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentMessage {
    /// Sender: address and port.
    pub from: SocketAddr,
    /// Bytes of the message.
    pub message_len: usize,
    /// Memory that the sender offers (`RDS_CMSG_RDMA_DEST`).
    pub cookie: Option<RdmaCookie>,
    /// Handle of the frames, for [`Rds::frames`](crate::Rds::frames).
    pub frames: FramesHandle,
}

/// Handle of a received message's frames. Invalid after the frames were returned, even if they are
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramesHandle {
    pub(crate) place: Place,
    /// Distinguishes the handle from earlier ones of the same place.
    pub(crate) number: u64,
    /// Bytes of the message.
    pub(crate) len: usize,
    /// The socket that the message was read from.
    pub(crate) owner: SocketHandle,
}

/// Result of `recvmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Status of a completed RDMA operation (`RDS_CMSG_RDMA_STATUS`).
    RdmaStatus(RdmaNotify),
    /// Ports of peers that have cleared, folded by 64 (`RDS_CMSG_CONG_UPDATE`).
    CongestionUpdate(u64),
    /// A message.
    Message(Received),
    /// A message whose frames are lent, for ZEROCOPY.
    Lent(LentMessage),
    /// Out-of-band data was requested.
    Nothing,
}

impl Arrival {
    /// Returns the message, if it is one.
    #[inline]
    #[must_use]
    pub const fn message(self) -> Option<Received> {
        match self {
            Self::Message(message) => Some(message),
            _ => None,
        }
    }

    /// Returns the value of the C call with these flags: bytes of a message, otherwise 0.
    #[must_use]
    pub const fn value(&self, asked: MsgFlags) -> usize {
        match self {
            Self::Message(message) if asked.contains(MsgFlags::TRUNC) => message.message_len,
            Self::Message(message) => message.len,
            Self::Lent(message) => message.message_len,
            _ => 0,
        }
    }

    /// Returns `msg_flags` of the C call: TRUNC or none.
    #[must_use]
    pub const fn flags(&self) -> MsgFlags {
        match self {
            Self::Message(message) if message.message_len > message.len => MsgFlags::TRUNC,
            _ => MsgFlags::empty(),
        }
    }
}
