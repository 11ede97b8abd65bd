//! Building packets and putting them on the wire, or back into the device.

use ib_types::Gid;
use rdma_fabric::infiniband::packet::{
    Bth, GRH_NEXT_HEADER_IBA, Grh, ICRC_LEN, LNH_BTH, LNH_GRH, Lrh, Opcode,
};

use mlx5_prm::value::ServiceType;

use super::Context;
use super::state::LOOPBACK_LIMIT;
use crate::meter::price;
use crate::object::qp::{AddressPath, Qp};
use crate::port::Port;
use ib_types::Psn;
use rdma_fabric::infiniband::Destination;
use rdma_fabric::infiniband::packet::VL_MANAGEMENT;
use rdma_fabric::packet::Packet;

/// Opcode bits of unreliable connections.
const SERVICE_UC: u8 = 0x20;
/// Opcode bits of extended reliable connections.
const SERVICE_XRC: u8 = 0xa0;

/// What an empty entry of the P_Key table holds.
const PKEY_NONE: u16 = 0;

/// Where a packet goes and as whose, up to the BTH.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    sl: u8,
    slid: u16,
    pub(super) dlid: u16,
    pkey: u16,
    dest_qpn: u32,
    /// The transport service's bits of the opcode; 0 also where the opcode is given whole.
    service: u8,
    grh: Option<Grh>,
    /// The packet does not leave the device.
    pub(super) loopback: bool,
}

impl Envelope {
    /// The same without a packet around it.
    pub(super) fn destination(&self) -> Destination {
        Destination {
            slid: self.slid,
            dlid: self.dlid,
            sl: self.sl,
            pkey: self.pkey,
            qpn: self.dest_qpn,
            grh: self.grh,
        }
    }

    /// Whether packets belong to no partition, and are discarded.
    pub(super) const fn is_outcast(&self) -> bool {
        self.pkey == PKEY_NONE
    }

    /// Whether packets have a global routing header.
    pub(super) const fn is_routed(&self) -> bool {
        self.grh.is_some()
    }
}

/// A route as an address path or an AV gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) sl: u8,
    pub(super) path_bits: u8,
    pub(super) dlid: u16,
    pub(super) force_loopback: bool,
    pub(super) grh: Option<GrhRoute>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GrhRoute {
    pub(super) src_index: u8,
    pub(super) dgid: [u8; 16],
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
}

impl From<&AddressPath> for Route {
    fn from(path: &AddressPath) -> Self {
        Self {
            sl: path.sl,
            path_bits: path.mlid,
            dlid: path.rlid,
            force_loopback: path.force_loopback,
            grh: path.grh.then_some(GrhRoute {
                src_index: path.src_addr_index,
                dgid: path.rgid,
                traffic_class: path.tclass,
                flow_label: path.flow_label,
                hop_limit: path.hop_limit,
            }),
        }
    }
}

/// The envelope of packets along `route`.
pub(super) fn envelope(port: &Port, route: &Route, pkey: u16, dest_qpn: u32) -> Envelope {
    let bits = u16::from(route.path_bits) & ((1 << port.lmc.min(7)) - 1);
    let own = |lid: u16| port.lid != 0 && lid & !((1 << port.lmc.min(7)) - 1) == port.lid;
    let grh = route.grh.map(|grh| Grh {
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label,
        payload_len: 0,
        next_header: GRH_NEXT_HEADER_IBA,
        hop_limit: grh.hop_limit,
        sgid: Gid(port.gid(usize::from(grh.src_index))),
        dgid: Gid(grh.dgid),
    });
    Envelope {
        sl: route.sl,
        slid: port.lid | bits,
        dlid: if route.force_loopback && route.dlid == 0 { port.lid } else { route.dlid },
        pkey,
        dest_qpn,
        service: 0,
        grh,
        loopback: route.force_loopback || own(route.dlid),
    }
}

/// What varies between the packets of one envelope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) ack_request: bool,
    pub(super) solicited: bool,
}

/// A packet whose payload is still to be filled in.
#[derive(Debug)]
pub(super) struct Draft {
    bytes: Vec<u8>,
    payload: usize,
    payload_len: usize,
    loopback: bool,
    /// Its P_Key entry is empty: it goes nowhere.
    outcast: bool,
}

impl Draft {
    /// Where the payload goes.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.payload..self.payload + self.payload_len).unwrap_or_default()
    }
}

impl Draft {
    /// Makes it a packet of QP0.
    pub(super) fn mark_management(&mut self) {
        super::management::mark_management(&mut self.bytes);
    }
}

impl Context<'_, '_> {
    /// The envelope of a connected QP's packets, whose opcodes are given as those of RC. Where its P_Key entry is empty, packets are
    /// discarded as they are sent, and the requester's retries run out.
    pub(super) fn connection(&self, qp: &Qp) -> Envelope {
        let pkey = self.port.pkey(qp.primary_path.pkey_index).unwrap_or(PKEY_NONE);
        let service = match qp.service {
            ServiceType::UC => SERVICE_UC,
            ServiceType::XRC => SERVICE_XRC,
            _ => 0,
        };
        let envelope = envelope(self.port, &Route::from(&qp.primary_path), pkey, qp.remote_qpn);
        Envelope { service, ..envelope }
    }

    /// A packet with its headers, `extended` among them, and room for `payload_len` bytes.
    pub(super) fn draft(
        &mut self,
        envelope: &Envelope,
        head: &Head,
        extended: &[u8],
        payload_len: usize,
    ) -> Draft {
        let pad = payload_len.wrapping_neg() & 3;
        let transport = Bth::LEN + extended.len() + payload_len + pad + ICRC_LEN;
        let front = Lrh::LEN + if envelope.grh.is_some() { Grh::LEN } else { 0 };
        let len = front + transport;
        self.meter.charge(price::PACKET);
        let mut bytes = self.io.wire.take_buffer();
        // A reused buffer keeps its old bytes: all of them are written below or by the caller.
        bytes.resize(len, 0);
        let lrh = Lrh {
            vl: 0,
            sl: envelope.sl,
            link_next_header: if envelope.grh.is_some() { LNH_GRH } else { LNH_BTH },
            dlid: envelope.dlid,
            length_words: (len / 4) as u16,
            slid: envelope.slid,
        };
        let bth = Bth {
            solicited: head.solicited,
            ack_req: head.ack_request,
            pad_count: pad as u8,
            ..Bth::new(
                Opcode(head.opcode.0 | envelope.service),
                envelope.pkey,
                envelope.dest_qpn,
                head.psn.get(),
            )
        };
        let mut at = 0;
        let mut put = |header: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + header.len()) {
                place.copy_from_slice(header);
            }
            at += header.len();
        };
        put(&lrh.to_bytes());
        if let Some(grh) = envelope.grh {
            put(&Grh { payload_len: transport as u16, ..grh }.to_bytes());
        }
        put(&bth.to_bytes());
        put(extended);
        let payload = at;
        if let Some(padding) = bytes.get_mut(payload + payload_len..) {
            padding.fill(0);
        }
        Draft { bytes, payload, payload_len, loopback: envelope.loopback, outcast: envelope.is_outcast() }
    }

    /// Sends a packet that is complete but for its ICRC.
    pub(super) fn dispatch(&mut self, draft: Draft) {
        if draft.outcast {
            self.port.counters.xmit_discards += 1;
            return self.discard(draft);
        }
        self.send_packet(Packet::unsealed(draft.bytes), draft.loopback);
    }

    /// Sends a multicast packet, and lets the device's own members of the group have it too.
    pub(super) fn dispatch_multicast(&mut self, draft: Draft) {
        let packet = Packet::unsealed(draft.bytes);
        self.send_packet(packet.clone(), true);
        self.send_packet(packet, draft.loopback);
    }

    /// Gives a draft's buffer back.
    pub(super) fn discard(&mut self, draft: Draft) {
        self.io.wire.give_buffer(draft.bytes);
    }

    /// Sends a finished packet.
    pub(super) fn send_packet(&mut self, packet: Packet, loopback: bool) {
        let management = packet.bytes().first().is_some_and(|byte| byte >> 4 == VL_MANAGEMENT);
        let has_route = packet.bytes().get(1).is_some_and(|byte| byte & 0b11 == LNH_GRH);
        // Without a route it would be the physical function's, whose LID this is.
        let astray = !management && (self.port.grh_required && !has_route || self.is_lost(packet.bytes()));
        if loopback {
            if astray || self.device.loopback.len() >= LOOPBACK_LIMIT {
                self.recycle(packet);
                return;
            }
            self.device.counters.packets_sent += 1;
            self.device.loopback.push_back(packet);
            return;
        }
        let port = &mut *self.port;
        if astray || !management && !port.is_active() {
            port.counters.xmit_discards += 1;
            self.recycle(packet);
            return;
        }
        self.device.counters.packets_sent += 1;
        port.counters.sent(packet.bytes());
        self.io.wire.send(packet);
    }

    /// Keeps a packet's buffer for the next one to build.
    pub(super) fn recycle(&mut self, packet: Packet) {
        self.io.wire.give_buffer(packet.into_buffer());
    }
}
