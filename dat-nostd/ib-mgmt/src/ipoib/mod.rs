//! IP over InfiniBand, datagram mode: encapsulation header, hardware addresses, ARP, broadcast
//! group (RFC 4391).

mod neighbour;

use core::net::Ipv4Addr;

use ib_types::{Gid, PKey, QpNumber};

use crate::view::put;

pub use neighbour::{
    Claim, HardwareAddress, Neighbour, NeighbourAction, NeighbourConfig, NeighbourCounters, NeighbourLookup,
    NeighbourSlot, NeighbourState, Neighbours, NetworkAddress,
};

/// Bytes of the encapsulation header before every IPoIB payload.
pub const ENCAP_LEN: usize = 4;
/// Bytes of an IPoIB hardware address.
pub const HW_ADDR_LEN: usize = 20;
/// Bytes of an IPv4 ARP message over IPoIB.
pub const ARP_LEN: usize = 8 + 2 * (HW_ADDR_LEN + 4);
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// ARP hardware type of InfiniBand.
pub const ARP_HARDWARE_INFINIBAND: u16 = 32;

/// The encapsulation header: EtherType and two reserved bytes.
pub const fn encap(ethertype: u16) -> [u8; ENCAP_LEN] {
    let [a, b] = ethertype.to_be_bytes();
    [a, b, 0, 0]
}

/// Splits a frame into EtherType and payload; `None` when it is too short.
pub fn decap(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (head, payload) = frame.split_first_chunk::<ENCAP_LEN>()?;
    Some((u16::from_be_bytes([head[0], head[1]]), payload))
}

/// A 20-byte IPoIB hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HwAddr {
    /// Flags; the top bit says that the interface can do connected mode over RC, the next one over
    /// UC.
    pub flags: u8,
    /// QP number, 24 bits.
    pub qpn: QpNumber,
    /// Port GID.
    pub gid: Gid,
}

impl HwAddr {
    /// From the wire bytes.
    pub fn from_bytes(bytes: &[u8; HW_ADDR_LEN]) -> HwAddr {
        let [flags, q0, q1, q2, gid @ ..] = *bytes;
        HwAddr { flags, qpn: QpNumber::new(u32::from_be_bytes([0, q0, q1, q2])), gid: Gid(gid) }
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; HW_ADDR_LEN] {
        let mut b = [0; HW_ADDR_LEN];
        put(&mut b, 0, &self.qpn.get().to_be_bytes());
        b[0] = self.flags;
        put(&mut b, 4, &self.gid.0);
        b
    }
}

/// The multicast GID of a partition's IPv4 broadcast group, link-local scope:
/// ff12:401b:pkey::ffff:ffff. The partition key always has its full-member bit set here.
pub const fn broadcast_mgid(pkey: PKey) -> Gid {
    let prefix = 0xff12_401b_0000_0000 | (pkey.full_member().get() as u64) << 16;
    Gid::new(prefix, 0xffff_ffff)
}

/// The multicast GID of an IPv4 multicast group: the group's low 28 bits below the partition key
/// (RFC 4391, section 4).
pub const fn multicast_mgid(pkey: PKey, group: Ipv4Addr) -> Gid {
    let prefix = 0xff12_401b_0000_0000 | (pkey.full_member().get() as u64) << 16;
    Gid::new(prefix, group.to_bits() as u64 & 0x0fff_ffff)
}

/// ARP operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Requests the owner of an address.
    Request,
    /// Is at.
    Reply,
}

/// An IPv4 ARP message over IPoIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's hardware address.
    pub sender_hw: HwAddr,
    /// The sender's IP address.
    pub sender_ip: Ipv4Addr,
    /// The target's hardware address; `None` (all zero) in a request.
    pub target_hw: Option<HwAddr>,
    /// The target's IP address.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads an ARP message (after the encapsulation header); `None` when it is not one of IPv4
    /// over InfiniBand.
    pub fn parse(bytes: &[u8]) -> Option<Arp> {
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let (sender_hw, rest) = rest.split_first_chunk::<HW_ADDR_LEN>()?;
        let (sender_ip, rest) = rest.split_first_chunk::<4>()?;
        let (target_hw, rest) = rest.split_first_chunk::<HW_ADDR_LEN>()?;
        let (target_ip, _) = rest.split_first_chunk::<4>()?;
        let operation = match head {
            [0, 32, 8, 0, 20, 4, 0, 1] => ArpOperation::Request,
            [0, 32, 8, 0, 20, 4, 0, 2] => ArpOperation::Reply,
            _ => return None,
        };
        Some(Arp {
            operation,
            sender_hw: HwAddr::from_bytes(sender_hw),
            sender_ip: Ipv4Addr::from(*sender_ip),
            target_hw: (*target_hw != [0; HW_ADDR_LEN]).then(|| HwAddr::from_bytes(target_hw)),
            target_ip: Ipv4Addr::from(*target_ip),
        })
    }

    /// The wire bytes, without the encapsulation header.
    pub fn to_bytes(&self) -> [u8; ARP_LEN] {
        let mut b = [0; ARP_LEN];
        let operation = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        put(&mut b, 0, &[0, ARP_HARDWARE_INFINIBAND as u8, 8, 0, 20, 4, 0, operation]);
        put(&mut b, 8, &self.sender_hw.to_bytes());
        put(&mut b, 28, &self.sender_ip.octets());
        if let Some(hw) = &self.target_hw {
            put(&mut b, 32, &hw.to_bytes());
        }
        put(&mut b, 52, &self.target_ip.octets());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broadcast_group() {
        assert_eq!(broadcast_mgid(PKey::new(0x7fff)).to_string(), "ff12:401b:ffff::ffff:ffff");
        assert!(broadcast_mgid(PKey::new(0x8001)).is_multicast());
        assert_eq!(broadcast_mgid(PKey::new(1)).0[4..6], [0x80, 0x01]);
        let all_hosts = multicast_mgid(PKey::DEFAULT, Ipv4Addr::new(224, 0, 0, 1));
        assert_eq!(all_hosts.to_string(), "ff12:401b:ffff::1");
        let group = multicast_mgid(PKey::new(0x8001), Ipv4Addr::new(239, 1, 2, 3));
        assert_eq!(group.to_string(), "ff12:401b:8001::f01:203");
    }

    #[test]
    fn request_literal() {
        let arp = Arp {
            operation: ArpOperation::Request,
            sender_hw: HwAddr { flags: 0x80, qpn: QpNumber::new(0x010203), gid: Gid([0xfe; 16]) },
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_hw: None,
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        };
        let b = arp.to_bytes();
        assert_eq!(b[..12], [0, 32, 8, 0, 20, 4, 0, 1, 0x80, 1, 2, 3]);
        assert_eq!(b[28..32], [10, 0, 0, 1]);
        assert_eq!(b[32..52], [0; 20]);
        assert_eq!(b[52..], [10, 0, 0, 2]);
        assert_eq!(Arp::parse(&b), Some(arp));
        let mut frame = encap(ETHERTYPE_ARP).to_vec();
        frame.extend(b);
        assert_eq!(decap(&frame), Some((ETHERTYPE_ARP, &b[..])));
        assert_eq!(decap(&[8, 6, 0]), None);
        let mut ethernet = b;
        ethernet[1] = 1;
        assert_eq!(Arp::parse(&ethernet), None);
    }

    proptest! {
        #[test]
        fn round_trip(reply: bool, s: [u8; 20], t: [u8; 20], sip: [u8; 4], tip: [u8; 4]) {
            let target = (t != [0; 20]).then(|| HwAddr::from_bytes(&t));
            let operation = if reply { ArpOperation::Reply } else { ArpOperation::Request };
            let arp = Arp {
                operation, sender_hw: HwAddr::from_bytes(&s), sender_ip: sip.into(), target_hw: target,
                target_ip: tip.into(),
            };
            prop_assert_eq!(Arp::parse(&arp.to_bytes()), Some(arp));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Arp::parse(&bytes);
            let _ = decap(&bytes);
        }
    }
}
