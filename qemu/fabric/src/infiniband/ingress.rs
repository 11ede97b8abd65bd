//! What the switch takes from a port where the fabric manages itself: the LID and the P_Keys that the subnet manager gave to the port,
//! and no Set of subnet management by anybody else (IBTA volume 1, 14.2.4 and 18.2.4.2).

use ib_mgmt::mad::method;
use ib_mgmt::smp::{Smp, pkeys_match};

use super::direct::Destination;
use super::{Fabric, datagram, switch};
use crate::infiniband::packet::{Grh, LNH_GRH, Lrh, Shape, VL_MANAGEMENT};
use crate::ports::PortIndex;

/// Where the BTH has the P_Key.
const PKEY: usize = 2;

impl Fabric {
    /// Whether a packet may come in.
    #[inline]
    pub(super) fn admits(&self, from: PortIndex, lrh: &Lrh, packet: &[u8]) -> bool {
        if !self.guarded {
            return true;
        }
        if lrh.vl == VL_MANAGEMENT {
            return self.admits_management(packet);
        }
        let front = Lrh::LEN + if lrh.link_next_header == LNH_GRH { Grh::LEN } else { 0 };
        let pkey = packet.get(front + PKEY..).and_then(<[u8]>::first_chunk);
        pkey.is_some_and(|pkey| self.is_given(from, lrh.slid, u16::from_be_bytes(*pkey)))
    }

    /// Whether requests between two ports may go without packets, and their answers with them.
    pub(super) fn may_talk(&self, from: PortIndex, to: PortIndex, way: &Destination) -> bool {
        let accepts = || {
            let peer = self.manager.record(to);
            peer.is_some_and(|peer| peer.pkeys.iter().any(|own| pkeys_match(*own, way.pkey)))
        };
        !self.guarded || (self.is_given(from, way.slid, way.pkey) && accepts())
    }

    /// Whether the subnet manager gave this LID and this P_Key to the port.
    fn is_given(&self, port: PortIndex, lid: u16, pkey: u16) -> bool {
        self.manager.record(port).is_some_and(|record| record.lid == lid && record.pkeys.contains(&pkey))
    }

    /// The management lane is QP0's alone; its Sets need the M_Key wherever they go, so that none reaches a port that has just been
    /// reset before the subnet manager does.
    #[cold]
    fn admits_management(&self, packet: &[u8]) -> bool {
        // What cannot be read is nobody's, wherever it goes.
        let Some(shape) = Shape::of(packet) else { return true };
        let Some((_, mad)) = datagram(&shape, packet) else { return shape.bth.dest_qpn == 0 };
        let smp = Smp::from_mad(&mad);
        let sets = switch::is_subnet_management(&smp) && smp.method() == method::SET;
        shape.bth.dest_qpn == 0 && (!sets || smp.m_key() == self.config.m_key)
    }
}
