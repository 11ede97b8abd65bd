//! Errors, each with the number that a socket call would give.

use core::fmt;

use dat_nostd::DatReturn;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdsError {
    /// The handle names no open socket.
    BadSocket,
    /// An address or port that cannot be used here: unspecified, broadcast or multicast, of another family than this node's,
    /// a reserved port. Or a configuration with which nothing would move.
    InvalidArgument,
    /// Another socket is bound to this address and port.
    AddressInUse,
    /// The address is not this node's.
    AddressNotAvailable,
    /// Longer than the send buffer, than [`MAX_MESSAGE_LEN`](crate::wire::MAX_MESSAGE_LEN), or than ever fits into the
    /// frames: sending it again later is of no use.
    MessageSize,
    /// Nothing to receive, or the socket's send buffer is full: call again after [`Rds::poll`](crate::Rds::poll).
    Again,
    /// The node's frames or connections are all in use: call again after [`Rds::poll`](crate::Rds::poll).
    NoBufferSpace,
    /// The destination's port is congested: call again when [`Rds::poll_mask`](crate::Rds::poll_mask) tells that it may be
    /// better. `ENOBUFS` on Linux, `EAGAIN` in rds(3SOCKET).
    Congested,
    /// The socket is not bound, or no destination was given.
    NotConnected,
    /// The call does not exist for these sockets, or not any more.
    NotSupported,
    /// That transport is not here.
    NoTransport,
    /// The socket's transport has no types of service, or it has no transport yet.
    NoTypeOfService,
    /// All regions or RDMA operations of the node are in use.
    NoMemory,
    /// All sockets are in use.
    TooManySockets,
    /// The layer below refused.
    Dat(DatReturn),
}

impl RdsError {
    /// The `errno` of Linux's `AF_RDS` for the same case.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::BadSocket => 9,
            Self::InvalidArgument => 22,
            Self::AddressInUse => 98,
            Self::AddressNotAvailable => 99,
            Self::MessageSize => 90,
            Self::Again => 11,
            Self::NoBufferSpace => 105,
            Self::NoMemory => 12,
            Self::Congested => 105,
            Self::NotConnected => 107,
            Self::NotSupported => 95,
            Self::NoTransport => 92,
            Self::NoTypeOfService => 25,
            Self::TooManySockets => 23,
            Self::Dat(_) => 5,
        }
    }
}

impl From<DatReturn> for RdsError {
    fn from(error: DatReturn) -> Self {
        Self::Dat(error)
    }
}

impl fmt::Display for RdsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadSocket => "no such socket",
            Self::InvalidArgument => "invalid address, port or configuration",
            Self::AddressInUse => "address and port are in use",
            Self::AddressNotAvailable => "not an address of this node",
            Self::MessageSize => "message longer than the send buffer or the frames take",
            Self::Again => "would block",
            Self::NoBufferSpace => "no frame or connection left",
            Self::NoMemory => "no region or operation left",
            Self::Congested => "destination port is congested",
            Self::NotConnected => "not bound, or no destination",
            Self::NotSupported => "not supported",
            Self::NoTransport => "no such transport here",
            Self::NoTypeOfService => "no types of service here",
            Self::TooManySockets => "no socket left",
            Self::Dat(error) => return write!(f, "{error}"),
        })
    }
}

impl core::error::Error for RdsError {}
