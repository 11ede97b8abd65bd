//! The interfaces of an RDS socket, as rds(3SOCKET) lists them by `SIOCGIFCONF`, `SIOCGIFNUM`,
//! `SIOCGIFMTU` and `SIOCGIFFLAGS`: loopback, and the interface of RDS.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dat_nostd::{Adapter, Platform};

use crate::error::RdsError;
use crate::io::Rds;
use crate::socket::address;

/// MTU of the loopback interface, bytes.
const LOOPBACK_MTU: u32 = 8232;

bitflags::bitflags! {
    /// `SIOCGIFFLAGS`, with the values of rds(3SOCKET)'s system.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InterfaceFlags: u64 {
        /// Configured.
        const UP = 0x0001;
        /// Can broadcast.
        const BROADCAST = 0x0002;
        /// Loopback.
        const LOOPBACK = 0x0008;
        /// The link is up.
        const RUNNING = 0x0040;
        /// Can multicast.
        const MULTICAST = 0x0800;
        /// Has an IPv4 address.
        const IPV4 = 0x0100_0000;
        /// Has an IPv6 address.
        const IPV6 = 0x0200_0000;
    }
}

/// An interface of `SIOCGIFCONF`, with its MTU and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface<'a> {
    /// `lifr_name`.
    pub name: &'a str,
    /// Address.
    pub address: IpAddr,
    /// Maximum bytes of an IP packet. RDS messages may be longer.
    pub mtu: u32,
    /// Flags.
    pub flags: InterfaceFlags,
}

impl Rds<'_> {
    /// Returns all interfaces (`SIOCGIFCONF`; their number is `SIOCGIFNUM`).
    pub fn interfaces<'a, P: Platform>(&self, adapter: &Adapter<'a, P>) -> [Interface<'a>; 2] {
        let own = address(self.protocol().local);
        let (loopback, family) = match own {
            IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::LOCALHOST), InterfaceFlags::IPV4),
            IpAddr::V6(_) => (IpAddr::V6(Ipv6Addr::LOCALHOST), InterfaceFlags::IPV6),
        };
        let up = InterfaceFlags::UP | InterfaceFlags::MULTICAST | family;
        let mut flags = up | InterfaceFlags::BROADCAST;
        flags.set(InterfaceFlags::RUNNING, adapter.is_up());
        [
            Interface {
                name: "lo0",
                address: loopback,
                mtu: LOOPBACK_MTU,
                flags: up | InterfaceFlags::LOOPBACK | InterfaceFlags::RUNNING,
            },
            Interface { name: adapter.name(), address: own, mtu: adapter.ip_mtu(), flags },
        ]
    }

    /// Returns the interface with this name, for `SIOCGIFMTU` and `SIOCGIFFLAGS`.
    ///
    /// # Errors
    /// [`RdsError::NoInterface`].
    pub fn interface<'a, P: Platform>(
        &self,
        adapter: &Adapter<'a, P>,
        name: &str,
    ) -> Result<Interface<'a>, RdsError> {
        self.interfaces(adapter)
            .into_iter()
            .find(|interface| interface.name == name)
            .ok_or(RdsError::NoInterface)
    }
}
