//! Errors, with the numbers of the socket calls.

use core::fmt;

use dat_nostd::DatReturn;

use crate::profile::Profile;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $linux:literal, $solaris:literal, $text:literal;)*) => {
        /// Error of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RdsError {
            $($(#[$doc])* $name,)*
            /// The DAT layer failed. `EIO`.
            Dat(DatReturn),
        }

        impl RdsError {
            /// All errors except [`RdsError::Dat`].
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// Returns the `errno` that a program with this profile sees.
            #[must_use]
            pub const fn errno_for(self, profile: Profile) -> i32 {
                let (linux, solaris) = match self {
                    $(Self::$name => ($linux, $solaris),)*
                    Self::Dat(_) => (5, 5),
                };
                profile.select(linux, solaris)
            }
        }

        impl fmt::Display for RdsError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                    Self::Dat(error) => return write!(f, "{error}"),
                })
            }
        }
    };
}

errors! {
    /// The handle is not that of an open socket. `EBADF`.
    BadSocket = 9, 9, "no such socket";
    /// An unusable address or port: unspecified, broadcast or multicast, of another family than
    /// this node's, or a reserved port. Also a configuration that cannot make progress. `EINVAL`.
    InvalidArgument = 22, 22, "invalid address, port or configuration";
    /// Another socket is bound to this address and port. `EADDRINUSE`.
    AddressInUse = 98, 125, "address and port are in use";
    /// The address does not belong to this node. `EADDRNOTAVAIL`.
    AddressNotAvailable = 99, 126, "not an address of this node";
    /// The message is longer than the send buffer (not in the Solaris profile), than
    /// [`MAX_MESSAGE_LEN`](crate::wire::MAX_MESSAGE_LEN), than the frames can hold, or than the
    /// peer accepts: a retry cannot succeed. `EMSGSIZE`.
    MessageSize = 90, 97, "message longer than the limit of the send buffer, the frames or the peer";
    /// No message to receive, or the socket's send buffer is full: call again after
    /// [`Rds::poll`](crate::Rds::poll). `EAGAIN`.
    Again = 11, 11, "would block";
    /// The frames for this peer, or the node's connections, are all in use: call again when
    /// [`Rds::poll_mask`](crate::Rds::poll_mask) returns OUT. `EAGAIN`, because it is not
    /// congestion, Linux's `ENOBUFS`.
    NoBufferSpace = 11, 11, "no frame or connection left";
    /// The destination's port is congested: call again when
    /// [`Rds::poll_mask`](crate::Rds::poll_mask) reports a change. `ENOBUFS` on Linux, `EAGAIN` in
    /// rds(3SOCKET).
    Congested = 105, 11, "destination port is congested";
    /// The socket is not bound, or no destination was given. `ENOTCONN`.
    NotConnected = 107, 134, "not bound, or no destination";
    /// The call or flag is not supported for this socket, or no longer. `EOPNOTSUPP`.
    NotSupported = 95, 122, "not supported";
    /// This node lacks the transport. `ENOPROTOOPT`.
    NoTransport = 92, 99, "transport not supported by this node";
    /// The socket's transport has no types of service, or it has no transport yet. `ENOTTY`.
    NoTypeOfService = 25, 25, "no types of service on this transport";
    /// All regions of the node are offered, or too many notifications of the socket are unread.
    /// Only the program can free them, by a release or a [read](crate::Rds::recvmsg), so a wait is
    /// useless. `EAGAIN`, as Linux returns for regions.
    Exhausted = 11, 11, "no region free, or too many unread notifications";
    /// The destination has no address. `EDESTADDRREQ`.
    NoDestination = 89, 96, "the destination has no address";
    /// An IPv6 destination that is not unicast. `EPROTOTYPE`.
    NotUnicast = 91, 98, "destination is not unicast";
    /// Messages of the socket were dropped: their peer was unreachable, and other peers needed its
    /// entry. `EHOSTUNREACH`.
    Unreachable = 113, 148, "messages to an unreachable peer were dropped";
    /// An RDMA operation has more local segments than the table, or all entries for registered
    /// memory are in use. `ENOMEM`.
    NoMemory = 12, 12, "no entry for memory left";
    /// All sockets are in use. `ENFILE` on Linux, `EMFILE` in rds(3SOCKET).
    TooManySockets = 23, 24, "no socket left";
    /// The address family is not that of RDS. `EAFNOSUPPORT`.
    AddressFamily = 97, 124, "address family not supported";
    /// The socket type is not `SOCK_SEQPACKET`. `ESOCKTNOSUPPORT` on Linux, `EPROTOTYPE` in
    /// rds(3SOCKET).
    SocketType = 94, 98, "socket type not supported";
    /// The protocol is not 0. `ESOCKTNOSUPPORT` on Linux, `EPROTONOSUPPORT` in rds(3SOCKET).
    Protocol = 94, 120, "protocol not supported";
    /// The adapter is gone. `ENODEV`.
    NoDevice = 19, 19, "no adapter";
    /// No interface has that name. `ENODEV` on Linux, `ENXIO` in rds(3SOCKET).
    NoInterface = 19, 6, "no such interface";
}

impl RdsError {
    /// Returns the `errno` of Linux's `AF_RDS`.
    #[must_use]
    pub const fn errno(self) -> i32 {
        self.errno_for(Profile::Linux)
    }
}

impl From<DatReturn> for RdsError {
    fn from(error: DatReturn) -> Self {
        Self::Dat(error)
    }
}

impl core::error::Error for RdsError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_have_each_systems_numbers() {
        let numbers = |error: RdsError| (error.errno(), error.errno_for(Profile::Solaris));
        let expected = [
            (RdsError::Congested, (105, 11)),
            (RdsError::Again, (11, 11)),
            (RdsError::NotConnected, (107, 134)),
            (RdsError::AddressInUse, (98, 125)),
            (RdsError::AddressNotAvailable, (99, 126)),
            (RdsError::MessageSize, (90, 97)),
            (RdsError::NotSupported, (95, 122)),
            (RdsError::NoTransport, (92, 99)),
            (RdsError::AddressFamily, (97, 124)),
            (RdsError::SocketType, (94, 98)),
            (RdsError::NoDevice, (19, 19)),
        ];
        for (error, both) in expected {
            assert_eq!(numbers(error), both, "{error}");
        }
        for error in RdsError::ALL {
            assert!(
                !error.to_string().is_empty() && error.errno() > 0 && error.errno_for(Profile::Solaris) > 0
            );
        }
    }
}
