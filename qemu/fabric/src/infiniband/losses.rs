//! What the fabric did to packets, by sender, destination and kind: a sender that numbers its packets can be checked to
//! have lost exactly these.

use std::collections::BTreeMap;

use crate::infiniband::packet::{Bth, Grh, LNH_GRH, Lrh, Transport};

use crate::infiniband::packet::{LID_MULTICAST, LID_PERMISSIVE, VL_MANAGEMENT};

/// What carries a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reliable connection.
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Unreliable datagram, to one port.
    Datagram,
    /// Unreliable datagram, to a group: each copy counts.
    Multicast,
    /// Subnet management, on its own lane.
    Management,
    /// Anything else, and packets of flows beyond the number that is told apart.
    Other,
}

/// Packets that count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// LID of the sender.
    pub source_lid: u16,
    /// LID of the destination, or of the group.
    pub dest_lid: u16,
    /// QP number of the destination.
    pub dest_qpn: u32,
    /// What carries them.
    pub kind: Kind,
}

impl Flow {
    /// The flow of flows beyond [`LIMIT`].
    const REST: Self = Self { source_lid: 0, dest_lid: 0, dest_qpn: 0, kind: Kind::Other };

    /// The flow of a packet, whatever its bytes are.
    #[must_use]
    pub fn of(packet: &[u8]) -> Self {
        let Ok(lrh) = Lrh::parse(packet) else { return Self::REST };
        let front = if lrh.link_next_header == LNH_GRH { Lrh::LEN + Grh::LEN } else { Lrh::LEN };
        let bth = packet.get(front..).unwrap_or_default();
        let opcode = bth.first().copied().map(crate::infiniband::packet::Opcode);
        let dest_qpn = bth.get(5..8).map_or(0, |b| b.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
        let multicast = (LID_MULTICAST..LID_PERMISSIVE).contains(&lrh.dlid);
        let kind = match opcode.map(crate::infiniband::packet::Opcode::transport) {
            _ if lrh.vl == VL_MANAGEMENT => Kind::Management,
            Some(Transport::Rc) => Kind::Reliable,
            Some(Transport::Uc) => Kind::Unreliable,
            Some(Transport::Ud) if multicast => Kind::Multicast,
            Some(Transport::Ud) => Kind::Datagram,
            _ => Kind::Other,
        };
        Self { source_lid: lrh.slid, dest_lid: lrh.dlid, dest_qpn, kind }
    }
}

/// The front of a packet that is given away: enough to know its flow, should it get lost.
#[derive(Clone, Copy)]
pub(super) struct Front([u8; Self::LEN], usize);

impl Front {
    const LEN: usize = Lrh::LEN + Grh::LEN + Bth::LEN;

    pub(super) fn of(packet: &[u8]) -> Self {
        let mut bytes = [0; Self::LEN];
        let len = packet.len().min(Self::LEN);
        if let (Some(to), Some(from)) = (bytes.get_mut(..len), packet.get(..len)) {
            to.copy_from_slice(from);
        }
        Self(bytes, len)
    }

    pub(super) fn flow(&self) -> Flow {
        Flow::of(self.0.get(..self.1).unwrap_or_default())
    }
}

/// What happened to the packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lost by injected loss.
    pub dropped: u64,
    /// Arrived twice by injected duplication.
    pub duplicated: u64,
    /// Had one bit changed: lost at the receiver, unless it is a bit that no check covers.
    pub corrupted: u64,
    /// Held back for later ones to overtake.
    pub held: u64,
    /// Lost because a link was or went down.
    pub link_down: u64,
    /// Lost because a queue was full.
    pub overflow: u64,
    /// Lost because nobody has the LID.
    pub no_route: u64,
    /// Lost because the sender had not been given the LID or the P_Key.
    pub refused: u64,
}

impl Losses {
    /// Packets that never arrive: everything lost on the way, corrupted ones not among them.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.dropped + self.link_down + self.overflow + self.no_route + self.refused
    }

    fn add(&mut self, other: &Self) {
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.held += other.held;
        self.link_down += other.link_down;
        self.overflow += other.overflow;
        self.no_route += other.no_route;
        self.refused += other.refused;
    }
}

/// Flows told apart; packets of further ones count together.
const LIMIT: usize = 16_384;

/// The losses of all flows. Flows that lost nothing are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossTable(BTreeMap<Flow, Losses>);

impl LossTable {
    /// The flows that lost something.
    pub fn iter(&self) -> impl Iterator<Item = (&Flow, &Losses)> {
        self.0.iter()
    }

    /// The losses of one flow.
    #[must_use]
    pub fn of(&self, flow: &Flow) -> Losses {
        self.0.get(flow).copied().unwrap_or_default()
    }

    /// The losses of all flows that `wanted` picks.
    #[must_use]
    pub fn sum(&self, wanted: impl Fn(&Flow) -> bool) -> Losses {
        let mut sum = Losses::default();
        for (_, losses) in self.0.iter().filter(|(flow, _)| wanted(flow)) {
            sum.add(losses);
        }
        sum
    }

    pub(super) fn entry(&mut self, flow: Flow) -> &mut Losses {
        let full = self.0.len() >= LIMIT && !self.0.contains_key(&flow);
        self.0.entry(if full { Flow::REST } else { flow }).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infiniband::packet::{LNH_BTH, Opcode};

    fn packet(vl: u8, dlid: u16, opcode: Opcode, qpn: u32, grh: bool) -> Vec<u8> {
        let link_next_header = if grh { LNH_GRH } else { LNH_BTH };
        let mut bytes = Lrh { vl, slid: 7, dlid, link_next_header, ..Lrh::default() }.to_bytes().to_vec();
        if grh {
            bytes.extend_from_slice(&[0x60; Grh::LEN]);
        }
        bytes.extend_from_slice(&Bth::new(opcode, 0xffff, qpn, 1).to_bytes());
        bytes
    }

    #[test]
    fn packets_are_told_apart() {
        for (packet, dest_lid, dest_qpn, kind) in [
            (packet(0, 9, Opcode::RC_SEND_ONLY, 0x1_0002, false), 9, 0x1_0002, Kind::Reliable),
            (packet(0, 9, Opcode(0x24), 5, false), 9, 5, Kind::Unreliable),
            (packet(0, 9, Opcode::UD_SEND_ONLY, 6, true), 9, 6, Kind::Datagram),
            (packet(0, 0xc001, Opcode::UD_SEND_ONLY, 0xff_ffff, true), 0xc001, 0xff_ffff, Kind::Multicast),
            (packet(15, 0xffff, Opcode::UD_SEND_ONLY, 0, false), 0xffff, 0, Kind::Management),
        ] {
            assert_eq!(Flow::of(&packet), Flow { source_lid: 7, dest_lid, dest_qpn, kind });
        }
        assert_eq!(Flow::of(&[1, 2, 3]), Flow::REST);
    }

    #[test]
    fn flows_add_up_and_their_number_is_limited() {
        let mut table = LossTable::default();
        for qpn in 0..LIMIT as u32 + 50 {
            let flow = Flow { source_lid: 2, dest_lid: 3, dest_qpn: qpn, kind: Kind::Datagram };
            table.entry(flow).dropped += 1;
        }
        assert!(table.iter().count() <= LIMIT + 1);
        assert_eq!(table.sum(|_| true).lost(), LIMIT as u64 + 50);
        let flow = Flow { source_lid: 2, dest_lid: 3, dest_qpn: 9, kind: Kind::Datagram };
        assert_eq!((table.of(&flow).lost(), table.sum(|flow| flow.dest_qpn == 9).dropped), (1, 1));
    }
}
