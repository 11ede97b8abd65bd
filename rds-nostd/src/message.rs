//! What `sendmsg` takes and what `recvmsg` gives.

use core::net::SocketAddr;

use crate::frames::Place;
use crate::ids::SocketHandle;
use crate::rdma::{Control, RdmaCookie, RdmaNotify};

bitflags::bitflags! {
    /// Flags of `sendmsg` and `recvmsg`, with the values of Linux.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MsgFlags: u32 {
        /// Out-of-band data, of which there is none.
        const OOB = 0x0001;
        /// Leave the message where it is.
        const PEEK = 0x0002;
        /// Asked: give the message's whole length. Told: the buffer was too short for it.
        const TRUNC = 0x0020;
        /// Do not wait; nothing here waits in any case.
        const DONTWAIT = 0x0040;
        /// `sendmsg`: more follows at once. The message may wait for the next one without it that is taken for the same peer and type of
        /// service, or for [`Rds::poll`](crate::Rds::poll), so that the HCA learns of all of them together: if that one is refused, for
        /// `poll`. One with something beside it does not wait. (`MSG_MORE`, which Linux's RDS refuses.)
        const MORE = 0x8000;
        /// `recvmsg`: lend the message's frames instead of copying them. (`sendmsg` is told by [`Control::lend`](crate::Control::lend).)
        const ZEROCOPY = 0x0400_0000;
        const _ = !0;
    }
}

/// A message to be sent: `struct msghdr` of `sendmsg`, and its flags.
#[derive(Clone, Copy, Debug)]
pub struct Msg<'a> {
    /// Where it goes; None: where [`connect`](crate::Rds::connect) said.
    pub to: Option<SocketAddr>,
    /// Its bytes, which are copied.
    pub payload: &'a [u8],
    /// What goes along with it.
    pub control: Option<&'a Control<'a>>,
    /// DONTWAIT and MORE, or nothing.
    pub flags: MsgFlags,
}

impl<'a> Msg<'a> {
    /// A message that goes where [`connect`](crate::Rds::connect) said.
    #[inline]
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { to: None, payload, control: None, flags: MsgFlags::empty() }
    }

    /// A message to this address and port.
    #[inline]
    #[must_use]
    pub const fn to(to: SocketAddr, payload: &'a [u8]) -> Self {
        Self { to: Some(to), ..Self::new(payload) }
    }

    /// The same with something beside it.
    #[inline]
    #[must_use]
    pub const fn with(self, control: &'a Control<'a>) -> Self {
        Self { control: Some(control), ..self }
    }

    /// The same with these flags.
    #[inline]
    #[must_use]
    pub const fn flags(self, flags: MsgFlags) -> Self {
        Self { flags, ..self }
    }
}

/// A received message, or its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it: address and port.
    pub from: SocketAddr,
    /// Bytes written to the caller's buffer.
    pub len: usize,
    /// Bytes of the message; more than `len` if the buffer was too short.
    pub message_len: usize,
    /// Memory that the sender offers with it (`RDS_CMSG_RDMA_DEST`).
    pub cookie: Option<RdmaCookie>,
}

/// A received message whose bytes are in frames that are lent until they are
/// [given back](crate::Rds::give_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentMessage {
    /// Who sent it: address and port.
    pub from: SocketAddr,
    /// Bytes of the message.
    pub message_len: usize,
    /// Memory that the sender offers with it (`RDS_CMSG_RDMA_DEST`).
    pub cookie: Option<RdmaCookie>,
    /// Where [`Rds::frames`](crate::Rds::frames) finds them.
    pub frames: FramesHandle,
}

/// Handle of a received message's frames. Void once the frames were given back, even if they are reused.
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

/// What a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The end of an RDMA operation (`RDS_CMSG_RDMA_STATUS`).
    RdmaStatus(RdmaNotify),
    /// Ports of peers that have cleared, folded by 64 (`RDS_CMSG_CONG_UPDATE`).
    CongestionUpdate(u64),
    /// A message.
    Message(Received),
    /// A message whose frames are lent: ZEROCOPY was asked for.
    Lent(LentMessage),
    /// Out-of-band data was asked for.
    Nothing,
}

impl Arrival {
    /// The message, if it is one.
    #[inline]
    #[must_use]
    pub const fn message(self) -> Option<Received> {
        match self {
            Self::Message(message) => Some(message),
            _ => None,
        }
    }

    /// What the C call returns when it was made with these flags: bytes, 0 for all but a message.
    #[must_use]
    pub const fn value(&self, asked: MsgFlags) -> usize {
        match self {
            Self::Message(message) if asked.contains(MsgFlags::TRUNC) => message.message_len,
            Self::Message(message) => message.len,
            Self::Lent(message) => message.message_len,
            _ => 0,
        }
    }

    /// `msg_flags` of the C call: TRUNC or nothing.
    #[must_use]
    pub const fn flags(&self) -> MsgFlags {
        match self {
            Self::Message(message) if message.message_len > message.len => MsgFlags::TRUNC,
            _ => MsgFlags::empty(),
        }
    }
}
