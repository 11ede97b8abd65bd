//! Global identifiers, MAC addresses and MTUs.

use core::fmt;

use crate::Guid;

/// Global identifier of a port or multicast group, in wire order (IBTA 1.3, 4.1.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID: none.
    pub const ZERO: Self = Self([0; 16]);
    /// The prefix of a subnet without a manager's choice: fe80::/64.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Returns the IPv4 address of an IPv4-mapped GID (RFC 4291 2.5.5.2).
    pub const fn ipv4(self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Returns the IPv4-mapped GID of an IPv4 address, as RoCE v2 has it (RFC 4291 2.5.5.2).
    #[must_use]
    pub const fn from_ipv4([a, b, c, d]: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Returns the link-local GID of a MAC address, whose lower half is its EUI-64 (RFC 4291
    /// appendix A).
    #[must_use]
    pub const fn link_local(MacAddress([a, b, c, d, e, f]): MacAddress) -> Self {
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the MAC address in a link-local GID that was made from one ([`Gid::link_local`]);
    /// `None` for all other GIDs.
    #[must_use]
    pub const fn link_local_mac(self) -> Option<MacAddress> {
        match self.0 {
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
                Some(MacAddress([a ^ 2, b, c, d, e, f]))
            }
            _ => None,
        }
    }

    /// A GID from its two halves: the subnet's prefix and the interface identifier, which for a
    /// port is its GUID.
    pub const fn new(prefix: u64, interface_id: u64) -> Self {
        Self((((prefix as u128) << 64) | interface_id as u128).to_be_bytes())
    }

    /// The subnet prefix.
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower half.
    pub const fn interface_id(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// The GUID of the port that has this GID.
    pub const fn guid(self) -> Guid {
        Guid::new(self.interface_id())
    }

    /// Returns whether it names a multicast group.
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// Returns whether it is the mapped address of an IPv4 group, 224.0.0.0 to 239.255.255.255, as
    /// RoCE v2 has it.
    #[must_use]
    pub const fn is_ipv4_multicast(self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224..=239, _, _, _])
    }

    /// Returns whether all bytes are zero.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&core::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// MAC address of an Ethernet port or group, in wire order (IEEE 802.3 3.2.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of all ports.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns the address whose first two bytes are `high`, as layouts of the PRM divide it.
    #[must_use]
    pub const fn from_halves(high: u16, low: u32) -> Self {
        let ([a, b], [c, d, e, f]) = (high.to_be_bytes(), low.to_be_bytes());
        Self([a, b, c, d, e, f])
    }

    /// Returns the first two bytes and the others.
    #[must_use]
    pub const fn halves(self) -> (u16, u32) {
        let [a, b, c, d, e, f] = self.0;
        (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
    }

    /// Returns whether it names a group of ports, or all of them.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether it names all ports.
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddress({self})")
    }
}

/// Path MTU: payload bytes of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// From InfiniBand's code; `None` for a code that is no MTU.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// InfiniBand's code, which the device uses as well.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// From a number of bytes; `None` if that is no MTU.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_gid_is_prefix_and_guid() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, 0x0002_c903_0012_3456);
        assert_eq!(gid.0, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0x12, 0x34, 0x56]);
        assert_eq!((gid.prefix(), gid.guid()), (Gid::DEFAULT_PREFIX, Guid::new(0x0002_c903_0012_3456)));
        assert!(!gid.is_multicast() && !gid.is_zero());
        assert!(Gid::ZERO.is_zero() && Gid([0xff; 16]).is_multicast());
        assert_eq!(gid.to_string(), "fe80::2:c903:12:3456");
    }

    #[test]
    fn ethernet_gids_are_ip_addresses() {
        let mapped = Gid::from_ipv4([10, 0, 0, 7]);
        assert_eq!((mapped.to_string().as_str(), mapped.ipv4()), ("::ffff:10.0.0.7", Some([10, 0, 0, 7])));
        let mac = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 1]);
        let local = Gid::link_local(mac);
        assert_eq!((local.link_local_mac(), mapped.link_local_mac()), (Some(mac), None));
        assert_eq!(Gid::new(Gid::DEFAULT_PREFIX, 7).link_local_mac(), None);
        assert_eq!((local.to_string().as_str(), local.ipv4()), ("fe80::5054:ff:fe12:3401", None));
    }

    #[test]
    fn a_mac_address_names_a_port_or_a_group() {
        let port = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 1]);
        let group = MacAddress([1, 0, 0x5e, 0, 0, 0xfb]);
        assert_eq!((port.is_multicast(), group.is_multicast()), (false, true));
        assert_eq!((group.is_broadcast(), MacAddress::BROADCAST.is_broadcast()), (false, true));
        assert!(MacAddress::BROADCAST.is_multicast());
        assert_eq!(port.to_string(), "52:54:00:12:34:01");
    }

    #[test]
    fn mtus_have_codes_and_bytes() {
        for code in 1..=5 {
            let mtu = Mtu::from_code(code).expect("an MTU");
            assert_eq!((mtu.code(), Mtu::from_bytes(mtu.bytes())), (code, Some(mtu)));
        }
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6), Mtu::from_bytes(1500)), (None, None, None));
    }
}
