//! Match fields and hash of a frame.

use crate::object::nic::{Hash, Match};
use mlx5_prm::steering::fte_match_set_lyr_2_4 as m;
use mlx5_prm::value::{HashFields, RxHash};
use rdma_fabric::ethernet::frame::ether_type::{SERVICE_VLAN, VLAN};
use rdma_fabric::ethernet::frame::{Frame, Ip, Transport, Version, toeplitz};

/// Match fields of a frame.
pub(super) fn match_fields(frame: &Frame<'_>) -> Match {
    let mut fields = [0; m::SIZE];
    let set = |fields: &mut [u8; m::SIZE], field: mlx5_prm::Field, value: u32| field.set(fields, value);
    let words = |mac: [u8; 6]| {
        let [a, b, c, d, e, f] = mac;
        (u32::from_be_bytes([a, b, c, d]), u32::from(u16::from_be_bytes([e, f])))
    };
    let (source, destination) = (words(frame.header().source().0), words(frame.header().destination().0));
    set(&mut fields, m::smac_47_16, source.0);
    set(&mut fields, m::smac_15_0, source.1);
    set(&mut fields, m::dmac_47_16, destination.0);
    set(&mut fields, m::dmac_15_0, destination.1);
    set(&mut fields, m::ethertype, u32::from(frame.header().ether_type()));
    if let Some(tag) = frame.header().tag() {
        set(&mut fields, m::first_vid, u32::from(tag.vid()));
        set(&mut fields, m::first_cfi, u32::from(tag.tci >> 12 & 1));
        set(&mut fields, m::first_prio, u32::from(tag.priority()));
        set(&mut fields, m::cvlan_tag, u32::from(tag.kind == VLAN));
        set(&mut fields, m::svlan_tag, u32::from(tag.kind == SERVICE_VLAN));
    }
    if let Some(ip) = frame.ip() {
        let class = u32::from(ip.traffic_class());
        set(&mut fields, m::ip_version, if ip.version() == Version::V4 { 4 } else { 6 });
        set(&mut fields, m::ip_protocol, u32::from(ip.protocol()));
        set(&mut fields, m::ip_dscp, class >> 2);
        set(&mut fields, m::ip_ecn, class & 3);
        set(&mut fields, m::ttl_hoplimit, u32::from(ip.hop_limit()));
        set(&mut fields, m::frag, u32::from(ip.is_fragment()));
        for (part, address) in [(m::src_ipv4_src_ipv6, ip.source()), (m::dst_ipv4_dst_ipv6, ip.destination())]
        {
            // IPv4 addresses are the last 4 bytes.
            let place = part.of_mut(&mut fields);
            let start = place.len().saturating_sub(address.len());
            place.iter_mut().skip(start).zip(address).for_each(|(to, from)| *to = *from);
        }
        put_transport(&mut fields, &ip);
    }
    Match::of(&fields)
}

fn put_transport(fields: &mut [u8; m::SIZE], ip: &Ip<'_>) {
    let Some((source, destination)) = ip.ports() else { return };
    let (sport, dport) = match ip.transport() {
        Transport::Tcp { .. } => (m::tcp_sport, m::tcp_dport),
        _ => (m::udp_sport, m::udp_dport),
    };
    sport.set(fields, source);
    dport.set(fields, destination);
    if let Transport::Tcp { flags, .. } = ip.transport() {
        m::tcp_flags.set(fields, flags);
    }
}

/// The hash of a frame, and its type as `cqe64.rss_hash_type` has it. 0 and 0 for a frame without the fields.
pub(super) fn hash_of(hash: &Hash, frame: &Frame<'_>) -> (u32, u8) {
    let Some(ip) = frame.ip().filter(|_| hash.function != RxHash::NONE) else { return (0, 0) };
    let fields = hash.fields;
    let (mut input, mut len) = ([0u8; 36], 0);
    let mut put = |bytes: &[u8]| {
        if let Some(place) = input.get_mut(len..len + bytes.len()) {
            place.copy_from_slice(bytes);
            len += bytes.len();
        }
    };
    let (mut from, mut to) = (ip.source(), ip.destination());
    let mut ports = ip.ports().filter(|_| fields.intersects(HashFields::L4_SPORT | HashFields::L4_DPORT));
    if hash.symmetric {
        if from > to {
            (from, to) = (to, from);
        }
        ports = ports.map(|(source, destination)| (source.min(destination), source.max(destination)));
    }
    if fields.contains(HashFields::SRC_IP) {
        put(from);
    }
    if fields.contains(HashFields::DST_IP) {
        put(to);
    }
    if let Some((source, destination)) = ports {
        if fields.contains(HashFields::L4_SPORT) {
            put(&source.to_be_bytes());
        }
        if fields.contains(HashFields::L4_DPORT) {
            put(&destination.to_be_bytes());
        }
    }
    let input = input.get(..len).unwrap_or_default();
    if input.is_empty() {
        return (0, 0);
    }
    let value = match hash.function {
        RxHash::TOEPLITZ => toeplitz(&hash.key, input.iter().copied()),
        _ => u32::from(!input.iter().fold(0u8, |sum, byte| sum ^ byte)),
    };
    let network = if ip.version() == Version::V4 { 1 } else { 2 };
    let transport = match ip.transport() {
        Transport::Tcp { .. } if ports.is_some() => 1,
        _ if ports.is_some() => 2,
        _ => 0,
    };
    (value, network << 2 | transport << 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 TCP frame of VLAN 7, from 10.0.0.1:1000 to 10.0.0.2:80.
    fn tcp() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x60, 7, 8, 0];
        frame.extend([0x45, 0xb9, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x03, 0xe8, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn fields_are_where_entries_have_them() {
        let bytes = tcp();
        let fields = match_fields(&Frame::parse(&bytes).expect("a frame"));
        let get = |field: mlx5_prm::Field| field.get32(fields.bytes());
        for (field, value) in [
            (m::dmac_47_16, 0x0200_0000),
            (m::dmac_15_0, 2),
            (m::ethertype, 0x800),
            (m::first_vid, 7),
            (m::first_prio, 3),
            (m::cvlan_tag, 1),
            (m::svlan_tag, 0),
            (m::ip_version, 4),
            (m::ip_protocol, 6),
            (m::ip_dscp, 0x2e),
            (m::ip_ecn, 1),
            (m::ttl_hoplimit, 64),
            (m::frag, 0),
            (m::tcp_sport, 1000),
            (m::tcp_dport, 80),
            (m::tcp_flags, 0x12),
            (m::udp_dport, 0),
        ] {
            assert_eq!(get(field), value, "{field:?}");
        }
        let destination = m::dst_ipv4_dst_ipv6.of(fields.bytes());
        assert_eq!(destination, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    }

    #[test]
    fn hash_can_be_symmetric() {
        let there = tcp();
        let mut back = there.clone();
        back[30..34].copy_from_slice(&there[34..38]);
        back[34..38].copy_from_slice(&there[30..34]);
        back[38..40].copy_from_slice(&there[40..42]);
        back[40..42].copy_from_slice(&there[38..40]);
        let all = HashFields::SRC_IP | HashFields::DST_IP | HashFields::L4_SPORT | HashFields::L4_DPORT;
        let hash = |symmetric, bytes: &[u8]| {
            let key = std::array::from_fn(|i| (i * 37) as u8);
            let hash = Hash { function: RxHash::TOEPLITZ, symmetric, key, fields: all };
            hash_of(&hash, &Frame::parse(bytes).expect("a frame"))
        };
        assert_eq!(hash(true, &there), hash(true, &back));
        assert_ne!(hash(false, &there), hash(false, &back));
        assert_eq!(hash(false, &there).1, 0x44, "TCP over IPv4");
    }
}
