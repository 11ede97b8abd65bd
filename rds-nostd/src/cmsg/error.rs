//! Errors of control messages.

use core::fmt;

use crate::error::RdsError;

/// Error of control messages or of an option's structure. All are `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmsgError {
    /// `cmsg_len` is shorter than a header, or longer than the rest of the buffer.
    Length {
        /// Offset of the header in the buffer.
        at: usize,
        /// `cmsg_len` of the header.
        cmsg_len: usize,
        /// Bytes left in the buffer, including the header.
        left: usize,
    },
    /// The payload is too short for its type.
    Payload {
        /// The type, `cmsg_type`.
        kind: i32,
        /// Bytes of the structure.
        needed: usize,
        /// Bytes of the payload.
        found: usize,
    },
    /// The type is not supported.
    Type(i32),
    /// The type occurs only in `recvmsg`.
    OnlyReceived(i32),
    /// A second control message where one is allowed: ARGS, an atomic operation, MAP or DEST.
    Twice(i32),
    /// An offer of memory (MAP, DEST) together with an operation (ARGS, atomic).
    OfferWithOperation,
    /// A notification with an undefined status.
    Status(i32),
    /// A structure is too short: an option's argument, or an address.
    Structure {
        /// Bytes of the structure.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// Address family that the profile lacks.
    Family(u16),
    /// An undefined trace point.
    Position(u8),
}

impl fmt::Display for CmsgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { at, cmsg_len, left } => write!(
                f,
                "cmsg_len is {cmsg_len} at byte {at}, where {left} bytes are left: set it by CMSG_LEN, and msg_controllen to the bytes used"
            ),
            Self::Payload { kind, needed, found } => {
                write!(
                    f,
                    "control message {kind} has {found} bytes and needs {needed}: set cmsg_len by CMSG_LEN({needed})"
                )
            }
            Self::Type(kind) => {
                write!(f, "unsupported control message {kind}: omit it, or correct cmsg_level")
            }
            Self::OnlyReceived(kind) => write!(f, "control message {kind} is for recvmsg: do not send it"),
            Self::Twice(kind) => write!(f, "duplicate control message {kind}: send one per message"),
            Self::OfferWithOperation => f.write_str(
                "offer of memory (MAP, DEST) together with an operation (ARGS, ATOMIC): use two messages",
            ),
            Self::Status(status) => write!(f, "invalid RDMA status {status}: use 0 to 4"),
            Self::Structure { needed, found } => write!(f, "structure of {found} bytes: {needed} needed"),
            Self::Family(family) => write!(f, "unsupported address family {family}"),
            Self::Position(position) => {
                write!(f, "invalid trace point {position}: use up to three of 0 to 2")
            }
        }
    }
}

impl core::error::Error for CmsgError {}

impl From<CmsgError> for RdsError {
    fn from(_: CmsgError) -> Self {
        Self::InvalidArgument
    }
}
