//! Where things are in a packet, and its invariant CRC.
//!
//! The headers themselves are `ib-mgmt`'s; here is what the data path needs beyond them: a packet taken apart without
//! touching its payload, and an ICRC by the processor's carry-less multiply.

use crc32fast::Hasher;
use ib_mgmt::wire::{Bth, Grh, LNH_BTH, LNH_GRH, Lrh};

pub use ib_mgmt::wire::ICRC_LEN;

/// The LID that every port answers to before it has one (IBTA 4.1.3).
pub const LID_PERMISSIVE: u16 = 0xffff;
/// The first multicast LID (IBTA 4.1.3).
pub const LID_MULTICAST: u16 = 0xc000;
/// The virtual lane of subnet management packets.
pub const VL_MANAGEMENT: u8 = 15;
/// The destination QP of multicast packets.
pub const QPN_MULTICAST: u32 = 0xff_ffff;
/// Q_Key of all general services traffic (IBTA 10.2.5).
pub const QKEY_GSI: u32 = 0x8001_0000;

/// What is known of a packet whose lengths agree with one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its local route header.
    pub lrh: Lrh,
    /// Its base transport header.
    pub bth: Bth,
    /// Offset of the first byte after the BTH.
    pub body: usize,
    /// Offset of the padding (or of the ICRC, without padding): the end of the payload.
    pub end: usize,
}

impl Shape {
    /// Takes a packet apart; `None` when its lengths contradict one another or a header is not of the kind this fabric
    /// carries (raw packets, other versions). The ICRC is not checked.
    #[must_use]
    #[inline]
    pub fn of(packet: &[u8]) -> Option<Self> {
        let lrh = Lrh::parse(packet).ok()?;
        if usize::from(lrh.length_words) * 4 != packet.len() {
            return None;
        }
        let at = match lrh.link_next_header {
            LNH_BTH => Lrh::LEN,
            LNH_GRH => Lrh::LEN + Grh::LEN,
            _ => return None,
        };
        let bth = Bth::parse(packet.get(at..)?).ok()?;
        let body = at + Bth::LEN;
        let end = packet.len().checked_sub(ICRC_LEN + usize::from(bth.pad_count))?;
        (body <= end).then_some(Self { lrh, bth, body, end })
    }

    /// The global route header, when there is one.
    #[must_use]
    pub fn grh(&self, packet: &[u8]) -> Option<Grh> {
        if self.lrh.link_next_header != LNH_GRH {
            return None;
        }
        Grh::parse(packet.get(Lrh::LEN..)?).ok()
    }

    /// Extended headers and payload: what lies between the BTH and the padding.
    #[must_use]
    #[inline]
    pub fn content<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        packet.get(self.body..self.end).unwrap_or_default()
    }
}

/// The invariant CRC (IBTA 7.8.1) over `packet`, LRH to the end of payload and padding, in wire order.
///
/// What switches may change counts as ones: the LRH's VL (the whole LRH when a GRH follows), the GRH's traffic class, flow
/// label and hop limit, and the BTH's FECN/BECN byte. `None` when the packet is too short to have these headers.
#[must_use]
#[inline]
pub fn icrc(packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    const LONGEST: usize = Lrh::LEN + Grh::LEN + Bth::LEN;
    let grh = packet.get(1)? & 3 == LNH_GRH;
    let len = if grh { LONGEST } else { Lrh::LEN + Bth::LEN };
    let (front, rest) = packet.split_at_checked(len)?;
    let mut masked = [0; LONGEST];
    let masked = &mut masked[..len];
    masked.copy_from_slice(front);
    if grh {
        masked[..Lrh::LEN].fill(0xff);
        masked[Lrh::LEN] |= 0x0f;
        masked[Lrh::LEN + 1..Lrh::LEN + 4].fill(0xff);
        masked[Lrh::LEN + 7] = 0xff;
    } else {
        masked[0] |= 0xf0;
    }
    masked[len - Bth::LEN + 4] = 0xff;
    let mut hasher = Hasher::new();
    hasher.update(masked);
    hasher.update(rest);
    Some(hasher.finalize().to_le_bytes())
}

/// Appends the ICRC to a packet that ends with its payload and padding. A packet too short to have an LRH and a BTH stays
/// as it is.
pub fn append_icrc(packet: &mut Vec<u8>) {
    if let Some(crc) = icrc(packet) {
        packet.extend_from_slice(&crc);
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
    use super::*;
    use ib_mgmt::wire::{Opcode, icrc_roce_v1};

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
        let roce = icrc_roce_v1(&packet[8..]).map(u32::to_le_bytes);
        assert_eq!(roce.ok(), icrc(&packet));
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
    fn contradicting_lengths_are_refused() {
        let lrh = Lrh { length_words: 6, link_next_header: LNH_BTH, ..Lrh::default() }.to_bytes();
        let bth = Bth::new(Opcode::RC_SEND_ONLY, 0xffff, 2, 3).to_bytes();
        let mut packet = [&lrh[..], &bth[..], &[0; 4]].concat();
        assert!(Shape::of(&packet).is_some());
        packet[9] |= 0x30; // three bytes of padding, and nothing to pad
        assert!(Shape::of(&packet).is_none());
        packet.push(0);
        assert!(Shape::of(&packet).is_none());
        for len in 0..24 {
            assert!(Shape::of(&packet[..len]).is_none());
        }
        assert_eq!(icrc(&SAMPLE[..19]), None);
        assert!(!icrc_is_right(&SAMPLE[..3]));
    }
}
