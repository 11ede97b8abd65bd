//! Frames of Ethernet ports besides RoCE: headers, ARP (RFC 826), and IPv6 neighbour discovery
//! (RFC 4861), in which a [`Gid`] is an IPv6 or an IPv4-mapped address.

use ib_types::{Gid, MacAddress, VlanId};

use crate::ipoib::{ArpOperation, Claim, ETHERTYPE_ARP, ETHERTYPE_IPV6};
use crate::membership::sum;
use crate::view::put;

/// Bytes of an Ethernet header without a VLAN tag.
pub const HEADER_LEN: usize = 14;
/// Bytes of an Ethernet header with a VLAN tag.
pub const TAGGED_HEADER_LEN: usize = HEADER_LEN + 4;
/// EtherType of a VLAN tag (IEEE 802.1Q).
const VLAN_TAG: [u8; 2] = [0x81, 0];
/// Bytes of an IPv4 ARP message over Ethernet.
pub const ARP_LEN: usize = 28;
/// Bytes of a solicitation or advertisement with the option of a MAC address: IPv6, ICMPv6, option.
pub const DISCOVERY_LEN: usize = IPV6_LEN + 24 + OPTION_LEN;

pub(crate) const IPV6_LEN: usize = 40;
const OPTION_LEN: usize = 8;
pub(crate) const ICMPV6: u8 = 58;
/// ICMPv6 types.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options: MAC address of the sender of a solicitation, and of the target of an advertisement.
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
/// Flags of an advertisement: it is a reply, and replaces the stored address.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Messages that a router has forwarded are none (RFC 4861 7.1).
const NOT_FORWARDED: u8 = 255;
/// ARP over Ethernet of IPv4: hardware, protocol, lengths.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// All nodes of the link, ff02::1.
pub const ALL_NODES: Gid = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Destination.
    pub to: MacAddress,
    /// Source.
    pub from: MacAddress,
    /// VLAN of the tag; `None` without a tag, and for a tag with a priority only.
    pub vlan: Option<VlanId>,
    /// EtherType of the payload.
    pub ether_type: u16,
}

impl Header {
    /// Returns the bytes of the header, and their number.
    #[must_use]
    pub fn encode(&self) -> ([u8; TAGGED_HEADER_LEN], usize) {
        let (MacAddress([t0, t1, t2, t3, t4, t5]), MacAddress([a, b, c, d, e, f])) = (self.to, self.from);
        let [high, low] = self.ether_type.to_be_bytes();
        match self.vlan.map(|vlan| (VLAN_TAG, vlan.get().to_be_bytes())) {
            None => ([t0, t1, t2, t3, t4, t5, a, b, c, d, e, f, high, low, 0, 0, 0, 0], HEADER_LEN),
            Some(([tag, of], [vlan, id])) => {
                ([t0, t1, t2, t3, t4, t5, a, b, c, d, e, f, tag, of, vlan, id, high, low], TAGGED_HEADER_LEN)
            }
        }
    }

    /// Parses the header at the start of a frame. Returns it with the number of its bytes, or `None`
    /// if the frame is too short.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<(Self, usize)> {
        let (&[t0, t1, t2, t3, t4, t5, a, b, c, d, e, f, high, low], rest) =
            frame.split_first_chunk::<HEADER_LEN>()?;
        let to = MacAddress([t0, t1, t2, t3, t4, t5]);
        let from = MacAddress([a, b, c, d, e, f]);
        if [high, low] != VLAN_TAG {
            return Some((
                Self { to, from, vlan: None, ether_type: u16::from_be_bytes([high, low]) },
                HEADER_LEN,
            ));
        }
        let &[tag_high, tag_low, high, low] = rest.first_chunk()?;
        let vlan = u16::from_be_bytes([tag_high, tag_low]) & 0xfff;
        let vlan = (vlan != 0).then(|| VlanId::new(vlan));
        Some((Self { to, from, vlan, ether_type: u16::from_be_bytes([high, low]) }, TAGGED_HEADER_LEN))
    }
}

/// Returns the MAC address of a group: 33:33 and the low 32 bits of an IPv6 address (RFC 2464 7),
/// 01:00:5e and the low 23 bits of an IPv4 address (RFC 1112 6.4).
#[must_use]
pub const fn group_mac(group: Gid) -> MacAddress {
    let [.., a, b, c, d] = group.0;
    if group.ipv4().is_some() {
        MacAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    } else {
        MacAddress([0x33, 0x33, a, b, c, d])
    }
}

/// Returns the group in which the owner of an IPv6 address is asked: ff02::1:ff00:0 with the low 24
/// bits of the address (RFC 4291 2.7.1).
#[must_use]
pub const fn solicited_node(address: Gid) -> Gid {
    let [.., b, c, d] = address.0;
    Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, b, c, d])
}

/// The own addresses as messages have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The IP address.
    pub address: Gid,
    /// The MAC address.
    pub mac: MacAddress,
}

/// A message that requests or announces a MAC address, behind the header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    bytes: [u8; DISCOVERY_LEN],
    ether_type: u16,
}

impl Message {
    /// Returns the request for the MAC address of `target`: ARP if that is an IPv4 address.
    #[must_use]
    pub fn request(own: Sender, target: Gid) -> Self {
        match target.ipv4() {
            Some(target) => Self::arp(ArpOperation::Request, own, MacAddress([0; 6]), target),
            None => Self::discovery(SOLICITATION, own, solicited_node(target), target),
        }
    }

    /// Returns the reply to a request: where `own` is. A sender without an IP address, which looks
    /// for one that is free, has its reply as all nodes do.
    #[must_use]
    pub fn reply(own: Sender, to: &Claim<Gid, MacAddress>) -> Self {
        match own.address.ipv4() {
            Some(_) => {
                let target = to.sender.ipv4().unwrap_or([0; 4]);
                Self::arp(ArpOperation::Reply, own, to.sender_hw, target)
            }
            None => {
                let to = if to.sender.is_zero() { ALL_NODES } else { to.sender };
                Self::discovery(ADVERTISEMENT, own, to, own.address)
            }
        }
    }

    fn arp(operation: ArpOperation, own: Sender, target_mac: MacAddress, target: [u8; 4]) -> Self {
        let mut bytes = [0; DISCOVERY_LEN];
        put(&mut bytes, 0, &ARP_HEAD);
        bytes[7] = if operation == ArpOperation::Request { 1 } else { 2 };
        put(&mut bytes, 8, &own.mac.0);
        put(&mut bytes, 14, &own.address.ipv4().unwrap_or([0; 4]));
        put(&mut bytes, 18, &target_mac.0);
        put(&mut bytes, 24, &target);
        Self { bytes, ether_type: ETHERTYPE_ARP }
    }

    fn discovery(kind: u8, own: Sender, to: Gid, target: Gid) -> Self {
        let mut bytes = [0; DISCOVERY_LEN];
        bytes[0] = 0x60;
        bytes[5] = (DISCOVERY_LEN - IPV6_LEN) as u8;
        (bytes[6], bytes[7]) = (ICMPV6, NOT_FORWARDED);
        put(&mut bytes, 8, &own.address.0);
        put(&mut bytes, 24, &to.0);
        bytes[40] = kind;
        let option = if kind == SOLICITATION { SOURCE_MAC } else { TARGET_MAC };
        if kind == ADVERTISEMENT {
            bytes[44] = if to == ALL_NODES { OVERRIDE } else { SOLICITED | OVERRIDE };
        }
        put(&mut bytes, 48, &target.0);
        (bytes[64], bytes[65]) = (option, 1);
        put(&mut bytes, 66, &own.mac.0);
        let sum = !checksum(&own.address, &to, &bytes[IPV6_LEN..]);
        put(&mut bytes, 42, &sum.to_be_bytes());
        Self { bytes, ether_type: ETHERTYPE_IPV6 }
    }

    /// The type in the frame's header.
    #[must_use]
    pub fn ether_type(&self) -> u16 {
        self.ether_type
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        if self.ether_type == ETHERTYPE_ARP { &self.bytes[..ARP_LEN] } else { &self.bytes }
    }
}

/// Returns what an ARP message, a solicitation or an advertisement says, which arrived in a frame of
/// this type from this source; `None` if it is none of them, or is invalid.
#[must_use]
pub fn parse(ether_type: u16, from: MacAddress, payload: &[u8]) -> Option<Claim<Gid, MacAddress>> {
    match ether_type {
        ETHERTYPE_ARP => parse_arp(payload),
        ETHERTYPE_IPV6 => parse_discovery(from, payload),
        _ => None,
    }
}

fn parse_arp(payload: &[u8]) -> Option<Claim<Gid, MacAddress>> {
    let bytes: &[u8; ARP_LEN] = payload.first_chunk()?;
    let is_request = match bytes[7] {
        1 => true,
        2 => false,
        _ => return None,
    };
    let (sender, target) = (ipv4_at(bytes, 14), ipv4_at(bytes, 24));
    // A probe for an address that is free.
    let sender = if sender == [0; 4] { Gid::ZERO } else { Gid::from_ipv4(sender) };
    let target = Gid::from_ipv4(target);
    let claim = Claim { is_request, sender, sender_hw: mac_at(bytes, 8), target };
    (bytes[..6] == ARP_HEAD && bytes[6] == 0).then_some(claim)
}

fn parse_discovery(from: MacAddress, payload: &[u8]) -> Option<Claim<Gid, MacAddress>> {
    let (head, _) = payload.split_first_chunk::<{ IPV6_LEN + 24 }>()?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let message = payload.get(IPV6_LEN..IPV6_LEN + length)?;
    let (source, destination, target) = (gid_at(head, 8), gid_at(head, 24), gid_at(head, 48));
    let (kind, code) = (head[40], head[41]);
    let valid = head[0] >> 4 == 6
        && (head[6], head[7], code) == (ICMPV6, NOT_FORWARDED, 0)
        && length >= 24
        && checksum(&source, &destination, message) == 0xffff;
    if !valid || target.is_multicast() {
        return None;
    }
    let told = |option| find_option(message.get(24..)?, option);
    match kind {
        SOLICITATION => Some(Claim {
            is_request: true,
            sender: source,
            sender_hw: told(SOURCE_MAC).unwrap_or(from),
            target,
        }),
        ADVERTISEMENT => Some(Claim {
            is_request: false,
            sender: target,
            sender_hw: told(TARGET_MAC).unwrap_or(from),
            target: destination,
        }),
        _ => None,
    }
}

/// The MAC address in the first option of a kind. Options without length end the list.
fn find_option(mut options: &[u8], wanted: u8) -> Option<MacAddress> {
    while let [kind, units, rest @ ..] = options {
        let len = usize::from(*units) * OPTION_LEN;
        if len == 0 {
            return None;
        }
        if *kind == wanted {
            return rest.first_chunk().map(|mac| MacAddress(*mac));
        }
        options = options.get(len..)?;
    }
    None
}

/// Returns the one's complement sum of an ICMPv6 message and its pseudo header (RFC 8200 8.1).
pub(crate) fn checksum(source: &Gid, destination: &Gid, message: &[u8]) -> u16 {
    let addresses = u32::from(sum(0, &source.0)) + u32::from(sum(0, &destination.0));
    sum(addresses + message.len() as u32 + u32::from(ICMPV6), message)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
    out
}

fn ipv4_at(bytes: &[u8], at: usize) -> [u8; 4] {
    array_at(bytes, at)
}

fn mac_at(bytes: &[u8], at: usize) -> MacAddress {
    MacAddress(array_at(bytes, at))
}

pub(crate) fn gid_at(bytes: &[u8], at: usize) -> Gid {
    Gid(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_with_and_without_a_tag() {
        let header = |vlan: Option<u16>| Header {
            to: MacAddress::BROADCAST,
            from: MacAddress([2, 0, 0, 0, 0, 1]),
            vlan: vlan.map(VlanId::new),
            ether_type: ETHERTYPE_ARP,
        };
        for (vlan, len) in [(None, 14), (Some(5), 18), (Some(4094), 18)] {
            let (bytes, encoded) = header(vlan).encode();
            assert_eq!(encoded, len);
            assert_eq!(Header::parse(&bytes[..len]), Some((header(vlan), len)));
            assert_eq!(Header::parse(&bytes[..len - 1]), None);
        }
        // Priority 7 without a VLAN, and with one.
        let (mut bytes, _) = header(Some(5)).encode();
        bytes[14] |= 0xe0;
        assert_eq!(Header::parse(&bytes), Some((header(Some(5)), 18)));
        bytes[15] = 0;
        assert_eq!(Header::parse(&bytes), Some((header(None), 18)));
    }
    use proptest::prelude::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    fn sender(address: Gid) -> Sender {
        Sender { address, mac: MAC }
    }

    #[test]
    fn arp_literal() {
        let own = sender(Gid::from_ipv4([10, 0, 0, 1]));
        let request = Message::request(own, Gid::from_ipv4([10, 0, 0, 2]));
        let bytes = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
        assert_eq!((request.as_bytes(), request.ether_type()), (&bytes[..], 0x0806));
        let claim = parse(0x0806, PEER, request.as_bytes()).expect("a request");
        assert_eq!(
            claim,
            Claim {
                is_request: true,
                sender: own.address,
                sender_hw: MAC,
                target: Gid::from_ipv4([10, 0, 0, 2]),
            }
        );
        let reply = Message::reply(Sender { address: claim.target, mac: PEER }, &claim);
        let told = parse(0x0806, PEER, reply.as_bytes()).expect("a reply");
        assert_eq!((told.is_request, told.sender, told.sender_hw), (false, claim.target, PEER));
        assert_eq!(told.target, own.address);
        for (at, byte) in [(1, 32), (2, 9), (4, 20), (5, 16), (6, 1), (7, 3)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(parse(0x0806, PEER, &other), None, "byte {at}");
        }
        assert_eq!(parse(0x0806, PEER, &bytes[..27]), None);
    }

    #[test]
    fn solicitation_literal() {
        let own = Sender {
            address: Gid::link_local(MacAddress([0x52, 0x54, 0, 0x12, 0x34, 1])),
            mac: MacAddress([0x52, 0x54, 0, 0x12, 0x34, 1]),
        };
        let target = Gid::link_local(MacAddress([0x52, 0x54, 0, 0x12, 0x34, 2]));
        let message = Message::request(own, target);
        let bytes = message.as_bytes();
        assert_eq!(bytes[..8], [0x60, 0, 0, 0, 0, 32, 58, 255]);
        assert_eq!(bytes[24..40], [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0x12, 0x34, 2]);
        assert_eq!(bytes[40..42], [135, 0]);
        assert_eq!(bytes[64..], [1, 1, 0x52, 0x54, 0, 0x12, 0x34, 1]);
        assert_eq!(group_mac(solicited_node(target)), MacAddress([0x33, 0x33, 0xff, 0x12, 0x34, 2]));
        let claim = parse(0x86dd, PEER, bytes).expect("a request");
        assert_eq!((claim.sender, claim.sender_hw, claim.target), (own.address, own.mac, target));
        let reply = Message::reply(Sender { address: target, mac: PEER }, &claim);
        assert_eq!(reply.as_bytes()[44], 0x60);
        let told = parse(0x86dd, MAC, reply.as_bytes()).expect("a reply");
        assert_eq!((told.is_request, told.sender, told.sender_hw), (false, target, PEER));
        assert_eq!(told.target, own.address);
        // A probe for a free address has no sender address to reply to.
        let probe = Claim { sender: Gid::ZERO, ..claim };
        let told = Message::reply(Sender { address: target, mac: PEER }, &probe);
        assert_eq!((told.as_bytes()[44], gid_at(told.as_bytes(), 24)), (0x20, ALL_NODES));
    }

    #[test]
    fn forwarded_or_damaged_discovery_is_none() {
        let own = sender(Gid::link_local(MAC));
        let message = Message::request(own, Gid::link_local(PEER));
        for at in 0..DISCOVERY_LEN {
            let mut bytes = message.bytes;
            bytes[at] ^= 1;
            let claim = parse(0x86dd, PEER, &bytes);
            // The flow label is not covered, and a MAC address in an unknown option is not read.
            assert!(claim.is_none() || at < 4, "byte {at}: {claim:?}");
        }
        assert_eq!(parse(0x86dd, PEER, &message.bytes[..71]), None);
        assert_eq!(parse(0x0800, PEER, &message.bytes), None);
    }

    #[test]
    fn groups_have_macs() {
        assert_eq!(group_mac(ALL_NODES), MacAddress([0x33, 0x33, 0, 0, 0, 1]));
        let ipv4 = Gid::from_ipv4([239, 129, 2, 3]);
        assert_eq!(group_mac(ipv4), MacAddress([1, 0, 0x5e, 1, 2, 3]));
    }

    proptest! {
        #[test]
        fn any_bytes(ether_type: u16, bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(ether_type, MAC, &bytes);
            let _ = parse(ETHERTYPE_IPV6, MAC, &bytes);
            let _ = parse(ETHERTYPE_ARP, MAC, &bytes);
            let _ = find_option(&bytes, SOURCE_MAC);
        }

        #[test]
        fn round_trip(v6: bool, a: [u8; 16], b: [u8; 16], mac: [u8; 6]) {
            let gid = |bytes: [u8; 16]| {
                let [x, y, z, w, ..] = bytes;
                if v6 { Gid(bytes) } else { Gid::from_ipv4([x | 1, y, z, w]) }
            };
            let (own, target) = (Sender { address: gid(a), mac: MacAddress(mac) }, gid(b));
            prop_assume!(!target.is_multicast() && (target.ipv4().is_some() == own.address.ipv4().is_some()));
            let message = Message::request(own, target);
            let claim = parse(message.ether_type(), MAC, message.as_bytes());
            prop_assert_eq!(
                claim,
                Some(Claim { is_request: true, sender: own.address, sender_hw: own.mac, target })
            );
        }
    }
}
