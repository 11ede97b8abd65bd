//! Whose sockets these look like: Linux's `AF_RDS` or those of rds(3SOCKET). One implementation, two sets of numbers and of rules
//! for buffers, message lengths, `poll` and a full destination.

/// What a program expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As Linux: `SO_SNDBUF` and `SO_RCVBUF` are doubled and half of them is used; a message is not longer than the send buffer; OUT
    /// while the send buffer has room; ENOBUFS for a congested destination; an RDMA operation may name more of the peer's memory than it has
    /// of its own.
    #[default]
    Linux,
    /// As rds(3SOCKET): buffers as they are given; a message may be longer than the send buffer, up to
    /// [`longest_message`](crate::Rds::longest_message); OUT always; EAGAIN for a congested destination; an RDMA operation names as much
    /// of the peer's memory as it has of its own.
    Solaris,
}

impl Profile {
    /// The address family of `socket()`: `AF_RDS`, or `AF_INET_OFFLOAD`.
    #[must_use]
    pub const fn address_family(self) -> i32 {
        match self {
            Self::Linux => 21,
            Self::Solaris => 30,
        }
    }

    /// `SOCK_SEQPACKET`.
    #[must_use]
    pub const fn socket_type(self) -> i32 {
        match self {
            Self::Linux => 5,
            Self::Solaris => 6,
        }
    }

    /// `sin_family` of addresses: `AF_INET`, or `AF_INET_OFFLOAD`.
    #[must_use]
    pub const fn sin_family(self) -> u16 {
        match self {
            Self::Linux => 2,
            Self::Solaris => 30,
        }
    }

    /// `sin6_family` of IPv6 addresses: `AF_INET6`. rds(3SOCKET) has IPv4 style addresses only.
    #[must_use]
    pub const fn sin6_family(self) -> Option<u16> {
        match self {
            Self::Linux => Some(10),
            Self::Solaris => None,
        }
    }

    /// `SOL_RDS`.
    #[must_use]
    pub const fn sol_rds(self) -> i32 {
        match self {
            Self::Linux => 276,
            Self::Solaris => 272,
        }
    }
}

/// The least that Linux makes of `SO_SNDBUF` and `SO_RCVBUF`, bytes of which half is used: `SOCK_MIN_SNDBUF`, `SOCK_MIN_RCVBUF` in
/// `include/net/sock.h`, on 64-bit machines.
pub(crate) const MIN_SNDBUF: usize = 4608;
pub(crate) const MIN_RCVBUF: usize = 2304;

/// What can be used of a buffer that a program asked for.
pub(crate) fn usable(profile: Profile, asked: u32, most: usize, least: usize) -> usize {
    let asked = asked as usize;
    match profile {
        Profile::Linux => (asked.min(most) * 2).max(least) / 2,
        Profile::Solaris => asked,
    }
}

/// What a program is told of a buffer.
pub(crate) fn reported(profile: Profile, usable: usize) -> u32 {
    let bytes = match profile {
        Profile::Linux => usable.saturating_mul(2),
        Profile::Solaris => usable,
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_counted_as_each_system_does() {
        for (asked, used, told) in [
            (0, 2304, 4608),
            (1, 2304, 4608),
            (2305, 2305, 4610),
            (212_992, 212_992, 425_984),
            (u32::MAX, 212_992, 425_984),
        ] {
            assert_eq!(usable(Profile::Linux, asked, 212_992, MIN_SNDBUF), used, "{asked}");
            assert_eq!(reported(Profile::Linux, used), told, "{asked}");
        }
        assert_eq!(usable(Profile::Linux, 0, 212_992, MIN_RCVBUF), 1152);
        assert_eq!(usable(Profile::Solaris, 7, 212_992, MIN_SNDBUF), 7);
        assert_eq!((reported(Profile::Solaris, 7), reported(Profile::Solaris, usize::MAX)), (7, u32::MAX));
        // What Linux reports without being asked.
        assert_eq!(reported(Profile::Linux, 106_496), 212_992);
    }
}
