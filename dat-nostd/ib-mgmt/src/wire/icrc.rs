//! The invariant CRC: a CRC-32 over the packet with the fields masked that switches and routers may change
//! (IBA volume 1, section 7.8.1; RoCE annexes A16 and A17).

use super::{Bth, Grh, LNH_BTH, LNH_GRH, Lrh, WireError, crc32_update, split};

/// A running invariant CRC. Feed it masked headers (or let [`Icrc::ib_headers`] do it), then the rest as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icrc(u32);

impl Default for Icrc {
    fn default() -> Self {
        Icrc::new()
    }
}

impl Icrc {
    /// An InfiniBand link packet's, before its LRH.
    pub const fn new() -> Icrc {
        Icrc(!0)
    }

    /// A RoCE packet's, before its IP header or GRH: eight bytes of 0xff in place of the LRH are in already.
    pub const fn roce() -> Icrc {
        Icrc(0xdebb_20e3)
    }

    /// Adds bytes as they are.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Icrc {
        self.0 = crc32_update(self.0, bytes);
        self
    }

    /// Adds the LRH of a packet without a GRH, its VL masked. With a GRH start from [`Icrc::roce`]: the whole LRH counts as ones.
    pub fn lrh(&mut self, lrh: &[u8; Lrh::LEN]) -> &mut Icrc {
        let mut masked = *lrh;
        masked[0] |= 0xf0;
        self.update(&masked)
    }

    /// Adds a GRH (or IPv6 header) with traffic class, flow label and hop limit masked.
    pub fn grh(&mut self, grh: &[u8; Grh::LEN]) -> &mut Icrc {
        let mut masked = *grh;
        masked[0] |= 0x0f;
        masked[1] = 0xff;
        masked[2] = 0xff;
        masked[3] = 0xff;
        masked[7] = 0xff;
        self.update(&masked)
    }

    /// Adds a BTH with its FECN, BECN and reserved byte masked.
    pub fn bth(&mut self, bth: &[u8; Bth::LEN]) -> &mut Icrc {
        let mut masked = *bth;
        masked[4] = 0xff;
        self.update(&masked)
    }

    /// Starts an InfiniBand packet's CRC with its headers. Follow with extended headers, payload and padding.
    pub fn ib_headers(lrh: &Lrh, grh: Option<&Grh>, bth: &Bth) -> Icrc {
        let mut icrc = match grh {
            Some(grh) => *Icrc::roce().grh(&grh.to_bytes()),
            None => *Icrc::new().lrh(&lrh.to_bytes()),
        };
        icrc.bth(&bth.to_bytes());
        icrc
    }

    /// The CRC; it goes on the wire least significant byte first.
    pub const fn finish(self) -> u32 {
        !self.0
    }

    /// The CRC in wire order.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.finish().to_le_bytes()
    }
}

/// The ICRC of an InfiniBand link packet, given from the LRH to the end of the padding. A router replaces the LRH of a packet
/// with a GRH, so that the whole of it counts as ones there (IBTA 7.8.1).
pub fn icrc_ib(packet: &[u8]) -> Result<u32, WireError> {
    let (lrh, rest) = split::<{ Lrh::LEN }>(packet)?;
    let (mut icrc, rest) = match lrh[1] & 3 {
        LNH_BTH => {
            let mut icrc = Icrc::new();
            icrc.lrh(lrh);
            (icrc, rest)
        }
        LNH_GRH => {
            let (grh, rest) = split::<{ Grh::LEN }>(rest)?;
            let mut icrc = Icrc::roce();
            icrc.grh(grh);
            (icrc, rest)
        }
        _ => return Err(WireError::Malformed),
    };
    let (bth, rest) = split::<{ Bth::LEN }>(rest)?;
    icrc.bth(bth).update(rest);
    Ok(icrc.finish())
}

/// The ICRC of a RoCE v1 packet, given from the GRH to the end of the padding.
pub fn icrc_roce_v1(packet: &[u8]) -> Result<u32, WireError> {
    let (grh, rest) = split::<{ Grh::LEN }>(packet)?;
    let (bth, rest) = split::<{ Bth::LEN }>(rest)?;
    let mut icrc = Icrc::roce();
    icrc.grh(grh).bth(bth).update(rest);
    Ok(icrc.finish())
}

/// The ICRC of a RoCE v2 packet, given from the IPv4 (without options) or IPv6 header to the end of the padding.
/// IP and UDP lengths must be final, the ICRC's 4 bytes included.
pub fn icrc_roce_v2(packet: &[u8]) -> Result<u32, WireError> {
    let mut icrc = Icrc::roce();
    let rest = match packet.first().ok_or(WireError::Truncated)? {
        0x45 => {
            let (ip, rest) = split::<20>(packet)?;
            let mut masked = *ip;
            masked[1] = 0xff;
            masked[8] = 0xff;
            masked[10] = 0xff;
            masked[11] = 0xff;
            icrc.update(&masked);
            rest
        }
        first if first >> 4 == 6 => {
            let (ip, rest) = split::<40>(packet)?;
            icrc.grh(ip);
            rest
        }
        _ => return Err(WireError::Malformed),
    };
    let (udp, rest) = split::<8>(rest)?;
    let mut masked = *udp;
    masked[6] = 0xff;
    masked[7] = 0xff;
    let (bth, rest) = split::<{ Bth::LEN }>(rest)?;
    icrc.update(&masked).bth(bth).update(rest);
    Ok(icrc.finish())
}

#[cfg(test)]
mod tests {
    use super::super::crc::tests::bitwise;
    use super::*;
    use crate::testing::hex;
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
        assert_eq!(icrc_roce_v2(packet).unwrap().to_le_bytes(), icrc);
    }

    #[test]
    fn uc_send_only_over_udp() {
        // IPv4: TOS 1, total length 20 + 8 + 12 + 20 + 4, id 1144, DF, TTL 64, UDP 49152 -> 4791.
        let packet = hex("45010040 04784000 40110000 c0a80007 c0a80007
            c000 12b7 002c 0000
            24 60 ffff 000000d3 00cf1710
            4630818be28935d90e9a95505401be885e500000");
        assert_eq!(icrc_roce_v2(&packet).unwrap().to_le_bytes(), [0x78, 0xf3, 0x53, 0xf3]);
    }

    #[test]
    fn sample_packet_of_the_specification() {
        // IBA volume 1, section 7.8.3, local packet: an RDMA WRITE only of 14 bytes, ICRC 9625b75a.
        let packet = hex("7012375c000e17d2 0a20248700 87b1b3000dec2a 01710a1c015d4002 38f27a05000000
            0ebb884d85fd5cfba4728bc0690ed40000");
        let icrc = icrc_ib(&packet).unwrap().to_le_bytes();
        assert_eq!(icrc, [0x96, 0x25, 0xb7, 0x5a]);
        let mut whole = packet;
        whole.extend(icrc);
        assert_eq!(super::super::vcrc(&whole).to_le_bytes(), [0x45, 0xfa]);
    }

    #[test]
    fn what_the_network_changes_does_not_count() {
        let mut packet = vec![0x70, 0x13, 0, 1, 0, 20, 0, 2];
        packet.extend(Grh { hop_limit: 64, next_header: 0x1b, ..Grh::default() }.to_bytes());
        packet.extend(Bth::new(super::super::Opcode::RC_SEND_ONLY, 0xffff, 9, 7).to_bytes());
        packet.extend([1, 2, 3, 4]);
        let before = icrc_ib(&packet).unwrap();
        packet[0] = 0x20; // VL
        packet[8] = 0x6f; // traffic class
        packet[10] = 0x55; // flow label
        packet[15] = 3; // hop limit
        packet[52] = 0x80; // FECN
        assert_eq!(icrc_ib(&packet).unwrap(), before);
        packet[2] = 1; // DLID: a router replaces the LRH
        assert_eq!(icrc_ib(&packet).unwrap(), before);
        packet[47] = 1; // DGID
        assert_ne!(icrc_ib(&packet).unwrap(), before);
    }

    proptest! {
        #[test]
        fn ib_equals_a_bitwise_crc_of_the_masked_packet(
            mut packet in proptest::collection::vec(any::<u8>(), 60..120), global: bool,
        ) {
            packet[0] &= 0xf0;
            packet[1] = packet[1] & 0xfc | if global { 3 } else { 2 };
            let fast = icrc_ib(&packet).unwrap();
            packet[0] |= 0xf0;
            let bth = if global {
                packet[..8].fill(0xff);
                packet[8] |= 0x0f;
                for i in [9, 10, 11, 15] { packet[i] = 0xff; }
                48
            } else { 8 };
            packet[bth + 4] = 0xff;
            prop_assert_eq!(u64::from(fast), bitwise(&packet, 32, 0x04c1_1db7));
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(packet in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = icrc_ib(&packet);
            let _ = icrc_roce_v1(&packet);
            let _ = icrc_roce_v2(&packet);
        }
    }
}
