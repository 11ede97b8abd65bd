//! Where things are in a packet: taken apart without a look at its payload.

use super::{Bth, Grh, ICRC_LEN, LNH_BTH, LNH_GRH, Lrh};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infiniband::packet::Opcode;

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
    }
}
