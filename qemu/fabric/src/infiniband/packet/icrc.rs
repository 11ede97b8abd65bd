//! The invariant CRC: a CRC-32 over the packet with the fields masked that switches and routers may change
//! (IBTA 1.3, 7.8.1; RoCE annexes A16 and A17). The CRC-32 itself is by the processor's carry-less multiply.

use crc32fast::Hasher;

use super::{Bth, Grh, LNH_BTH, LNH_GRH, Lrh};

/// Bytes of the invariant CRC.
pub const ICRC_LEN: usize = 4;

/// A running invariant CRC: headers, which are masked on the way, then the rest as it is.
struct Icrc(Hasher);

impl Icrc {
    /// Behind an LRH, which counts without its VL.
    #[inline]
    fn local(lrh: &[u8; Lrh::LEN]) -> Self {
        let mut masked = *lrh;
        masked[0] |= 0xf0;
        Self(Hasher::new()).bytes(&masked)
    }

    /// Before a GRH or an IP header. A router replaces the LRH, and RoCE has none: all of it counts as ones.
    #[inline]
    fn routed() -> Self {
        Self(Hasher::new()).bytes(&[0xff; Lrh::LEN])
    }

    /// Bytes as they are.
    #[inline]
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// A GRH or IPv6 header, without traffic class, flow label and hop limit.
    #[inline]
    fn grh(self, grh: &[u8; Grh::LEN]) -> Self {
        let mut masked = *grh;
        masked[0] |= 0x0f;
        masked[1..4].fill(0xff);
        masked[7] = 0xff;
        self.bytes(&masked)
    }

    /// An IPv4 header, without type of service, time to live and checksum.
    fn ipv4(self, ip: &[u8; 20]) -> Self {
        let mut masked = *ip;
        masked[1] = 0xff;
        masked[8] = 0xff;
        masked[10..12].fill(0xff);
        self.bytes(&masked)
    }

    /// A UDP header, without checksum.
    fn udp(self, udp: &[u8; 8]) -> Self {
        let mut masked = *udp;
        masked[6..8].fill(0xff);
        self.bytes(&masked)
    }

    /// A BTH, without FECN and BECN, and all that follows; gives the CRC in wire order.
    #[inline]
    fn transport(self, packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
        let (bth, rest) = packet.split_first_chunk::<{ Bth::LEN }>()?;
        let mut masked = *bth;
        masked[4] = 0xff;
        Some(self.bytes(&masked).bytes(rest).0.finalize().to_le_bytes())
    }
}

/// The invariant CRC of an InfiniBand packet, given from the LRH to the end of the padding, in wire order. `None` if the
/// packet is too short to have its headers, or a raw one.
#[inline]
pub fn icrc(packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (lrh, rest) = packet.split_first_chunk::<{ Lrh::LEN }>()?;
    match lrh[1] & 3 {
        LNH_BTH => Icrc::local(lrh).transport(rest),
        LNH_GRH => icrc_roce_v1(rest),
        _ => None,
    }
}

/// The invariant CRC of a RoCE v1 packet, given from the GRH to the end of the padding, in wire order.
#[inline]
pub fn icrc_roce_v1(packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (grh, rest) = packet.split_first_chunk::<{ Grh::LEN }>()?;
    Icrc::routed().grh(grh).transport(rest)
}

/// The invariant CRC of a RoCE v2 packet, given from the IPv4 (without options) or IPv6 header to the end of the padding, in
/// wire order. IP and UDP lengths must be final, the 4 bytes of the CRC included.
pub fn icrc_roce_v2(packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (icrc, rest) = match packet.first()? {
        0x45 => {
            let (ip, rest) = packet.split_first_chunk()?;
            (Icrc::routed().ipv4(ip), rest)
        }
        first if first >> 4 == 6 => {
            let (ip, rest) = packet.split_first_chunk()?;
            (Icrc::routed().grh(ip), rest)
        }
        _ => return None,
    };
    let (udp, rest) = rest.split_first_chunk()?;
    icrc.udp(udp).transport(rest)
}

/// Appends the ICRC to a packet that ends with its payload and padding. A packet too short to have an LRH and a BTH stays
/// as it is.
pub fn append_icrc(packet: &mut Vec<u8>) {
    if let Some(crc) = icrc(packet) {
        packet.extend_from_slice(&crc);
    }
}

/// Makes the last four bytes of `packet` its ICRC. A packet too short to have an LRH, a BTH and an ICRC stays as it is.
pub fn write_icrc(packet: &mut [u8]) {
    if let Some((covered, place)) = packet.split_last_chunk_mut::<ICRC_LEN>()
        && let Some(crc) = icrc(covered)
    {
        *place = crc;
    }
}

/// Whether the last four bytes of `packet` are its ICRC.
#[must_use]
#[inline]
pub fn icrc_is_right(packet: &[u8]) -> bool {
    packet
        .split_last_chunk::<ICRC_LEN>()
        .is_some_and(|(covered, crc)| icrc(covered).is_some_and(|expected| expected == *crc))
}

#[cfg(test)]
mod tests {
    use super::super::vcrc::tests::bitwise;
    use super::*;
    use crate::infiniband::packet::tests::hex;
    use proptest::prelude::*;

    #[test]
    fn cnp_of_a_connectx_4_lx() {
        let frame = hex("e41d2dab2bc2 7cfe90643b32 0800
            45c2003c 718c4000 40119161 0a001101 0a001201
            0000 12b7 0028 0000
            81 00 ffff 40 000118 00 000000
            00000000 00000000 00000000 00000000
            82fd002a");
        let ip = &frame[14..];
        let (packet, icrc) = ip.split_at(ip.len() - 4);
        assert_eq!(icrc_roce_v2(packet).unwrap(), icrc);
    }

    #[test]
    fn uc_send_only_over_udp() {
        // IPv4: TOS 1, total length 20 + 8 + 12 + 20 + 4, id 1144, DF, TTL 64, UDP 49152 -> 4791.
        let packet = hex("45010040 04784000 40110000 c0a80007 c0a80007
            c000 12b7 002c 0000
            24 60 ffff 000000d3 00cf1710
            4630818be28935d90e9a95505401be885e500000");
        assert_eq!(icrc_roce_v2(&packet).unwrap(), [0x78, 0xf3, 0x53, 0xf3]);
    }

    #[test]
    fn sample_packet_of_the_specification() {
        // IBA volume 1, section 7.8.3, local packet: an RDMA WRITE only of 14 bytes, ICRC 9625b75a.
        let packet = hex("7012375c000e17d2 0a20248700 87b1b3000dec2a 01710a1c015d4002 38f27a05000000
            0ebb884d85fd5cfba4728bc0690ed40000");
        let icrc = icrc(&packet).unwrap();
        assert_eq!(icrc, [0x96, 0x25, 0xb7, 0x5a]);
        let mut whole = packet;
        whole.extend(icrc);
        assert_eq!(super::super::vcrc(&whole).to_le_bytes(), [0x45, 0xfa]);
    }

    /// The sample packet of IBTA 7.8: an RDMA WRITE only, 14 bytes and 2 of padding.
    const SAMPLE: [u8; 52] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00,
        0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00,
        0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00,
        0x00,
    ];

    #[test]
    fn icrc_of_the_specifications_sample() {
        assert_eq!(icrc(&SAMPLE), Some([0x96, 0x25, 0xb7, 0x5a]));
        let mut packet = SAMPLE.to_vec();
        append_icrc(&mut packet);
        assert!(icrc_is_right(&packet));
        packet[40] ^= 1;
        assert!(!icrc_is_right(&packet));
    }

    #[test]
    fn icrc_ignores_what_a_switch_may_change() {
        let mut packet = SAMPLE.to_vec();
        append_icrc(&mut packet);
        packet[0] = 0x20; // another VL
        packet[12] = 0xc0; // FECN and BECN
        assert!(icrc_is_right(&packet));
        packet[1] ^= 0x10; // the service level is end to end
        assert!(!icrc_is_right(&packet));
    }

    #[test]
    fn icrc_with_grh_covers_what_a_router_keeps() {
        let mut packet = vec![0x00, 0x13, 0, 2, 0, 24, 0, 1];
        packet.extend_from_slice(&[0x61, 2, 3, 4, 0, 60, 0x1b, 1]);
        packet.extend((0..32u8).map(|i| i ^ 0x35));
        packet.extend_from_slice(&SAMPLE[8..]);
        // RoCE v1 is the same network header behind eight bytes of ones, and has public vectors.
        assert_eq!(icrc_roce_v1(&packet[8..]), icrc(&packet));
        let mut whole = packet.clone();
        append_icrc(&mut whole);
        for (at, mask) in [(1, 0xf0), (3, 0xff), (8, 0x0f), (9, 0xff), (11, 0xff), (15, 0xff), (52, 0xff)] {
            whole[at] ^= mask;
        }
        assert!(icrc_is_right(&whole));
        whole[16] ^= 1;
        assert!(!icrc_is_right(&whole));
    }

    #[test]
    fn what_has_no_headers_has_no_icrc() {
        assert_eq!(icrc(&SAMPLE[..19]), None);
        assert!(!icrc_is_right(&SAMPLE[..3]));
        let mut raw = SAMPLE;
        raw[1] &= 0xfc;
        assert_eq!(icrc(&raw), None);
    }

    #[test]
    fn what_the_network_changes_does_not_count() {
        let mut packet = vec![0x70, 0x13, 0, 1, 0, 20, 0, 2];
        packet.extend(Grh { hop_limit: 64, next_header: 0x1b, ..Grh::default() }.to_bytes());
        packet.extend(Bth::new(super::super::Opcode::RC_SEND_ONLY, 0xffff, 9, 7).to_bytes());
        packet.extend([1, 2, 3, 4]);
        let before = icrc(&packet).unwrap();
        packet[0] = 0x20; // VL
        packet[8] = 0x6f; // traffic class
        packet[10] = 0x55; // flow label
        packet[15] = 3; // hop limit
        packet[52] = 0x80; // FECN
        assert_eq!(icrc(&packet).unwrap(), before);
        packet[2] = 1; // DLID: a router replaces the LRH
        assert_eq!(icrc(&packet).unwrap(), before);
        packet[47] = 1; // DGID
        assert_ne!(icrc(&packet).unwrap(), before);
    }

    proptest! {
        #[test]
        fn ib_equals_a_bitwise_crc_of_the_masked_packet(
            mut packet in proptest::collection::vec(any::<u8>(), 60..120), global: bool,
        ) {
            packet[0] &= 0xf0;
            packet[1] = packet[1] & 0xfc | if global { 3 } else { 2 };
            let fast = icrc(&packet).unwrap();
            packet[0] |= 0xf0;
            let bth = if global {
                packet[..8].fill(0xff);
                packet[8] |= 0x0f;
                for i in [9, 10, 11, 15] { packet[i] = 0xff; }
                48
            } else { 8 };
            packet[bth + 4] = 0xff;
            prop_assert_eq!(u64::from(u32::from_le_bytes(fast)), bitwise(&packet, 32, 0x04c1_1db7));
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(packet in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = icrc(&packet);
            let _ = icrc_roce_v1(&packet);
            let _ = icrc_roce_v2(&packet);
        }
    }
}
