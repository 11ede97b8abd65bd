//! Profiles of sockets: Linux's `AF_RDS`, or rds(3SOCKET). The implementation is common; numbers,
//! and the rules for buffers, message lengths, `poll` and a full destination, differ.

/// System that a program is written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Linux: `SO_SNDBUF` and `SO_RCVBUF` are doubled, and half of them is usable. A message fits
    /// in the send buffer. OUT while the send buffer has space. ENOBUFS for a congested
    /// destination. An RDMA operation may name more remote than local memory.
    #[default]
    Linux,
    /// rds(3SOCKET): buffers as requested. A message may exceed the send buffer, up to
    /// [`longest_message`](crate::Rds::longest_message). OUT always. EAGAIN for a congested
    /// destination. An RDMA operation names as much remote as local memory.
    Solaris,
}

impl Profile {
    /// Returns the value of this system.
    pub(crate) const fn select<T: Copy>(self, linux: T, solaris: T) -> T {
        match self {
            Self::Linux => linux,
            Self::Solaris => solaris,
        }
    }

    /// Returns the address family of `socket()`: `AF_RDS`, or `AF_INET_OFFLOAD`.
    #[must_use]
    pub const fn address_family(self) -> i32 {
        self.select(21, 30)
    }

    /// Returns `SOCK_SEQPACKET`.
    #[must_use]
    pub const fn socket_type(self) -> i32 {
        self.select(5, 6)
    }

    /// Returns `sin_family` of addresses: `AF_INET`, or `AF_INET_OFFLOAD`.
    #[must_use]
    pub const fn sin_family(self) -> u16 {
        self.select(2, 30)
    }

    /// Returns `sin6_family` of IPv6 addresses: `AF_INET6`. rds(3SOCKET) has IPv4 addresses only.
    #[must_use]
    pub const fn sin6_family(self) -> Option<u16> {
        self.select(Some(10), None)
    }

    /// Returns `SOL_RDS`.
    #[must_use]
    pub const fn sol_rds(self) -> i32 {
        self.select(276, 272)
    }
}

/// Linux's minimum of `SO_SNDBUF` and `SO_RCVBUF` in bytes, of which half is usable:
/// `SOCK_MIN_SNDBUF`, `SOCK_MIN_RCVBUF` in `include/net/sock.h`, on 64-bit machines.
pub(crate) const MIN_SNDBUF: usize = 4608;
pub(crate) const MIN_RCVBUF: usize = 2304;

/// Returns the usable bytes of a requested buffer.
pub(crate) fn usable(profile: Profile, asked: u32, most: usize, least: usize) -> usize {
    let asked = asked as usize;
    profile.select((asked.min(most) * 2).max(least) / 2, asked)
}

/// Returns the buffer's bytes as `getsockopt` reports them.
pub(crate) fn reported(profile: Profile, usable: usize) -> u32 {
    u32::try_from(profile.select(usable.saturating_mul(2), usable)).unwrap_or(u32::MAX)
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
        // Linux's default.
        assert_eq!(reported(Profile::Linux, 106_496), 212_992);
    }
}
