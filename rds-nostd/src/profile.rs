//! Whose sockets these look like: Linux's `AF_RDS` or those of rds(3SOCKET). One implementation, two sets of numbers and of rules
//! for buffers, message lengths, `poll` and a full destination.

use dat_nostd::{Adapter, Platform};

use crate::error::RdsError;
use crate::node::Rds;
use crate::socket::{PollRule, SocketHandle};

/// What a program expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As Linux: `SO_SNDBUF` and `SO_RCVBUF` are doubled and half of them is used; a message is not longer than the send buffer; OUT
    /// while the send buffer has room; ENOBUFS for a congested destination.
    #[default]
    Linux,
    /// As rds(3SOCKET): buffers as they are given; a message may be longer than the send buffer, up to
    /// [`longest_message`](Rds::longest_message); OUT always; EAGAIN for a congested destination.
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
const MIN_SNDBUF: usize = 4608;
const MIN_RCVBUF: usize = 2304;

impl Rds<'_> {
    /// `socket(family, kind, protocol)`: a new socket of a profile.
    ///
    /// # Errors
    /// [`RdsError::AddressFamily`], [`RdsError::SocketType`], [`RdsError::Protocol`]: not the ones of RDS.
    /// [`RdsError::NoDevice`]: the adapter has failed. [`RdsError::TooManySockets`].
    pub fn socket_of<P: Platform>(
        &mut self,
        adapter: &Adapter<'_, P>,
        profile: Profile,
        family: i32,
        kind: i32,
        protocol: i32,
    ) -> Result<SocketHandle, RdsError> {
        if family != profile.address_family() {
            return Err(RdsError::AddressFamily);
        }
        if kind != profile.socket_type() {
            return Err(RdsError::SocketType);
        }
        if protocol != 0 {
            return Err(RdsError::Protocol);
        }
        if adapter.is_dead() {
            return Err(RdsError::NoDevice);
        }
        let handle = self.socket()?;
        self.set_profile(handle, profile)?;
        Ok(handle)
    }

    /// Chooses what the program of a socket expects, and with it the rules of [`poll_mask`](Self::poll_mask). A new socket has the
    /// profile of the node's configuration.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_profile(&mut self, handle: SocketHandle, profile: Profile) -> Result<(), RdsError> {
        let socket = self.protocol.sockets.open_mut(handle)?;
        socket.profile = profile;
        socket.poll_rule = profile.into();
        Ok(())
    }

    /// What the program of a socket expects.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn profile(&self, handle: SocketHandle) -> Result<Profile, RdsError> {
        Ok(self.protocol.sockets.open(handle)?.profile)
    }

    /// `setsockopt(SO_SNDBUF)`. Linux: so many bytes can be used, at most
    /// [`RdsConfig::buffer_max`](crate::RdsConfig::buffer_max) and at least 2304. Solaris: as given.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_sndbuf(&mut self, handle: SocketHandle, bytes: u32) -> Result<(), RdsError> {
        let most = self.protocol.config.buffer_max;
        let profile = self.profile(handle)?;
        self.set_send_buffer(handle, usable(profile, bytes, most, MIN_SNDBUF))
    }

    /// `getsockopt(SO_SNDBUF)`. Linux: twice what can be used. Solaris: what can be used.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn sndbuf(&self, handle: SocketHandle) -> Result<u32, RdsError> {
        Ok(reported(self.profile(handle)?, self.send_buffer(handle)?))
    }

    /// `setsockopt(SO_RCVBUF)`. Linux: so many bytes can be used, at most
    /// [`RdsConfig::buffer_max`](crate::RdsConfig::buffer_max) and at least 1152. Solaris: as given.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn set_rcvbuf<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        handle: SocketHandle,
        bytes: u32,
    ) -> Result<(), RdsError> {
        let most = self.protocol.config.buffer_max;
        let profile = self.profile(handle)?;
        self.set_receive_buffer(adapter, handle, usable(profile, bytes, most, MIN_RCVBUF))
    }

    /// `getsockopt(SO_RCVBUF)`. Linux: twice what can be used. Solaris: what can be used.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub fn rcvbuf(&self, handle: SocketHandle) -> Result<u32, RdsError> {
        Ok(reported(self.profile(handle)?, self.receive_buffer(handle)?))
    }
}

impl From<Profile> for PollRule {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Linux => Self::Linux,
            Profile::Solaris => Self::Solaris,
        }
    }
}

fn usable(profile: Profile, asked: u32, most: usize, least: usize) -> usize {
    let asked = asked as usize;
    match profile {
        Profile::Linux => (asked.min(most) * 2).max(least) / 2,
        Profile::Solaris => asked,
    }
}

fn reported(profile: Profile, usable: usize) -> u32 {
    let bytes = match profile {
        Profile::Linux => usable.saturating_mul(2),
        Profile::Solaris => usable,
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

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
