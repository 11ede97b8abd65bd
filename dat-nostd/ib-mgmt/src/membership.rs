//! Reports of multicast groups to switches and routers, which forward a group's frames where it was reported. Messages only, as
//! IP packets: IGMP for IPv4 groups, MLD for IPv6 groups.
//!
//! Reports have the version that every router and switch takes (IGMPv2, RFC 2236; MLDv1, RFC 2710): receivers of the later ones
//! must take it too (RFC 3376, section 7.3.2; RFC 3810, section 8.3.2). Queries of all versions are replied to.

use ib_types::{Duration, Gid};

use crate::ethernet::{ALL_NODES, ICMPV6, IPV6_LEN, checksum, gid_at};
use crate::ipoib::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// Protocol number of IGMP.
pub const IGMP: u8 = 2;
/// All hosts of the link, 224.0.0.1.
pub const ALL_HOSTS: Gid = Gid::from_ipv4([224, 0, 0, 1]);
/// All routers, to which groups are left.
const ALL_ROUTERS: [u8; 4] = [224, 0, 0, 2];
const ALL_ROUTERS_6: Gid = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// Bytes of the longest report.
const REPORT_LEN: usize = IPV6_LEN + OPTION_LEN + 24;
/// Bytes of an IPv4 header with the router alert option.
const IPV4_LEN: usize = 24;
/// Bytes of a hop-by-hop header with the router alert option.
const OPTION_LEN: usize = 8;
/// IPv4 header before the addresses: network control, not fragmented, not forwarded.
const HEAD: [u8; 12] = [0x46, 0xc0, 0, (IPV4_LEN + 8) as u8, 0, 0, 0x40, 0, 1, IGMP, 0, 0];
/// Router alert (RFC 2113).
const ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// IPv6 header before the addresses: hop-by-hop options, not forwarded.
const HEAD_6: [u8; 8] = [0x60, 0, 0, 0, 0, (REPORT_LEN - IPV6_LEN) as u8, 0, 1];
/// Hop-by-hop header before ICMPv6 with router alert for MLD (RFC 2711), padded.
const ALERT_6: [u8; OPTION_LEN] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Message types of IGMP: query, report, leave; and of MLD.
const TYPES: [u8; 3] = [0x11, 0x16, 0x17];
const TYPES_6: [u8; 3] = [130, 131, 132];

/// Returns whether membership of a group is reported: not of the groups of all nodes, nor of those of less than a link (RFC 2236
/// section 6, RFC 2710 section 5).
#[must_use]
pub const fn is_reported(group: Gid) -> bool {
    const ALL_IPV4: u128 = u128::from_be_bytes(ALL_HOSTS.0);
    const ALL_IPV6: u128 = u128::from_be_bytes(ALL_NODES.0);
    let bits = u128::from_be_bytes(group.0);
    // ff00::/8 but interface-local scope and less, or the mapped addresses of 224.0.0.0/4.
    let is_group = bits >> 120 == 0xff && bits >> 112 & 0xf >= 2 || bits >> 28 == ALL_IPV4 >> 28;
    is_group && bits != ALL_IPV4 && bits != ALL_IPV6
}

/// A report: an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    bytes: [u8; REPORT_LEN],
    len: usize,
    /// Its destination, a group.
    pub to: Gid,
    /// Its EtherType.
    pub ether_type: u16,
}

impl Report {
    /// Returns the report that a port is a member of `group`, or has left it. `own` is an address of the same protocol: the
    /// IPv4 address or none, the link-local IPv6 address.
    #[must_use]
    pub fn new(own: Gid, group: Gid, is_member: bool) -> Self {
        let kind = if is_member { 1 } else { 2 };
        let mut bytes = [0; REPORT_LEN];
        let Some(group_4) = group.ipv4() else {
            let to = if is_member { group } else { ALL_ROUTERS_6 };
            put(&mut bytes, 0, &HEAD_6);
            put(&mut bytes, 8, &own.0);
            put(&mut bytes, 24, &to.0);
            put(&mut bytes, IPV6_LEN, &ALERT_6);
            put(&mut bytes, 48, &[TYPES_6[kind]]);
            put(&mut bytes, 56, &group.0);
            let sum = !checksum(&own, &to, &bytes[48..]);
            put(&mut bytes, 50, &sum.to_be_bytes());
            return Self { bytes, len: REPORT_LEN, to, ether_type: ETHERTYPE_IPV6 };
        };
        let to = if is_member { group_4 } else { ALL_ROUTERS };
        put(&mut bytes, 0, &HEAD);
        put(&mut bytes, 12, &own.ipv4().unwrap_or([0; 4]));
        put(&mut bytes, 16, &to);
        put(&mut bytes, 20, &ALERT);
        put(&mut bytes, 24, &[TYPES[kind]]);
        put(&mut bytes, 28, &group_4);
        let sums = [!sum(0, &bytes[..IPV4_LEN]), !sum(0, &bytes[IPV4_LEN..])];
        put(&mut bytes, 10, &sums[0].to_be_bytes());
        put(&mut bytes, 26, &sums[1].to_be_bytes());
        Self { bytes, len: IPV4_LEN + 8, to: Gid::from_ipv4(to), ether_type: ETHERTYPE_IPV4 }
    }

    /// The packet.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[inline(never)]
fn put(bytes: &mut [u8; REPORT_LEN], at: usize, part: &[u8]) {
    bytes.iter_mut().skip(at).zip(part).for_each(|(to, from)| *to = *from);
}

/// A query of a router, or of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The protocol: IGMP, about IPv4 groups, or MLD.
    pub is_ipv4: bool,
    /// The group that it is about; zero for all groups of the protocol.
    pub group: Gid,
    /// Time in which replies are due. Less than the query's if that is above 12.8 s by IGMP or 32.8 s by MLD.
    pub max_response: Duration,
}

impl Query {
    /// Parses an IP packet; `None` if it is no query, or invalid.
    #[must_use]
    #[inline(never)]
    pub fn parse(ether_type: u16, packet: &[u8]) -> Option<Self> {
        match ether_type {
            ETHERTYPE_IPV4 => Self::parse_igmp(packet),
            ETHERTYPE_IPV6 => Self::parse_mld(packet),
            _ => None,
        }
    }

    fn parse_igmp(packet: &[u8]) -> Option<Self> {
        let head: &[u8; 20] = packet.first_chunk()?;
        let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let (header, message) = packet.get(..total)?.split_at_checked(usize::from(head[0] & 0xf) * 4)?;
        let &[kind, code, _, _, a, b, c, d] = message.first_chunk()?;
        // Neither forwarded nor a fragment.
        let valid = head[0] >> 4 == 4
            && (head[6] & 0x3f, head[7], head[8], head[9], kind) == (0, 0, 1, IGMP, TYPES[0])
            && sum(0, header) == 0xffff
            && sum(0, message) == 0xffff;
        let group = if [a, b, c, d] == [0; 4] { Gid::ZERO } else { Gid::from_ipv4([a, b, c, d]) };
        // Version 1 has no limit: 10 s (RFC 2236 section 4).
        let tenths = if code == 0 { 100 } else { u64::from(code) };
        valid.then_some(Self { is_ipv4: true, group, max_response: Duration::from_millis(tenths * 100) })
    }

    fn parse_mld(packet: &[u8]) -> Option<Self> {
        let (head, rest) = packet.split_first_chunk::<IPV6_LEN>()?;
        let payload = rest.get(..usize::from(u16::from_be_bytes([head[4], head[5]])))?;
        let (option, message) = payload.split_first_chunk::<OPTION_LEN>()?;
        let fixed: &[u8; 24] = message.first_chunk()?;
        let (source, destination) = (gid_at(head, 8), gid_at(head, 24));
        // Hop-by-hop options of one unit, and not forwarded.
        let valid = (head[0] >> 4, head[6], head[7]) == (6, 0, 1)
            && (option[0], option[1], fixed[0], fixed[1]) == (ICMPV6, 0, TYPES_6[0], 0)
            && source.prefix() == Gid::DEFAULT_PREFIX
            && checksum(&source, &destination, message) == 0xffff;
        let millis = u64::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let (group, max_response) = (gid_at(fixed, 8), Duration::from_millis(millis));
        valid.then_some(Self { is_ipv4: false, group, max_response })
    }
}

/// Returns the one's complement sum of `first` and the words of `bytes`.
pub(crate) fn sum(first: u32, bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum = first + bytes.chunks(2).map(word).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::{group_mac, solicited_node};
    use ib_types::MacAddress;
    use proptest::prelude::*;

    const OWN: Gid = Gid::from_ipv4([10, 0, 0, 1]);
    const GROUP: Gid = Gid::from_ipv4([239, 1, 2, 3]);
    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const ROUTER: Gid = Gid::link_local(MacAddress([2, 0, 0, 0, 0, 9]));
    const GROUP_6: Gid = Gid([0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);

    #[test]
    fn igmp_literals() {
        let report = Report::new(OWN, GROUP, true);
        assert_eq!((report.ether_type, report.to), (0x0800, GROUP));
        let bytes = [
            0x46, 0xc0, 0, 32, 0, 0, 0x40, 0, 1, 2, 0xe9, 0x12, 10, 0, 0, 1, 239, 1, 2, 3, 0x94, 4, 0, 0,
            0x16, 0, 0xf8, 0xfa, 239, 1, 2, 3,
        ];
        assert_eq!(report.as_bytes(), bytes);
        let leave = Report::new(Gid::ZERO, GROUP, false);
        assert_eq!((leave.to, leave.as_bytes()[24]), (Gid::from_ipv4([224, 0, 0, 2]), 0x17));
        assert_eq!((&leave.as_bytes()[12..16], &leave.as_bytes()[28..]), (&[0; 4][..], &[239, 1, 2, 3][..]));
        assert_eq!((sum(0, &leave.as_bytes()[..24]), sum(0, &leave.as_bytes()[24..])), (0xffff, 0xffff));
    }

    #[test]
    fn mld_literals() {
        let (own, group) = (Gid::link_local(MAC), solicited_node(Gid::link_local(MAC)));
        let report = Report::new(own, group, true);
        assert_eq!((report.ether_type, report.to, report.as_bytes().len()), (0x86dd, group, 72));
        assert_eq!(report.as_bytes()[..8], [0x60, 0, 0, 0, 0, 32, 0, 1]);
        assert_eq!(report.as_bytes()[40..50], [58, 0, 5, 2, 0, 0, 1, 0, 131, 0]);
        assert_eq!(report.as_bytes()[56..], group.0);
        assert_eq!(group_mac(report.to), MacAddress([0x33, 0x33, 0xff, 0, 0, 1]));
        assert_eq!(checksum(&own, &group, &report.as_bytes()[48..]), 0xffff);
        let done = Report::new(own, group, false);
        assert_eq!((done.as_bytes()[48], done.to), (132, ALL_ROUTERS_6));
        assert_eq!((&done.as_bytes()[24..40], &done.as_bytes()[56..]), (&done.to.0[..], &group.0[..]));
        assert_eq!(checksum(&own, &done.to, &done.as_bytes()[48..]), 0xffff);
    }

    #[test]
    fn groups_of_all_nodes_are_not_reported() {
        assert!(is_reported(GROUP) && is_reported(GROUP_6) && is_reported(solicited_node(ROUTER)));
        assert!(is_reported(Gid::from_ipv4([224, 0, 0, 251])));
        let node_local = Gid([0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        for none in [ALL_HOSTS, ALL_NODES, node_local, OWN, ROUTER, Gid::ZERO] {
            assert!(!is_reported(none), "{none}");
        }
    }

    fn igmp_query(code: u8, group: [u8; 4], rest: &[u8]) -> Vec<u8> {
        let mut message = [&[0x11, code, 0, 0], &group[..], rest].concat();
        let check = !sum(0, &message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let total = (IPV4_LEN + message.len()) as u8;
        let mut packet =
            vec![0x46, 0xc0, 0, total, 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 0, 0, 9, 224, 0, 0, 1, 0x94, 4, 0, 0];
        let check = !sum(0, &packet);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet.extend(message);
        packet
    }

    fn mld_query(code: u16, group: Gid, rest: &[u8]) -> Vec<u8> {
        let [high, low] = code.to_be_bytes();
        let mut message = [&[130, 0, 0, 0, high, low, 0, 0], &group.0[..], rest].concat();
        let check = !checksum(&ROUTER, &ALL_NODES, &message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let head = [0x60, 0, 0, 0, 0, (8 + message.len()) as u8, 0, 1];
        [&head[..], &ROUTER.0, &ALL_NODES.0, &ALERT_6, &message].concat()
    }

    #[test]
    fn queries_of_all_versions() {
        let found = |packet: &[u8]| {
            let ether_type = if packet[0] >> 4 == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
            let query = Query::parse(ether_type, packet)?;
            assert_eq!(query.is_ipv4, ether_type == ETHERTYPE_IPV4);
            Some((query.group, query.max_response.as_millis()))
        };
        // Padding of a short frame is no part of the packet.
        let padded = [igmp_query(50, [0; 4], &[]), vec![0; 20]].concat();
        assert_eq!(found(&padded), Some((Gid::ZERO, 5000)));
        assert_eq!(found(&igmp_query(0, [0; 4], &[])), Some((Gid::ZERO, 10_000)));
        assert_eq!(found(&igmp_query(10, [239, 1, 2, 3], &[2, 125, 0, 0])), Some((GROUP, 1000)));
        // A floating point number: 3174 s.
        assert_eq!(found(&igmp_query(0xff, [0; 4], &[2, 125, 0, 0])), Some((Gid::ZERO, 25_500)));
        assert_eq!(found(&mld_query(10_000, Gid::ZERO, &[])), Some((Gid::ZERO, 10_000)));
        assert_eq!(found(&mld_query(1000, GROUP_6, &[2, 125, 0, 0])), Some((GROUP_6, 1000)));
        assert_eq!(found(Report::new(OWN, GROUP, true).as_bytes()), None);
        assert_eq!(found(Report::new(ROUTER, GROUP_6, true).as_bytes()), None);
    }

    #[test]
    fn forwarded_or_damaged_queries_are_none() {
        let packets = [
            (ETHERTYPE_IPV4, igmp_query(100, [239, 1, 2, 3], &[2, 125, 0, 0])),
            (ETHERTYPE_IPV6, mld_query(100, GROUP_6, &[2, 125, 0, 0])),
        ];
        for (ether_type, packet) in packets {
            assert!(Query::parse(ether_type, &packet).is_some());
            for at in 0..packet.len() {
                let mut damaged = packet.clone();
                damaged[at] ^= 4;
                let is_covered = ether_type == ETHERTYPE_IPV4 || at >= 4 && !(42..48).contains(&at);
                assert!(Query::parse(ether_type, &damaged).is_none() || !is_covered, "{ether_type:#x} {at}");
                assert_eq!(Query::parse(ether_type, &packet[..at]), None);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120), at in 0..60usize, byte: u8) {
            let mut damaged = [igmp_query(1, [0; 4], &[]), mld_query(1, Gid::ZERO, &[])];
            for packet in damaged.iter_mut().chain([&mut bytes.clone()]) {
                if let Some(there) = packet.get_mut(at) {
                    *there = byte;
                }
                let _ = Query::parse(ETHERTYPE_IPV4, packet);
                let _ = Query::parse(ETHERTYPE_IPV6, packet);
            }
        }
    }
}
