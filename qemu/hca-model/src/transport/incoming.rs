//! From a packet to the QP, or the agent, that takes it (IBTA 9.6: header validation).

use super::data_path::DataPath;
use super::inbound::Inbound;
use super::roce;
use crate::meter::price;
use crate::object::qp::Qp;
use crate::object::qps::Qps;
use crate::recorder::{DropReason, Event};
use ib_types::Psn;
use mlx5_prm::value::ServiceType;
use rdma_fabric::ethernet::frame::{Ecn, Frame};
use rdma_fabric::infiniband::packet::{
    LID_MULTICAST, LID_PERMISSIVE, Opcode, Operation, QPN_MULTICAST, Shape, Transport,
};
use rdma_fabric::packet::Packet;

impl DataPath<'_, '_> {
    /// A packet that reached the device, over the wire or from itself.
    pub(super) fn incoming(&mut self, qps: &mut Qps, packet: Packet, loopback: bool) {
        self.counters().packets_received += 1;
        self.meter().charge(price::PACKET);
        if !packet.is_intact() {
            self.counters().icrc_errors += 1;
            self.port().counters.rcv_errors += 1;
        } else {
            if self.port().ethernet.is_some() {
                self.sort_roce(qps, packet.bytes(), loopback);
            } else {
                self.sort(qps, packet.bytes(), loopback);
            }
        }
        self.output().recycle(packet);
    }

    fn sort(&mut self, qps: &mut Qps, packet: &[u8], loopback: bool) {
        let Some(shape) = Shape::of(packet) else {
            self.counters().malformed += 1;
            return;
        };
        let Some(operation) = shape.bth.opcode.operation() else {
            self.counters().malformed += 1;
            return;
        };
        let transport = shape.bth.opcode.transport();
        if shape.bth.dest_qpn == 0 {
            if transport == Transport::Ud {
                self.management(qps, &shape, packet, loopback);
            }
            return;
        }
        if !loopback && !self.port().is_active() {
            return;
        }
        let dlid = shape.lrh.dlid;
        if (LID_MULTICAST..LID_PERMISSIVE).contains(&dlid) {
            self.multicast(qps, operation, &shape, packet);
            return;
        }
        if !loopback && dlid & !((1 << self.port().lmc.min(7)) - 1) != self.port().lid {
            self.counters().no_qp += 1;
            return;
        }
        if shape.bth.dest_qpn == 1
            && transport == Transport::Ud
            && self.output().performance(&shape, packet, loopback)
        {
            return;
        }
        if let Some(grh) = shape.grh(packet)
            && !self.port().is_own_gid(&grh.dgid.0)
        {
            self.counters().no_qp += 1;
            return;
        }
        let stranger = |qp: &Qp| {
            if !loopback && !qp.path().is_peer_lid(shape.lrh.slid) {
                Some(DropReason::SourceLid)
            } else if !qp.path().is_peer_gid(shape.grh(packet).as_ref()) {
                Some(DropReason::SourceGid)
            } else {
                None
            }
        };
        let inbound = Inbound::of(&shape, packet, self.port().lmc);
        self.give(qps, operation, &inbound, stranger);
    }

    /// A packet for QP0: for the port's own agent, or for the software behind QP0.
    fn management(&mut self, qps: &mut Qps, shape: &Shape, packet: &[u8], loopback: bool) {
        let has_software = qps.management(ServiceType::QP0).is_some() && self.port().has_smi;
        if !self.output().answer(shape, packet, has_software, loopback) {
            self.management_software(qps, shape, packet);
        }
    }

    fn management_software(&mut self, qps: &mut Qps, shape: &Shape, packet: &[u8]) {
        let dropped = self.counters().datagrams_dropped;
        match qps.by_wire_number(0).filter(|_| self.port().has_smi) {
            // Partitions do not exist on this lane (IBTA 10.9.3).
            Some(qp) => {
                let inbound = Inbound::of(shape, packet, self.port().lmc);
                self.datagram(qp, Operation::SendOnly, &inbound);
            }
            None => self.counters().no_qp += 1,
        }
        if self.counters().datagrams_dropped != dropped {
            self.port().counters.vl15_dropped += 1;
        }
    }

    /// Gives a RoCE packet to its QP. Its addresses were checked, unless it comes back by `loopback`.
    fn sort_roce(&mut self, qps: &mut Qps, bytes: &[u8], loopback: bool) {
        let Some(frame) = Frame::parse(bytes) else { return };
        let inbound = roce::inbound(&frame, bytes);
        // A connection takes packets from its peer's address only.
        let is_peer = |qp: &Qp| loopback || roce::source(&frame) == qp.path().route().grh.dgid;
        if let Some(Inbound { bth, .. }) = &inbound
            && bth.opcode == Opcode::CNP
        {
            return self.take_notification(qps, bth.dest_qpn, is_peer);
        }
        let found = inbound.and_then(|inbound| Some((inbound, inbound.bth.opcode.operation()?)));
        let Some((inbound, operation)) = found else {
            self.counters().malformed += 1;
            return;
        };
        let bth = &inbound.bth;
        let transport = bth.opcode.transport();
        if frame.header().destination().is_multicast() {
            if bth.dest_qpn == QPN_MULTICAST && transport == Transport::Ud {
                self.deliver_to_group(qps, operation, &roce::destination(&frame), &inbound);
            } else {
                self.counters().malformed += 1;
            }
            return;
        }
        if bth.dest_qpn == 0 {
            self.counters().no_qp += 1;
            return;
        }
        self.meter().charge(price::LOOK);
        if frame.ip().is_some_and(|ip| ip.ecn() == Ecn::Congested) {
            self.take_mark(qps, bth, is_peer);
        }
        let stranger = |qp: &Qp| (!is_peer(qp)).then_some(DropReason::SourceGid);
        self.give(qps, operation, &inbound, stranger);
    }

    /// Gives a packet to its QP. `stranger` says why one for a connection is not its peer's.
    #[inline(always)]
    pub(super) fn give(
        &mut self,
        qps: &mut Qps,
        operation: Operation,
        packet: &Inbound<'_>,
        stranger: impl FnOnce(&Qp) -> Option<DropReason>,
    ) {
        let bth = &packet.bth;
        let psn = Psn::new(bth.psn);
        let Some(qp) = qps.by_wire_number(bth.dest_qpn) else {
            self.counters().no_qp += 1;
            return;
        };
        match (bth.opcode.transport(), qp.service()) {
            (Transport::Rc, ServiceType::RC)
            | (Transport::Xrc, ServiceType::XRC)
            | (Transport::Uc, ServiceType::UC) => match stranger(qp) {
                Some(reason) => {
                    self.counters().no_qp += 1;
                    self.reports().note(qp, Event::Dropped { reason, psn });
                }
                None => self.connected(qp, operation, packet),
            },
            (Transport::Ud, ServiceType::UD | ServiceType::QP1) => {
                if self.pkey_fits(qp, bth) {
                    self.datagram(qp, operation, packet);
                }
            }
            _ => {
                self.counters().no_qp += 1;
                self.reports().note(qp, Event::Dropped { reason: DropReason::Service, psn });
            }
        }
    }

    /// A packet of a connection's peer.
    pub(super) fn connected(&mut self, qp: &mut Qp, operation: Operation, packet: &Inbound<'_>) {
        if !self.pkey_fits(qp, &packet.bth) {
            return;
        }
        if qp.service() == ServiceType::UC {
            self.unreliable(qp, operation, packet);
        } else if operation.is_response() {
            self.response(qp, operation, Psn::new(packet.bth.psn), packet.content);
        } else {
            self.request(qp, operation, packet);
        }
    }

    /// A multicast datagram goes to every QP attached to its group.
    fn multicast(&mut self, qps: &mut Qps, operation: Operation, shape: &Shape, packet: &[u8]) {
        let Some(grh) = shape.grh(packet) else {
            self.counters().malformed += 1;
            return;
        };
        if shape.bth.dest_qpn != QPN_MULTICAST || shape.bth.opcode.transport() != Transport::Ud {
            self.counters().malformed += 1;
            return;
        }
        let inbound = Inbound::of(shape, packet, self.port().lmc);
        self.deliver_to_group(qps, operation, &grh.dgid.0, &inbound);
    }

    /// A datagram goes to every QP attached to the group `gid`.
    pub(super) fn deliver_to_group(
        &mut self,
        qps: &mut Qps,
        operation: Operation,
        gid: &[u8; 16],
        packet: &Inbound<'_>,
    ) {
        qps.for_members(gid, |qp| {
            self.meter().charge(price::PACKET);
            if self.pkey_fits(qp, &packet.bth) {
                self.datagram(qp, operation, packet);
            }
        });
    }
}
