//! Flows of InfiniBand packets: sender, destination and transport.

use crate::infiniband::packet::{Grh, LID_MULTICAST, LID_PERMISSIVE, LNH_GRH, Lrh, Opcode, VL_MANAGEMENT};
use crate::losses::{FlowKey, Kind};

/// Packets that count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// LID of the sender.
    pub source_lid: u16,
    /// LID of the destination, or of the group.
    pub dest_lid: u16,
    /// QP number of the destination.
    pub dest_qpn: u32,
    /// Their transport.
    pub kind: Kind,
}

impl FlowKey for Flow {
    const REST: Self = Self { source_lid: 0, dest_lid: 0, dest_qpn: 0, kind: Kind::Other };

    fn of(packet: &[u8]) -> Self {
        let Ok(lrh) = Lrh::parse(packet) else { return Self::REST };
        let front = if lrh.link_next_header == LNH_GRH { Lrh::LEN + Grh::LEN } else { Lrh::LEN };
        let bth = packet.get(front..).unwrap_or_default();
        let opcode = bth.first().copied().map(Opcode);
        let dest_qpn = bth.get(5..8).map_or(0, |b| b.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
        let multicast = (LID_MULTICAST..LID_PERMISSIVE).contains(&lrh.dlid);
        let kind = match opcode.map(Opcode::transport) {
            _ if lrh.vl == VL_MANAGEMENT => Kind::Management,
            Some(transport) => Kind::of(transport, multicast),
            None => Kind::Other,
        };
        Self { source_lid: lrh.slid, dest_lid: lrh.dlid, dest_qpn, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infiniband::packet::{Bth, LNH_BTH};
    use crate::losses::{LIMIT, LossTable};

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
    fn flows_of_packets_differ() {
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
