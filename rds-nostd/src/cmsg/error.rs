//! What is wrong with a control message.

use core::fmt;

use crate::error::RdsError;

/// Why control messages, or an option's structure, were not understood. All are `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmsgError {
    /// A header says a length that is shorter than itself, or longer than what is left of the buffer.
    Length {
        /// Where the header begins in the buffer.
        at: usize,
        /// What it says.
        cmsg_len: usize,
        /// What is left there, the header included.
        left: usize,
    },
    /// The payload is too short for its type.
    Payload {
        /// The type, `cmsg_type`.
        kind: i32,
        /// Bytes that the structure has.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// No type that these sockets know.
    Type(i32),
    /// A type that `recvmsg` gives and `sendmsg` does not take.
    OnlyReceived(i32),
    /// The second one where one is allowed: ARGS, an atomic operation, MAP or DEST.
    Twice(i32),
    /// Memory is offered (MAP, DEST) together with an operation (ARGS, an atomic one).
    OfferWithOperation,
    /// A notification with a status that there is none of.
    Status(i32),
    /// A structure that is too short: an option's argument, an address.
    Structure {
        /// Bytes that it has.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// An address of another family than this one's sockets have.
    Family(u16),
    /// The position of a trace that there is none of.
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
                write!(f, "control message {kind} is none of RDS: leave it out, or correct cmsg_level")
            }
            Self::OnlyReceived(kind) => write!(f, "control message {kind} is received only: do not send it"),
            Self::Twice(kind) => {
                write!(f, "control message {kind} is the second of its sort: send one with each message")
            }
            Self::OfferWithOperation => f.write_str(
                "memory is offered (MAP, DEST) beside an operation (ARGS, ATOMIC): use two messages",
            ),
            Self::Status(status) => write!(f, "{status} is no status of an RDMA operation: 0 to 4 are"),
            Self::Structure { needed, found } => {
                write!(f, "a structure of {found} bytes where {needed} are needed")
            }
            Self::Family(family) => write!(f, "address family {family} is not that of these sockets"),
            Self::Position(position) => {
                write!(f, "{position} is no position of a trace: 0, 1 and 2 are, three at most")
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
