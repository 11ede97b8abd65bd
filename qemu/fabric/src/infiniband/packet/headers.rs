//! LRH, GRH and BTH (IBA volume 1, sections 7.7, 8.3 and 9.2).

use super::{MASK_24, Opcode, WireError, split};
use ib_types::Gid;

/// `Lrh::link_next_header`: a BTH follows (local packet).
pub const LNH_BTH: u8 = 2;
/// `Lrh::link_next_header`: a GRH follows, then a BTH (global packet).
pub const LNH_GRH: u8 = 3;
/// `Grh::next_header`: a BTH follows.
pub const GRH_NEXT_HEADER_IBA: u8 = 0x1b;

/// Local route header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lrh {
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// What follows: [`LNH_BTH`] or [`LNH_GRH`].
    pub link_next_header: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Packet length in 4-byte words, from the LRH's first byte to the ICRC's last; 11 bits.
    pub length_words: u16,
    /// Source LID.
    pub slid: u16,
}

impl Lrh {
    /// Encoded length in bytes.
    pub const LEN: usize = 8;

    /// Reads an LRH off the front of `bytes`; a link version other than 0 is [`WireError::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Lrh, WireError> {
        let (b, _) = split::<8>(bytes)?;
        if b[0] & 0x0f != 0 {
            return Err(WireError::Malformed);
        }
        Ok(Lrh {
            vl: b[0] >> 4,
            sl: b[1] >> 4,
            link_next_header: b[1] & 3,
            dlid: u16::from_be_bytes([b[2], b[3]]),
            length_words: u16::from_be_bytes([b[4] & 7, b[5]]),
            slid: u16::from_be_bytes([b[6], b[7]]),
        })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 8] {
        let [d0, d1] = self.dlid.to_be_bytes();
        let [l0, l1] = (self.length_words & 0x7ff).to_be_bytes();
        let [s0, s1] = self.slid.to_be_bytes();
        [self.vl << 4, (self.sl << 4) | (self.link_next_header & 3), d0, d1, l0, l1, s0, s1]
    }
}

/// Global route header, 40 bytes; on RoCE v1 the same, on UD receive buffers its 40 bytes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the GRH, ICRC included, VCRC not.
    pub payload_len: u16,
    /// Next header, [`GRH_NEXT_HEADER_IBA`].
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

impl Grh {
    /// Encoded length in bytes.
    pub const LEN: usize = 40;

    /// Reads a GRH off the front of `bytes`; an IP version other than 6 is [`WireError::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Grh, WireError> {
        let (b, rest) = split::<8>(bytes)?;
        let (sgid, rest) = split::<16>(rest)?;
        let (dgid, _) = split::<16>(rest)?;
        let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if word >> 28 != 6 {
            return Err(WireError::Malformed);
        }
        Ok(Grh {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            payload_len: u16::from_be_bytes([b[4], b[5]]),
            next_header: b[6],
            hop_limit: b[7],
            sgid: Gid(*sgid),
            dgid: Gid(*dgid),
        })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 40] {
        let mut b = [0; 40];
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        b[0..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.sgid.0);
        b[24..40].copy_from_slice(&self.dgid.0);
        b
    }
}

/// Base transport header, 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration request: true ("migrated") unless automatic path migration is in use.
    pub mig_req: bool,
    /// Zero bytes between payload and ICRC, 0 to 3.
    pub pad_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination QP number, 24 bits.
    pub dest_qpn: u32,
    /// Acknowledge request.
    pub ack_req: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Encoded length in bytes.
    pub const LEN: usize = 12;

    /// A BTH with the usual bits: migrated, no padding, no congestion bits, nothing solicited.
    pub const fn new(opcode: Opcode, pkey: u16, dest_qpn: u32, psn: u32) -> Bth {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad_count: 0,
            pkey,
            fecn: false,
            becn: false,
            dest_qpn: dest_qpn & MASK_24,
            ack_req: false,
            psn: psn & MASK_24,
        }
    }

    /// Reads a BTH off the front of `bytes`; a transport version other than 0 is [`WireError::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Bth, WireError> {
        let (b, _) = split::<12>(bytes)?;
        if b[1] & 0x0f != 0 {
            return Err(WireError::Malformed);
        }
        Ok(Bth {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad_count: b[1] >> 4 & 3,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: u32::from_be_bytes([0, b[5], b[6], b[7]]),
            ack_req: b[8] & 0x80 != 0,
            psn: u32::from_be_bytes([0, b[9], b[10], b[11]]),
        })
    }

    /// The wire bytes.
    pub fn to_bytes(&self) -> [u8; 12] {
        let [p0, p1] = self.pkey.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qpn.to_be_bytes();
        let [_, s0, s1, s2] = self.psn.to_be_bytes();
        [
            self.opcode.0,
            u8::from(self.solicited) << 7 | u8::from(self.mig_req) << 6 | (self.pad_count & 3) << 4,
            p0,
            p1,
            u8::from(self.fecn) << 7 | u8::from(self.becn) << 6,
            q0,
            q1,
            q2,
            u8::from(self.ack_req) << 7,
            s0,
            s1,
            s2,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bth_golden() {
        // RC SEND-only, MigReq 1, P_Key 0xffff, QPN 0x10, AckReq, PSN 1.
        let bytes = [0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x10, 0x80, 0, 0, 1];
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY, 0xffff, 0x10, 1) };
        assert_eq!(bth.to_bytes(), bytes);
        assert_eq!(Bth::parse(&bytes), Ok(bth));
    }

    #[test]
    fn lrh_golden() {
        // The specification's sample packet: VL 7, SL 1, local, DLID 0x375c, 14 words, SLID 0x17d2.
        let bytes = [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2];
        let lrh =
            Lrh { vl: 7, sl: 1, link_next_header: LNH_BTH, dlid: 0x375c, length_words: 14, slid: 0x17d2 };
        assert_eq!(lrh.to_bytes(), bytes);
        assert_eq!(Lrh::parse(&bytes), Ok(lrh));
    }

    #[test]
    fn grh_golden() {
        let mut bytes = [0u8; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0x01, 0x2c, 0x1b, 0x40]);
        bytes[8] = 0xfe;
        bytes[39] = 0x77;
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!((grh.traffic_class, grh.flow_label), (0xab, 0x12345));
        assert_eq!((grh.payload_len, grh.next_header, grh.hop_limit), (300, GRH_NEXT_HEADER_IBA, 64));
        assert_eq!((grh.sgid.0[0], grh.dgid.0[15]), (0xfe, 0x77));
        assert_eq!(grh.to_bytes(), bytes);
    }

    #[test]
    fn wrong_versions_and_short_input_are_errors() {
        assert_eq!(Lrh::parse(&[0x71, 2, 0, 0, 0, 0, 0, 0]), Err(WireError::Malformed));
        assert_eq!(Grh::parse(&[0x40; 40]), Err(WireError::Malformed));
        assert_eq!(Bth::parse(&[0x04, 0x41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(WireError::Malformed));
        assert_eq!(Lrh::parse(&[0; 7]), Err(WireError::Truncated));
        assert_eq!(Grh::parse(&[0x60; 39]), Err(WireError::Truncated));
        assert_eq!(Bth::parse(&[0; 11]), Err(WireError::Truncated));
    }

    proptest! {
        #[test]
        fn bth_round_trip(
            op: u8, solicited: bool, mig_req: bool, pad_count in 0u8..4, pkey: u16, fecn: bool, becn: bool,
            dest_qpn in 0u32..1 << 24, ack_req: bool, psn in 0u32..1 << 24,
        ) {
            let bth = Bth {
                opcode: Opcode(op), solicited, mig_req, pad_count, pkey, fecn, becn, dest_qpn, ack_req, psn,
            };
            prop_assert_eq!(Bth::parse(&bth.to_bytes()), Ok(bth));
        }

        #[test]
        fn lrh_round_trip(
            vl in 0u8..16, sl in 0u8..16, lnh in 0u8..4, dlid: u16, length_words in 0u16..0x800, slid: u16,
        ) {
            let lrh = Lrh { vl, sl, link_next_header: lnh, dlid, length_words, slid };
            prop_assert_eq!(Lrh::parse(&lrh.to_bytes()), Ok(lrh));
        }

        #[test]
        fn grh_round_trip(
            tc: u8, flow_label in 0u32..1 << 20, payload_len: u16, nh: u8, hop_limit: u8,
            sgid: [u8; 16], dgid: [u8; 16],
        ) {
            let grh = Grh {
                traffic_class: tc, flow_label, payload_len, next_header: nh, hop_limit,
                sgid: Gid(sgid), dgid: Gid(dgid),
            };
            prop_assert_eq!(Grh::parse(&grh.to_bytes()), Ok(grh));
        }
    }
}
