//! Frames that another library builds, literal vectors, and bytes of any content.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{IpFragOffset, IpHeaders, Ipv4Header, PacketBuilder, VlanId, ip_number};
use ib_types::Gid;
use proptest::prelude::*;

use super::checksum::add;
use super::*;
use crate::infiniband::packet::{Bth, Opcode};

const SOURCE: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 1];
const DESTINATION: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 2];
const SOURCE_V6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 1];
const DESTINATION_V6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 2];

/// Bytes of hexadecimal digits with any white space.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.bytes().filter_map(|byte| (byte as char).to_digit(16).map(|d| d as u8)).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A frame with the addresses of this module.
fn frame_of(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&DESTINATION[..], &SOURCE, &ether_type.to_be_bytes(), payload].concat()
}

fn ip(frame: &[u8]) -> Ip<'_> {
    Frame::parse(frame).unwrap().ip().unwrap()
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(SOURCE, DESTINATION).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    builder.udp(5, 6).write(&mut frame, payload).unwrap();
    frame
}

/// The vectors of RoCE in the reference of the wire format: an IPv6 and a v1 packet with payload "test".
fn roce_v6() -> Vec<u8> {
    let header = hex("60000000 001c1140");
    let rest = hex("c132 12b7 001c 0000  04 40 ffff 00000010 80000001  74657374  71eca3c2");
    frame_of(ether_type::IPV6, &[&header[..], &SOURCE_V6, &DESTINATION_V6, &rest].concat())
}

fn roce_v1() -> Vec<u8> {
    let header = hex("60000000 00141b40");
    let rest = hex("04 40 ffff 00000010 80000001  74657374  62d69702");
    frame_of(ether_type::ROCE_V1, &[&header[..], &SOURCE_V6, &DESTINATION_V6, &rest].concat())
}

/// A notification packet of a ConnectX-4 Lx over IPv4.
fn roce_v4() -> Vec<u8> {
    hex("e41d2dab2bc2 7cfe90643b32 0800
        45c2003c 718c4000 40119161 0a001101 0a001201
        0000 12b7 0028 0000
        81 00 ffff 40 000118 00 000000
        00000000 00000000 00000000 00000000
        82fd002a")
}

#[test]
fn addresses_and_tags_are_parsed() {
    let inner = [&ether_type::IPV4.to_be_bytes()[..], &udp(b"x")[HEADER_LEN..]].concat();
    let tagged = frame_of(ether_type::VLAN, &[&[0x60, 0x05], &inner[..]].concat());
    let frame = Frame::parse(&tagged).unwrap();
    assert_eq!(
        (frame.header().source(), frame.header().destination()),
        (MacAddress(SOURCE), MacAddress(DESTINATION))
    );
    let tag = frame.header().tag().unwrap();
    assert_eq!((tag.kind, tag.vid(), tag.priority()), (ether_type::VLAN, 5, 3));
    assert_eq!(
        (frame.header().ether_type(), frame.header().start(), frame.header().inner_tag()),
        (ether_type::IPV4, 18, None)
    );
    assert_eq!(frame.ip().unwrap().ports(), Some((5, 6)));

    let twice = frame_of(
        ether_type::SERVICE_VLAN,
        &[&[0, 7], &ether_type::VLAN.to_be_bytes(), &[0, 8], &inner[..]].concat(),
    );
    let frame = Frame::parse(&twice).unwrap();
    assert_eq!([frame.header().tag(), frame.header().inner_tag()].map(|tag| tag.unwrap().vid()), [7, 8]);
    assert_eq!((frame.header().start(), frame.ip().unwrap().start()), (22, 22));

    // A third tag is payload, and so is a tag that is cut off.
    let thrice = frame_of(ether_type::VLAN, &[[0, 1, 0x81, 0], [0, 2, 0x81, 0], [0, 3, 8, 0]].concat());
    let frame = Frame::parse(&thrice).unwrap();
    assert_eq!((frame.header().ether_type(), frame.network()), (ether_type::VLAN, Network::Other));
    assert_eq!(Header::parse(&tagged).unwrap().vlan(), 5);
    let cut = Frame::parse(&tagged[..17]).unwrap();
    assert_eq!(
        (cut.header().tag(), cut.header().ether_type(), cut.header().start()),
        (None, ether_type::VLAN, HEADER_LEN)
    );
    assert_eq!(Frame::parse(&tagged[..13]), None);
}

#[test]
fn arp_is_parsed_only_for_ipv4() {
    let arp = frame_of(ether_type::ARP, &[&[0, 1, 8, 0, 6, 4, 0, 1][..], &[0; 20]].concat());
    assert_eq!(Frame::parse(&arp).unwrap().network(), Network::Arp);
    assert_eq!(Frame::parse(&arp[..41]).unwrap().network(), Network::Other);
    let other = [&arp[..18], &[8], &arp[19..]].concat();
    assert_eq!(Frame::parse(&other).unwrap().network(), Network::Other);
}

#[test]
fn contradicting_ip_lengths_are_refused() {
    let good = udp(b"payload");
    let is_other = |frame: &[u8]| Frame::parse(frame).unwrap().network() == Network::Other;
    assert!(!is_other(&good));
    for (at, value) in [(14, 0x44), (14, 0x4f), (14, 0x65), (17, 19)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(is_other(&bad), "{value:#x} at {at}");
    }
    // Headers are there even where the rest is not. Only they can be used.
    let mut cut = [good.clone(), good.clone(), good[..good.len() - 1].to_vec()];
    (cut[0][16], cut[1][17]) = (0xff, 36);
    for bad in cut {
        let packet = ip(&bad);
        assert!(packet.is_cut() && packet.end() == bad.len() && packet.source() == ip(&good).source());
        assert_eq!(packet.transport_checksum_is_right(), None);
    }
    assert!(!ip(&good).is_cut());
    // Padding is no part of the packet.
    let padded = [&good[..], &[0; 18]].concat();
    assert_eq!((ip(&padded).end(), ip(&padded).packet()), (good.len(), &good[14..]));
    // A UDP length outside of the packet leaves IP without transport header.
    for length in [7, 16] {
        let mut bad = good.clone();
        bad[39] = length;
        assert_eq!(ip(&bad).transport(), Transport::Other);
    }
    // So does a TCP header that is longer than the packet, or too short.
    let mut tcp = Vec::new();
    let builder = PacketBuilder::ethernet2(SOURCE, DESTINATION).ipv4([1; 4], [2; 4], 9).tcp(1, 2, 3, 4);
    builder.write(&mut tcp, b"ab").unwrap();
    assert!(matches!(ip(&tcp).transport(), Transport::Tcp { source: 1, destination: 2, payload: 54, .. }));
    for offset in [0x40, 0x60] {
        tcp[46] = offset;
        assert_eq!(ip(&tcp).transport(), Transport::Other);
    }
}

#[test]
fn fragments_have_no_transport() {
    for (more, offset) in [(true, 0), (false, 8), (true, 16)] {
        let mut header = Ipv4Header::new(9, 64, ip_number::UDP, [1; 4], [2; 4]).unwrap();
        header.dont_fragment = false;
        header.more_fragments = more;
        header.fragment_offset = IpFragOffset::try_new(offset / 8).unwrap();
        let mut frame = frame_of(ether_type::IPV4, &[]);
        header.write(&mut frame).unwrap();
        frame.extend([0, 1, 0, 2, 0, 9, 0, 0, 0]);
        let ip = ip(&frame);
        assert_eq!((ip.is_fragment(), ip.ports(), ip.protocol()), (true, None, protocol::UDP));
        assert_eq!(ip.transport_checksum_is_right(), None);
        assert!(ip.header_checksum_is_right());
    }
}

#[test]
fn extension_headers_end_before_the_transport() {
    let v6 = |first: u8, extensions: &[u8]| {
        let datagram = [0, 1, 0, 2, 0, 8, 0, 0];
        let length = (extensions.len() + 8) as u8;
        let header = [0x6a, 0xb0, 0, 0, 0, length, first, 64];
        let packet = [&header[..], &SOURCE_V6, &DESTINATION_V6, extensions, &datagram].concat();
        frame_of(ether_type::IPV6, &packet)
    };
    let options = [&[protocol::ROUTING, 1][..], &[0; 14], &[protocol::DESTINATION, 0], &[0; 6]].concat();
    let chain = [&options[..], &[protocol::FRAGMENT, 0], &[0; 6], &[protocol::UDP, 0], &[0; 6]].concat();
    let frame = v6(protocol::HOP_BY_HOP, &chain);
    let parsed = ip(&frame);
    assert_eq!((parsed.ports(), parsed.is_fragment()), (Some((1, 2)), false), "an atomic fragment");
    assert_eq!((parsed.transport_start(), parsed.end()), (14 + 40 + 40, frame.len()));
    assert_eq!((parsed.traffic_class(), parsed.hop_limit()), (0xab, 64));

    let frame = v6(protocol::FRAGMENT, &[protocol::UDP, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!((ip(&frame).is_fragment(), ip(&frame).ports()), (true, None));
    let frame = v6(protocol::FRAGMENT, &[protocol::UDP, 0, 0, 8, 0, 0, 0, 0]);
    assert!(ip(&frame).is_fragment());
    // Security payload, authentication header, nothing.
    for last in [50, 51, 59] {
        let frame = v6(protocol::HOP_BY_HOP, &[last, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((ip(&frame).protocol(), ip(&frame).transport()), (last, Transport::Other));
    }
    // An extension that is longer than the packet, and more of them than are parsed.
    let frame = v6(protocol::HOP_BY_HOP, &[protocol::UDP, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Frame::parse(&frame).unwrap().network(), Network::Other);
    let frame = v6(protocol::HOP_BY_HOP, &[[protocol::DESTINATION, 0, 0, 0, 0, 0, 0, 0]; 9].concat());
    assert_eq!((ip(&frame).protocol(), ip(&frame).ports()), (protocol::DESTINATION, None));
}

#[test]
fn roce_is_parsed_and_its_icrc_is_checked() {
    for (frame, is_v2, body) in [(roce_v6(), true, 74), (roce_v1(), false, 66)] {
        let roce = Frame::parse(&frame).unwrap().roce().unwrap();
        assert_eq!(*roce.bth(), Bth { ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY, 0xffff, 0x10, 1) });
        assert_eq!((roce.is_v2(), roce.body(), roce.end()), (is_v2, body, body + 4));
        assert_eq!(roce.content(&frame), b"test");
        assert!(roce.icrc_is_right(&frame));
        let mut other = frame.clone();
        other[body] ^= 1;
        assert!(!Frame::parse(&other).unwrap().roce().unwrap().icrc_is_right(&other));
        write_icrc(&mut other);
        assert_ne!(other, frame);
        other[body] ^= 1;
        write_icrc(&mut other);
        assert_eq!(other, frame);
        // The ICRC ends with the packet, before the padding of a short frame.
        let mut padded = [&frame[..body + 4], &[0; 4], &[0xee; 7]].concat();
        write_icrc(&mut padded);
        assert_eq!(padded, [&frame[..], &[0xee; 7]].concat());
    }
    let frame = roce_v4();
    let roce = Frame::parse(&frame).unwrap().roce().unwrap();
    assert!(roce.icrc_is_right(&frame) && roce.bth().opcode.0 == 0x81);
    assert_eq!(ip(&frame).source_gid().to_string(), "::ffff:10.0.17.1");
    assert_eq!(ip(&roce_v6()).destination_gid(), Gid(DESTINATION_V6));
}

#[test]
fn malformed_roce_is_no_roce() {
    let roce = |frame: &[u8]| Frame::parse(frame).unwrap().roce();
    let v1 = roce_v1();
    let (mut long, mut version, mut header) = (v1.clone(), v1.clone(), v1.clone());
    long[19] += 1;
    version[14] = 0x40;
    header[20] = protocol::UDP;
    for bad in [long, version, header, v1[..v1.len() - 1].to_vec()] {
        assert_eq!(roce(&bad), None);
    }
    // Three bytes of padding and one byte of payload fit. Without payload they do not.
    let mut padded = v1.clone();
    padded[55] |= 0x30;
    assert_eq!(roce(&padded).map(|roce| roce.content(&padded).to_vec()), Some(vec![b't']));
    padded[19] -= 4;
    assert_eq!(roce(&padded), None);
    let mut other_port = roce_v6();
    other_port[57] ^= 1;
    assert_eq!(roce(&other_port), None);
    // Options of IPv4 make the ICRC undefined.
    let v4 = roce_v4();
    let mut options = [&v4[..34], &[1; 4], &v4[34..]].concat();
    options[14] = 0x46;
    options[17] += 4;
    assert_eq!(ip(&options).ports(), Some((0, UDP_PORT)));
    assert_eq!(roce(&options), None);
    write_icrc(&mut options);
    assert_eq!(options[38..], v4[34..]);
}

#[test]
fn sums_of_known_bytes() {
    // RFC 1071, section 3.
    assert_eq!(sum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    assert_eq!((sum(&[]), sum(&[0xab]), sum(&[0xff; 6]), sum(&[1, 2, 3])), (0, 0xab00, 0xffff, 0x0402));
    assert_eq!(add(0xffff, 1), 1);
    // The longest packet does not overflow.
    assert_eq!(sum(&vec![0xff; 65_535]), add(sum(&vec![0xff; 65_534]), 0xff00));
}

#[test]
fn zero_is_no_checksum_over_ipv4_only() {
    let mut v4 = udp(b"payload");
    assert_eq!(ip(&v4).transport_checksum_is_right(), Some(true));
    v4[40..42].fill(0);
    assert_eq!(ip(&v4).transport_checksum_is_right(), Some(true));
    v4[41] = 1;
    assert_eq!(ip(&v4).transport_checksum_is_right(), Some(false));
    assert_eq!(ip(&roce_v6()).transport_checksum_is_right(), Some(false));
    // A payload whose checksum is 0 gets 0xffff.
    let (mut frame, mut seen) = (udp(&[0, 0]), false);
    for word in 0..=0xffffu16 {
        frame[42..44].copy_from_slice(&word.to_be_bytes());
        write_checksums(&mut frame, false, true);
        assert_ne!(frame[40..42], [0, 0]);
        seen |= frame[40..42] == [0xff, 0xff];
        assert_eq!(ip(&frame).transport_checksum_is_right(), Some(true));
    }
    assert!(seen);
}

#[test]
fn only_capable_packets_are_marked() {
    for (class, marked) in [(0x68, false), (0x69, true), (0x6a, true), (0x6b, false)] {
        let mut v4 = roce_v4();
        v4[15] = class;
        write_checksums(&mut v4, true, false);
        let mut v6 = roce_v6();
        v6[14..16].copy_from_slice(&[0x60 | class >> 4, class << 4 | 9]);
        for mut frame in [v4, v6] {
            let before = frame.clone();
            assert_eq!(mark_congestion(&mut frame), marked);
            assert_eq!(ip(&frame).traffic_class(), if marked { 0x6b } else { class });
            assert_eq!(frame == before, !marked);
            assert!(ip(&frame).header_checksum_is_right());
            assert!(Frame::parse(&frame).unwrap().roce().unwrap().icrc_is_right(&frame));
            assert!(!mark_congestion(&mut frame), "only once");
        }
    }
    assert!(!mark_congestion(&mut roce_v1()));
    // A wrong checksum remains wrong by as much.
    let mut wrong = roce_v4();
    wrong[25] ^= 0x40;
    assert!(mark_congestion(&mut wrong) && !ip(&wrong).header_checksum_is_right());
    assert_eq!(ip(&wrong).ecn(), Ecn::Congested);
}

/// Microsoft's key and vectors ("Verifying the RSS hash calculation").
#[test]
fn hashes_are_those_of_the_published_vectors() {
    let key = hex("6d5a56da255b0ec24167253d43a38fb0 d0ca2bcbae7b30b477cb2da38030f20c 6a42b73bbeac01fa");
    let key = key.first_chunk().unwrap();
    let v4 = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets().to_vec();
    let v6 = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets().to_vec();
    for (source, source_port, destination, port, addresses, all) in [
        (v4("66.9.149.187"), 2794u16, v4("161.142.100.80"), 1766u16, 0x323e_8fc2, 0x51cc_c178),
        (v4("199.92.111.2"), 14230, v4("65.69.140.83"), 4739, 0xd718_262a, 0xc626_b0ea),
        (v4("24.19.198.95"), 12898, v4("12.22.207.184"), 38024, 0xd2d0_a5de, 0x5c2b_394a),
        (v4("38.27.205.30"), 48228, v4("209.142.163.6"), 2217, 0x8298_9176, 0xafc7_327f),
        (v4("153.39.163.191"), 44251, v4("202.188.127.2"), 1303, 0x5d18_09c5, 0x10e8_28a2),
        (v6("3ffe:2501:200:1fff::7"), 2794, v6("3ffe:2501:200:3::1"), 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        (v6("3ffe:501:8::260:97ff:fe40:efab"), 14230, v6("ff02::1"), 4739, 0x0f0c_461c, 0xdde5_1bbf),
        (
            v6("3ffe:1900:4545:3:200:f8ff:fe21:67cf"),
            44251,
            v6("fe80::200:f8ff:fe21:67cf"),
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ] {
        let pair = [source, destination].concat();
        assert_eq!(toeplitz(key, pair.iter().copied()), addresses);
        let ports = [source_port.to_be_bytes(), port.to_be_bytes()].concat();
        assert_eq!(toeplitz(key, pair.into_iter().chain(ports)), all);
    }
    let longest = vec![0xa5; 36];
    let longer = vec![0xa5; 100];
    assert_eq!(toeplitz(key, longest), toeplitz(key, longer));
}

/// Input of the builder of frames.
#[derive(Clone, Debug)]
struct Plan {
    vlans: usize,
    v6: bool,
    tcp: bool,
    options: usize,
    ports: (u16, u16),
    addresses: [u8; 32],
    payload: Vec<u8>,
    padding: usize,
}

fn plans() -> impl Strategy<Value = Plan> {
    let payload = proptest::collection::vec(any::<u8>(), 0..200);
    let kinds = (0usize..3, any::<bool>(), any::<bool>(), 0usize..10);
    (kinds, any::<(u16, u16)>(), any::<[u8; 32]>(), payload, 0usize..60).prop_map(
        |((vlans, v6, tcp, options), ports, addresses, payload, padding)| Plan {
            vlans,
            v6,
            tcp,
            options,
            ports,
            addresses,
            payload,
            padding,
        },
    )
}

fn built(plan: &Plan) -> Vec<u8> {
    let (source, destination) = plan.addresses.split_at(16);
    let ip = if plan.v6 {
        let mut header = etherparse::Ipv6Header { hop_limit: 7, ..Default::default() };
        header.source.copy_from_slice(source);
        header.destination.copy_from_slice(destination);
        IpHeaders::Ipv6(header, Default::default())
    } else {
        let addresses = [source, destination].map(|address| *address.first_chunk().unwrap());
        let [source, destination] = addresses;
        let mut header = Ipv4Header::new(0, 7, ip_number::TCP, source, destination).unwrap();
        header.options = vec![1; plan.options * 4].as_slice().try_into().unwrap();
        IpHeaders::Ipv4(header, Default::default())
    };
    let link = PacketBuilder::ethernet2(SOURCE, DESTINATION);
    let [outer, inner] = [5, 9].map(|vid| VlanId::try_new(vid).unwrap());
    let builder = match plan.vlans {
        0 => link.ip(ip),
        1 => link.single_vlan(outer).ip(ip),
        _ => link.double_vlan(outer, inner).ip(ip),
    };
    let mut frame = Vec::new();
    let (from, to) = plan.ports;
    match plan.tcp {
        true => builder.tcp(from, to, 1, 2).syn().write(&mut frame, &plan.payload).unwrap(),
        false => builder.udp(from, to).write(&mut frame, &plan.payload).unwrap(),
    }
    frame.resize(frame.len() + plan.padding, 0xee);
    frame
}

proptest! {
    #[test]
    fn frames_of_another_library_are_understood(plan in plans()) {
        let bytes = built(&plan);
        let frame = Frame::parse(&bytes).unwrap();
        let tags = [frame.header().tag(), frame.header().inner_tag()].map(|tag| tag.map(Tag::vid));
        prop_assert_eq!(tags, [(plan.vlans > 0).then_some(5), (plan.vlans > 1).then_some(9)]);
        let ip = frame.ip().unwrap();
        prop_assert_eq!(ip.ports(), Some(plan.ports));
        prop_assert_eq!(ip.version() == Version::V6, plan.v6);
        prop_assert_eq!(ip.end(), bytes.len() - plan.padding);
        prop_assert_eq!((ip.hop_limit(), ip.is_fragment()), (7, false));
        let (source, destination) = plan.addresses.split_at(16);
        let len = if plan.v6 { 16 } else { 4 };
        prop_assert_eq!((ip.source(), ip.destination()), (&source[..len], &destination[..len]));
        match ip.transport() {
            Transport::Tcp { payload, flags, .. } => {
                prop_assert!(plan.tcp && flags == 2);
                prop_assert_eq!(&bytes[payload..ip.end()], &plan.payload[..]);
            }
            Transport::Udp { end, .. } => prop_assert!(!plan.tcp && end == ip.end()),
            Transport::Other => prop_assert!(false),
        }
        prop_assert!(ip.header_checksum_is_right());
        prop_assert_eq!(ip.transport_checksum_is_right(), Some(true));

        // The same checksums result from frames without and with wrong ones.
        for fill in [0, 0xa5] {
            let mut again = bytes.clone();
            if !plan.v6 {
                again[ip.start() + 10..ip.start() + 12].fill(fill);
            }
            let at = ip.transport_start() + if plan.tcp { 16 } else { 6 };
            again[at..at + 2].fill(fill);
            write_checksums(&mut again, true, true);
            prop_assert_eq!(&again, &bytes);
        }
        // The sum of the packet is that of its words.
        let words = ip.packet().chunks(2).map(|pair| {
            u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))
        });
        let total: u64 = words.sum();
        prop_assert_eq!(u64::from(ip.sum()) % 0xffff, total % 0xffff);
    }

    #[test]
    fn every_prefix_and_every_changed_byte_is_survived(plan in plans(), at: usize, value: u8, cut: usize) {
        let mut bytes = built(&plan);
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(cut % (bytes.len() + 1));
        survive(bytes)?;
    }

    #[test]
    fn any_bytes_are_survived(
        kind in 0usize..7,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        version in proptest::sample::select(vec![0x45u8, 0x46, 0x4f, 0x60, 0x6f]),
        next in proptest::sample::select(vec![0u8, 6, 17, 43, 44, 60, 0x1b]),
    ) {
        let kinds = [0x0800, 0x86dd, 0x8915, 0x0806, 0x8100, 0x88a8, 0x1234u16];
        let mut frame = frame_of(kinds[kind], &bytes);
        for (at, byte) in [(14, version), (20, next), (23, next), (54, next), (16, 0), (18, 0)] {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        survive(frame)?;
        survive(bytes)?;
    }
}

/// Uses everything that a receiver may use of a frame, and checks that positions are in order.
fn survive(mut bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let Some(frame) = Frame::parse(&bytes) else {
        prop_assert!(bytes.len() < HEADER_LEN);
        return Ok(());
    };
    prop_assert!(frame.header().start() <= bytes.len());
    if let Some(ip) = frame.ip() {
        prop_assert!(frame.header().start() == ip.start() && ip.start() < ip.transport_start());
        prop_assert!(ip.transport_start() <= ip.end() && ip.end() <= bytes.len());
        prop_assert_eq!(ip.packet().len(), ip.end() - ip.start());
        prop_assert_eq!(ip.source().len(), ip.destination().len());
        match ip.transport() {
            Transport::Tcp { payload, .. } => prop_assert!(payload <= ip.end()),
            Transport::Udp { end, .. } => prop_assert!(end <= ip.end()),
            Transport::Other => prop_assert_eq!(ip.transport_checksum_is_right(), None),
        }
        let _ = (ip.sum(), ip.header_checksum_is_right(), ip.transport_checksum_is_right(), ip.hop_limit());
        let _ = (ip.source_gid(), ip.destination_gid(), ip.ecn());
    }
    if let Some(roce) = frame.roce() {
        prop_assert!(roce.body() <= roce.end() && roce.end() + 4 <= bytes.len());
        let _ = (roce.icrc_is_right(&bytes), roce.content(&bytes));
    }
    let length = bytes.len();
    write_checksums(&mut bytes, true, true);
    if let Some(ip) = Frame::parse(&bytes).unwrap().ip() {
        prop_assert!(ip.header_checksum_is_right());
        prop_assert_ne!(ip.transport_checksum_is_right(), Some(false));
    }
    mark_congestion(&mut bytes);
    write_icrc(&mut bytes);
    if let Some(roce) = Frame::parse(&bytes).unwrap().roce() {
        prop_assert!(roce.icrc_is_right(&bytes));
    }
    prop_assert_eq!(bytes.len(), length);
    Ok(())
}
