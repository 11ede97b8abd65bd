//! From a packet to the QP, or the agent, that takes it (IBTA 9.6: header validation).

use super::Context;
use super::inbound::Inbound;
use crate::meter::price;
use crate::object::qp::Qp;
use crate::object::qps::Qps;
use crate::recorder::{DropReason, Event};
use ib_types::Psn;
use mlx5_prm::value::ServiceType;
use rdma_fabric::infiniband::packet::{
    LID_MULTICAST, LID_PERMISSIVE, Operation, QPN_MULTICAST, Shape, Transport,
};
use rdma_fabric::packet::Packet;

/// The prefix that GIDs have before a subnet manager gives another, and that a port answers to all the same.
const DEFAULT_GID_PREFIX: u64 = 0xfe80_0000_0000_0000;

impl Context<'_, '_> {
    /// A packet that reached the device, over the wire or from itself.
    pub(super) fn incoming(&mut self, qps: &mut Qps, packet: Packet, loopback: bool) {
        self.device.counters.packets_received += 1;
        self.meter.charge(price::PACKET);
        if !packet.is_intact() {
            self.device.counters.icrc_errors += 1;
            self.port.counters.rcv_errors += 1;
        } else {
            if self.port.ethernet.is_some() {
                self.sort_roce(qps, packet.bytes(), loopback);
            } else {
                self.sort(qps, packet.bytes(), loopback);
            }
        }
        self.output().recycle(packet);
    }

    fn sort(&mut self, qps: &mut Qps, packet: &[u8], loopback: bool) {
        let Some(shape) = Shape::of(packet) else {
            self.device.counters.malformed += 1;
            return;
        };
        let Some(operation) = shape.bth.opcode.operation() else {
            self.device.counters.malformed += 1;
            return;
        };
        let transport = shape.bth.opcode.transport();
        if shape.bth.dest_qpn == 0 {
            if transport == Transport::Ud {
                self.management(qps, &shape, packet, loopback);
            }
            return;
        }
        if !loopback && !self.port.is_active() {
            return;
        }
        let dlid = shape.lrh.dlid;
        if (LID_MULTICAST..LID_PERMISSIVE).contains(&dlid) {
            self.multicast(qps, operation, &shape, packet);
            return;
        }
        if !loopback && dlid & !((1 << self.port.lmc.min(7)) - 1) != self.port.lid {
            self.device.counters.no_qp += 1;
            return;
        }
        if shape.bth.dest_qpn == 1
            && transport == Transport::Ud
            && self.output().performance(&shape, packet, loopback)
        {
            return;
        }
        if let Some(grh) = shape.grh(packet)
            && !self.is_own_gid(&grh.dgid.0)
        {
            self.device.counters.no_qp += 1;
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
        self.give(qps, operation, &Inbound::of(&shape, packet, self.port.lmc), stranger);
    }

    /// A packet for QP0: for the port's own agent, or for the software behind QP0.
    fn management(&mut self, qps: &mut Qps, shape: &Shape, packet: &[u8], loopback: bool) {
        let has_software = qps.management(ServiceType::QP0).is_some() && self.port.has_smi;
        if !self.output().answer(shape, packet, has_software, loopback) {
            self.management_software(qps, shape, packet);
        }
    }

    fn management_software(&mut self, qps: &mut Qps, shape: &Shape, packet: &[u8]) {
        let dropped = self.device.counters.datagrams_dropped;
        match qps.by_wire_number(0).filter(|_| self.port.has_smi) {
            // Partitions do not exist on this lane (IBTA 10.9.3).
            Some(qp) => {
                let inbound = Inbound::of(shape, packet, self.port.lmc);
                self.datagram(qp, Operation::SendOnly, &inbound);
            }
            None => self.device.counters.no_qp += 1,
        }
        if self.device.counters.datagrams_dropped != dropped {
            self.port.counters.vl15_dropped += 1;
        }
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
            self.device.counters.no_qp += 1;
            return;
        };
        match (bth.opcode.transport(), qp.service()) {
            (Transport::Rc, ServiceType::RC)
            | (Transport::Xrc, ServiceType::XRC)
            | (Transport::Uc, ServiceType::UC) => match stranger(qp) {
                Some(reason) => {
                    self.device.counters.no_qp += 1;
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
                self.device.counters.no_qp += 1;
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

    /// Whether a GID is one of the port's.
    pub(super) fn is_own_gid(&self, gid: &[u8; 16]) -> bool {
        let guid = u64::from_be_bytes(*gid.last_chunk().unwrap_or(&[0; 8]));
        let prefix = u64::from_be_bytes(*gid.first_chunk().unwrap_or(&[0; 8]));
        let own_prefix = prefix == self.port.gid_prefix || prefix == DEFAULT_GID_PREFIX;
        guid != 0 && own_prefix && self.port.guids.contains(&guid)
    }

    /// A multicast datagram goes to every QP attached to its group.
    fn multicast(&mut self, qps: &mut Qps, operation: Operation, shape: &Shape, packet: &[u8]) {
        let Some(grh) = shape.grh(packet) else {
            self.device.counters.malformed += 1;
            return;
        };
        if shape.bth.dest_qpn != QPN_MULTICAST || shape.bth.opcode.transport() != Transport::Ud {
            self.device.counters.malformed += 1;
            return;
        }
        let inbound = Inbound::of(shape, packet, self.port.lmc);
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
            self.meter.charge(price::PACKET);
            if self.pkey_fits(qp, &packet.bth) {
                self.datagram(qp, operation, packet);
            }
        });
    }
}
