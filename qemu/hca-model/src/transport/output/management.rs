//! Management datagrams that the device answers itself: subnet management by QP0, performance management by QP1
//! (IBTA 14.2, 16.1).

use ib_mgmt::mad::{Mad, attr, class, method, status};
use ib_mgmt::sa::{Notice, notice_type, producer, trap};
use ib_mgmt::smp::Smp;
use rdma_fabric::infiniband::packet::Grh;

use super::Output;
use ib_types::Psn;
use rdma_fabric::infiniband::packet::{LID_PERMISSIVE, QKEY_GSI, Shape, VL_MANAGEMENT};
use rdma_fabric::infiniband::{MadRoute, datagram, mad_packet};

impl Output<'_, '_> {
    /// A packet for QP0: Get and Set go to the port's own agent and are answered at once, along the way they came.
    /// Returns false for a packet that is for the software behind QP0.
    pub(in crate::transport) fn answer(
        &mut self,
        shape: &Shape,
        packet: &[u8],
        has_software: bool,
        loopback: bool,
    ) -> bool {
        let found = datagram(shape, packet).filter(|_| shape.lrh.vl == VL_MANAGEMENT);
        let Some((deth, mad)) = found else {
            self.device.counters.malformed += 1;
            return true;
        };
        let mut request = Smp::from_mad(&mad);
        let directed = request.mgmt_class() == class::SUBN_DIRECTED_ROUTE;
        if !(directed || request.mgmt_class() == class::SUBN_LID_ROUTED) {
            self.device.counters.malformed += 1;
            return true;
        }
        let returning = directed && request.status() & status::SMP_DIRECTION != 0;
        if directed && !route_ends_here(&request, returning) {
            self.device.counters.malformed += 1;
            return true;
        }
        if directed && !returning {
            let mut way_back = *request.return_path();
            if let Some(hop) = way_back.get_mut(usize::from(request.hop_pointer())) {
                *hop = 1;
            }
            request.set_return_path(&way_back);
        }
        // SMInfo is the business of a subnet manager, which is software (IBTA 14.3.1).
        let for_agent = !returning && matches!(request.method(), method::GET | method::SET);
        let for_manager = request.attr_id() == attr::SM_INFO && has_software;
        if request.method() == method::TRAP_REPRESS && !has_software {
            // The answer to the port's own notice.
            return true;
        }
        if !for_agent || for_manager {
            return false;
        }
        // A wrong M_Key counts, and is not answered.
        let Some(reply) = self.port.agent(request.as_bytes(), false, self.io.now) else {
            self.tell_wrong_key(&request, shape.lrh.slid);
            return true;
        };
        let mut reply = Smp::from_bytes(reply);
        let mut dlid = shape.lrh.slid;
        let mut slid = self.port.lid;
        if directed {
            let status = reply.status();
            reply.set_status(status | status::SMP_DIRECTION).set_hop_pointer(request.hop_count());
            if request.dr_slid() == LID_PERMISSIVE {
                dlid = LID_PERMISSIVE;
            }
            if request.dr_dlid() == LID_PERMISSIVE {
                slid = LID_PERMISSIVE;
            }
        }
        let route = MadRoute {
            vl: VL_MANAGEMENT,
            sl: shape.lrh.sl,
            slid,
            dlid,
            pkey: shape.bth.pkey,
            source_qpn: 0,
            dest_qpn: deth.src_qpn,
            qkey: 0,
            psn: self.take_datagram_psn().get(),
            grh: None,
        };
        self.send_packet(mad_packet(&route, reply.as_bytes()), loopback);
        true
    }

    /// Whether it is one of QP1's that this card loses.
    #[inline]
    pub(super) fn is_lost(&self, packet: &[u8]) -> bool {
        let lost = &self.port.lost_classes;
        !lost.is_empty() && of_general_class(packet).is_some_and(|class| lost.contains(&class))
    }

    /// A packet for QP1 that firmware answers: Get and Set of performance management. Answers whether it was one.
    pub(in crate::transport) fn performance(&mut self, shape: &Shape, packet: &[u8], loopback: bool) -> bool {
        let Some((deth, mad)) = datagram(shape, packet) else { return false };
        let ours = mad.mgmt_class() == class::PERF_MGMT && matches!(mad.method(), method::GET | method::SET);
        if !ours || deth.qkey != QKEY_GSI {
            return false;
        }
        let Some(reply) = self.port.agent(mad.as_bytes(), true, self.io.now) else { return true };
        let route = MadRoute {
            vl: shape.lrh.vl,
            sl: shape.lrh.sl,
            // With an LMC the port answers by the LID that it was asked by.
            slid: shape.lrh.dlid,
            dlid: shape.lrh.slid,
            // Its own, which may be of another membership than the asker's.
            pkey: self.port.matching_pkey(shape.bth.pkey),
            source_qpn: 1,
            dest_qpn: deth.src_qpn,
            qkey: QKEY_GSI,
            psn: self.take_datagram_psn().get(),
            grh: shape.grh(packet).map(|grh| Grh { sgid: grh.dgid, dgid: grh.sgid, ..grh }),
        };
        self.send_packet(mad_packet(&route, Mad::from_bytes(reply).as_bytes()), loopback);
        true
    }

    /// Tells the subnet manager that the port's capabilities or its node's description changed (trap 144, IBTA 14.2.5.1). Once: what it
    /// misses it finds when it next looks.
    pub(in crate::transport) fn announce_capabilities(&mut self) {
        let port = &mut *self.port;
        if !port.announces_capabilities() {
            return;
        }
        port.known_capability_mask = port.capability_mask;
        let mut notice =
            Notice::generic(notice_type::INFORMATIONAL, producer::CA, trap::CAPABILITY, port.lid);
        let mut details = [0; 12];
        details[2..4].copy_from_slice(&port.lid.to_be_bytes());
        details[6..10].copy_from_slice(&port.capability_mask.to_be_bytes());
        if core::mem::take(&mut port.description_changed) {
            details[5] = trap::OTHER_LOCAL_CHANGES;
            details[10..].copy_from_slice(&trap::NODE_DESCRIPTION_CHANGE.to_be_bytes());
        }
        notice.set_details(&details);
        self.send_notice(&notice);
    }

    /// Tells the subnet manager of a packet whose M_Key was wrong (trap 256, IBTA 14.2.5.1), if it did not hear of one just now.
    #[cold]
    fn tell_wrong_key(&mut self, request: &Smp, slid: u16) {
        let now = self.io.now;
        let port = &mut *self.port;
        if !port.is_active() || now < port.next_violation {
            return;
        }
        port.next_violation = now.saturating_add(port.trap_interval());
        let mut notice = Notice::generic(notice_type::SECURITY, producer::CA, trap::BAD_M_KEY, port.lid);
        let mut details = [0; 54];
        details[2..4].copy_from_slice(&slid.to_be_bytes());
        details[6] = request.method();
        details[8..10].copy_from_slice(&request.attr_id().to_be_bytes());
        details[10..14].copy_from_slice(&request.attr_mod().to_be_bytes());
        details[14..22].copy_from_slice(&request.m_key().to_be_bytes());
        if request.mgmt_class() == class::SUBN_DIRECTED_ROUTE {
            details[4..6].copy_from_slice(&request.dr_slid().to_be_bytes());
            let hops = usize::from(request.hop_count());
            let way_back = request.return_path().get(1..=hops).unwrap_or_default();
            let (first, room) = details.split_at_mut(24);
            // A notice of a directed route, its number of hops, and whether they have no room.
            first[23] =
                0x80 | u8::from(way_back.len() > room.len()) << 6 | way_back.len().min(room.len()) as u8;
            for (to, from) in room.iter_mut().zip(way_back) {
                *to = *from;
            }
        }
        notice.set_details(&details);
        self.send_notice(&notice);
    }

    /// Sends a trap to the subnet manager that the port knows.
    fn send_notice(&mut self, notice: &Notice) {
        let (slid, dlid, sl) = (self.port.lid, self.port.sm_lid, self.port.sm_sl);
        let psn = self.take_datagram_psn().get();
        let mut smp = Smp::lid_routed(method::TRAP, attr::NOTICE, 0, u64::from(psn));
        if let Some(data) = notice.as_bytes().first_chunk() {
            smp.set_data(data);
        }
        let route = MadRoute {
            vl: VL_MANAGEMENT,
            sl,
            slid,
            dlid,
            pkey: 0xffff,
            source_qpn: 0,
            dest_qpn: 0,
            qkey: 0,
            psn,
            grh: None,
        };
        self.send_packet(mad_packet(&route, smp.as_bytes()), false);
    }

    /// Takes the PSN of a packet that belongs to no connection.
    pub(in crate::transport) fn take_datagram_psn(&mut self) -> Psn {
        let psn = self.device.datagram_psn;
        self.device.datagram_psn = psn.next();
        psn
    }
}

/// Whether a directed route ends at this port: an outgoing packet has taken its last hop, a returning one its first
/// (IBTA 14.2.2.2, 14.2.2.4).
fn route_ends_here(smp: &Smp, returning: bool) -> bool {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if returning { pointer <= 1 } else { pointer == count && (1..=62).contains(&count) }
}

/// The headers of what QP0 sends: the management lane, and no LID on a route that is directed from end to end.
pub(super) fn mark_management(packet: &mut [u8]) {
    if let [first, _, dlid_high, dlid_low, _, _, slid_high, slid_low, ..] = packet {
        *first = *first & 0x0f | VL_MANAGEMENT << 4;
        if u16::from_be_bytes([*dlid_high, *dlid_low]) == LID_PERMISSIVE {
            [*slid_high, *slid_low] = LID_PERMISSIVE.to_be_bytes();
        }
    }
}

/// The management class of a packet for QP1.
fn of_general_class(packet: &[u8]) -> Option<u8> {
    let shape = Shape::of(packet).filter(|shape| shape.bth.dest_qpn == 1)?;
    datagram(&shape, packet).map(|(_, mad)| mad.mgmt_class())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_directed_route_ends() {
        let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 1, &[1, 2]);
        smp.set_hop_pointer(1);
        assert!(!route_ends_here(&smp, false), "one hop of two");
        smp.set_hop_pointer(2);
        assert!(route_ends_here(&smp, false));
        assert!(!route_ends_here(&smp, true));
        smp.set_hop_pointer(1);
        assert!(route_ends_here(&smp, true));
        smp.set_hop_pointer(0).set_hop_count(0);
        assert!(!route_ends_here(&smp, false), "a route of no hops never reaches a wire");
    }

    #[test]
    fn packets_of_qp0_are_on_the_management_lane() {
        let mut packet = [0x20, 0x02, 0xff, 0xff, 0, 74, 0, 5, 9];
        mark_management(&mut packet);
        assert_eq!(packet, [0xf0, 0x02, 0xff, 0xff, 0, 74, 0xff, 0xff, 9]);
        let mut packet = [0x00, 0x02, 0, 1, 0, 74, 0, 5];
        mark_management(&mut packet);
        assert_eq!(packet, [0xf0, 0x02, 0, 1, 0, 74, 0, 5]);
    }
}
