//! The port's sending side: building packets and putting them on the wire, or back into the device.

mod management;

use ib_types::{Gid, MacAddress};
use rdma_fabric::infiniband::packet::{
    Aeth, AethSyndrome, Bth, GRH_NEXT_HEADER_IBA, Grh, ICRC_LEN, ImmDt, LNH_BTH, LNH_GRH, Lrh, Opcode, Reth,
};

use mlx5_prm::value::ServiceType;

use super::device_state::DeviceTransport;
use super::roce;
use super::state::LOOPBACK_LIMIT;
use crate::meter::{Meter, price};
use crate::object::qp::{GrhRoute, Qp, Route};
use crate::port::{EthernetPort, NicVport, Port};
use crate::run::{Address, Neighbour, Requester, RoceDestination};
use crate::seams::Io;
use ib_types::Psn;
use rdma_fabric::counters::Traffic;
use rdma_fabric::infiniband::Destination;
use rdma_fabric::infiniband::packet::VL_MANAGEMENT;
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;
use rdma_fabric::wire::Way;

/// Opcode bits of unreliable connections.
const SERVICE_UC: u8 = 0x20;
/// Opcode bits of extended reliable connections.
const SERVICE_XRC: u8 = 0xa0;

/// Bytes after the BTH of a notification of congestion, which are reserved.
const CNP_PAYLOAD: usize = 16;
/// Longest extended headers of a packet with payload, bytes.
const LONGEST_EXTENSION: usize = Reth::LEN + ImmDt::LEN;

/// What an empty entry of the P_Key table holds.
const PKEY_NONE: u16 = 0;

/// Where a packet goes and as whose, up to the BTH.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Envelope {
    front: Front,
    pkey: u16,
    dest_qpn: u32,
    /// The transport service's bits of the opcode; 0 also where the opcode is given whole.
    service: u8,
    /// The packet does not leave the device.
    pub(in crate::transport) loopback: bool,
}

/// Headers before the BTH.
#[derive(Clone, Copy, Debug)]
enum Front {
    InfiniBand { sl: u8, slid: u16, dlid: u16, grh: Option<Grh> },
    Roce(roce::Front),
}

impl Envelope {
    /// The same without a packet around it, with a path MTU of `mtu` bytes. `None` where the receiver's switch
    /// or device looks at more of a packet than that.
    #[inline]
    pub(in crate::transport) fn requester(&self, mtu: u32) -> Option<Requester> {
        let (qpn, pkey) = (self.dest_qpn, self.pkey);
        let (to, shown, [front, unrouted, routed]) = match &self.front {
            Front::InfiniBand { sl, slid, dlid, grh } => {
                let to = Destination { slid: *slid, dlid: *dlid, sl: *sl, pkey, qpn, grh: *grh };
                let own = Lrh::LEN + if grh.is_some() { Grh::LEN } else { 0 };
                (Address::InfiniBand(to), (*slid, *sl), [own, Lrh::LEN, Lrh::LEN + Grh::LEN])
            }
            Front::Roce(front) => {
                let len = front.len();
                let to = front.destination(len + Bth::LEN + LONGEST_EXTENSION + mtu as usize + ICRC_LEN)?;
                // Responses have the same addresses the other way round.
                (Address::Roce(to), (0, front.shown()), [len; 3])
            }
        };
        let [overhead, unrouted, routed] =
            [front, unrouted, routed].map(|front| (front + Bth::LEN + ICRC_LEN) as u32);
        Some(Requester { to, qpn, pkey, overhead, response_overhead: [unrouted, routed], shown, mtu })
    }

    /// Whether packets belong to no partition, and are discarded.
    pub(in crate::transport) const fn is_outcast(&self) -> bool {
        self.pkey == PKEY_NONE
    }
}

/// The envelope of packets along `route`.
fn envelope(port: &Port, vport: &NicVport, route: &Route, pkey: u16, dest_qpn: u32) -> Envelope {
    if port.ethernet.is_some() {
        return roce_envelope(vport, route, pkey, dest_qpn);
    }
    let bits = u16::from(route.path_bits) & ((1 << port.lmc.min(7)) - 1);
    let own = |lid: u16| port.lid != 0 && lid & !((1 << port.lmc.min(7)) - 1) == port.lid;
    let GrhRoute { src_index, dgid, traffic_class, flow_label, hop_limit } = route.grh;
    let grh = route.is_routed.then(|| Grh {
        traffic_class,
        flow_label,
        payload_len: 0,
        next_header: GRH_NEXT_HEADER_IBA,
        hop_limit,
        sgid: Gid(port.gid(usize::from(src_index))),
        dgid: Gid(dgid),
    });
    // Without a route it would be the physical function's, whose LID this is. Packets that are forced
    // to return have no address at all.
    let unrouted = port.grh_required && !route.is_routed && !route.force_loopback;
    let pkey = if unrouted { PKEY_NONE } else { pkey };
    Envelope {
        front: Front::InfiniBand {
            sl: route.sl,
            slid: port.lid | bits,
            dlid: if route.force_loopback && route.dlid == 0 { port.lid } else { route.dlid },
            grh,
        },
        pkey,
        dest_qpn,
        service: 0,
        loopback: route.force_loopback || own(route.dlid),
    }
}

/// The envelope of packets of RoCE. Without a source address they go nowhere, unless they return inside the device.
fn roce_envelope(vport: &NicVport, route: &Route, pkey: u16, dest_qpn: u32) -> Envelope {
    let source = vport.roce_source(usize::from(route.grh.src_index));
    let pkey = if source.is_some() || route.force_loopback { pkey } else { PKEY_NONE };
    let source = source.unwrap_or_default();
    let front = Front::Roce(roce::Front::new(&source, route));
    Envelope { front, pkey, dest_qpn, service: 0, loopback: route.force_loopback || vport.is_own(route) }
}

/// What varies between the packets of one envelope.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Head {
    pub(in crate::transport) opcode: Opcode,
    pub(in crate::transport) psn: Psn,
    pub(in crate::transport) ack_request: bool,
    pub(in crate::transport) solicited: bool,
}

/// A packet whose payload is still to be filled in.
#[derive(Debug)]
pub(in crate::transport) struct Draft {
    bytes: Vec<u8>,
    payload: usize,
    payload_len: usize,
    loopback: bool,
    /// Its P_Key entry is empty: it goes nowhere.
    outcast: bool,
}

impl Draft {
    /// Where the payload goes.
    pub(in crate::transport) fn payload(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.payload..self.payload + self.payload_len).unwrap_or_default()
    }
}

impl Draft {
    /// Makes it a notification of congestion, as cards send them.
    fn mark_notification(&mut self) {
        if let Some(bth) =
            self.bytes.get_mut(self.payload - Bth::LEN..).and_then(<[u8]>::first_chunk_mut::<{ Bth::LEN }>)
            && let Ok(header) = Bth::parse(bth)
        {
            *bth = Bth { becn: true, mig_req: false, ..header }.to_bytes();
        }
        self.payload().fill(0);
    }

    /// Makes it a packet of QP0.
    pub(in crate::transport) fn mark_management(&mut self) {
        management::mark_management(&mut self.bytes);
    }
}

/// The port's sending side, as the data path uses it.
pub(in crate::transport) struct Output<'a, 'io> {
    io: &'a mut Io<'io>,
    port: &'a mut Port,
    vport: &'a NicVport,
    device: &'a mut DeviceTransport,
    meter: &'a mut Meter,
}

impl<'a, 'io> Output<'a, 'io> {
    /// Makes the view.
    #[inline(always)]
    pub(in crate::transport) fn new(
        io: &'a mut Io<'io>,
        port: &'a mut Port,
        vport: &'a NicVport,
        device: &'a mut DeviceTransport,
        meter: &'a mut Meter,
    ) -> Self {
        Self { io, port, vport, device, meter }
    }
}

impl Output<'_, '_> {
    /// Returns whether the wire takes packets.
    pub(in crate::transport) fn has_credit(&self) -> bool {
        self.io.wire.has_credit()
    }

    /// Returns the envelope of packets along `route`.
    pub(in crate::transport) fn envelope(&self, route: &Route, pkey: u16, dest_qpn: u32) -> Envelope {
        envelope(self.port, self.vport, route, pkey, dest_qpn)
    }

    /// The envelope of a connected QP's packets, whose opcodes are given as those of RC. Where its P_Key entry is empty, packets are
    /// discarded as they are sent, and the requester's retries run out.
    pub(in crate::transport) fn connection(&self, qp: &Qp) -> Envelope {
        let pkey = self.port.pkey(qp.path().pkey_index()).unwrap_or(PKEY_NONE);
        let service = match qp.service() {
            ServiceType::UC => SERVICE_UC,
            ServiceType::XRC => SERVICE_XRC,
            _ => 0,
        };
        let envelope = envelope(self.port, self.vport, qp.path().route(), pkey, qp.connection().remote_qpn());
        Envelope { service, ..envelope }
    }

    /// A packet with its headers, `extended` among them, and room for `payload_len` bytes.
    pub(in crate::transport) fn draft(
        &mut self,
        envelope: &Envelope,
        head: &Head,
        extended: &[u8],
        payload_len: usize,
    ) -> Draft {
        let pad = payload_len.wrapping_neg() & 3;
        let transport = Bth::LEN + extended.len() + payload_len + pad + ICRC_LEN;
        let front = match &envelope.front {
            Front::InfiniBand { grh, .. } => Lrh::LEN + if grh.is_some() { Grh::LEN } else { 0 },
            Front::Roce(front) => front.len(),
        };
        let len = front + transport;
        self.meter.charge(price::PACKET);
        let mut bytes = self.io.wire.take_buffer();
        // A reused buffer keeps its old bytes: all of them are written below or by the caller.
        let whole = if self.port.ethernet.is_some() { len.max(EthernetPort::SHORTEST_FRAME) } else { len };
        bytes.resize(whole, 0);
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
        if let Front::InfiniBand { sl, slid, dlid, grh } = &envelope.front {
            let lrh = Lrh {
                vl: 0,
                sl: *sl,
                link_next_header: if grh.is_some() { LNH_GRH } else { LNH_BTH },
                dlid: *dlid,
                length_words: (len / 4) as u16,
                slid: *slid,
            };
            let (head, rest) = bytes.split_at_mut(Lrh::LEN.min(len));
            head.copy_from_slice(&lrh.to_bytes());
            if let (Some(grh), Some(place)) = (grh, rest.first_chunk_mut::<{ Grh::LEN }>()) {
                *place = Grh { payload_len: transport as u16, ..*grh }.to_bytes();
            }
        }
        let mut at = front;
        let mut put = |header: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + header.len()) {
                place.copy_from_slice(header);
            }
            at += header.len();
        };
        put(&bth.to_bytes());
        put(extended);
        let payload = at;
        if let Some(padding) = bytes.get_mut(payload + payload_len..) {
            padding.fill(0);
        }
        if let Front::Roce(front) = &envelope.front {
            front.write(&mut bytes, transport);
        }
        Draft { bytes, payload, payload_len, loopback: envelope.loopback, outcast: envelope.is_outcast() }
    }

    /// Sends an acknowledgement or a NAK.
    pub(in crate::transport) fn acknowledge(
        &mut self,
        envelope: &Envelope,
        psn: Psn,
        syndrome: u8,
        msn: u32,
    ) {
        let aeth = Aeth { syndrome: AethSyndrome::from_bits(syndrome), msn };
        let head = Head { opcode: Opcode::RC_ACKNOWLEDGE, psn, ack_request: false, solicited: false };
        let draft = self.draft(envelope, &head, &aeth.to_bytes(), 0);
        self.dispatch(draft);
    }

    /// Notifies the peer of a connected QP that its packets met congestion.
    pub(in crate::transport) fn notify(&mut self, qp: &Qp) {
        let path = qp.path();
        let pkey = self.port.pkey(path.pkey_index()).unwrap_or(PKEY_NONE);
        let route = path.route().of_notifications();
        let envelope = envelope(self.port, self.vport, &route, pkey, qp.connection().remote_qpn());
        let head = Head { opcode: Opcode::CNP, psn: Psn::default(), ack_request: false, solicited: false };
        let mut draft = self.draft(&envelope, &head, &[], CNP_PAYLOAD);
        draft.mark_notification();
        self.dispatch(draft);
    }

    /// Sends a packet that is complete but for its ICRC.
    pub(in crate::transport) fn dispatch(&mut self, draft: Draft) {
        if draft.outcast {
            self.port.counters.xmit_discards += 1;
            return self.discard(draft);
        }
        self.send_packet(self.packet_of(draft.bytes), draft.loopback);
    }

    /// A packet that is complete but for its ICRC.
    fn packet_of(&self, bytes: Vec<u8>) -> Packet {
        if self.port.ethernet.is_some() { Packet::unsealed_frame(bytes) } else { Packet::unsealed(bytes) }
    }

    /// Sends a multicast packet, and lets the device's own members of the group have it too.
    pub(in crate::transport) fn dispatch_multicast(&mut self, draft: Draft) {
        let packet = self.packet_of(draft.bytes);
        self.send_packet(packet.clone(), true);
        self.send_packet(packet, draft.loopback);
    }

    /// Gives a draft's buffer back.
    pub(in crate::transport) fn discard(&mut self, draft: Draft) {
        self.io.wire.give_buffer(draft.bytes);
    }

    /// Sends a finished packet.
    pub(in crate::transport) fn send_packet(&mut self, packet: Packet, loopback: bool) {
        let (management, astray) = match &self.port.ethernet {
            Some(port) => (false, !port.fits(packet.bytes().len())),
            None => {
                let management = packet.bytes().first().is_some_and(|byte| byte >> 4 == VL_MANAGEMENT);
                (management, !management && self.is_lost(packet.bytes()))
            }
        };
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
        match &mut port.ethernet {
            Some(port) => port.sent.count(packet.bytes()),
            None => port.counters.sent(packet.bytes()),
        }
        self.io.wire.send(packet);
    }

    /// Returns the port.
    pub(in crate::transport) const fn port(&self) -> &Port {
        self.port
    }

    /// Returns the neighbour that takes requests in place of packets along `way`, and its port.
    pub(in crate::transport) fn neighbour(&self, way: Way<'_>) -> Option<(PortIndex, Neighbour)> {
        let port = self.io.wire.direct(way)?;
        Some((port, self.io.peers.find(port)?))
    }

    /// Returns whether the port sends and receives frames as long as those of a RoCE connection can be.
    pub(in crate::transport) fn carries(&self, to: &RoceDestination) -> bool {
        to.is_carried(self.port, self.vport)
    }

    /// Counts packets along `way` to `port`, and from there, that requests replaced.
    pub(in crate::transport) fn count_direct(&mut self, way: Way<'_>, port: PortIndex, traffic: &Traffic) {
        self.io.wire.count_direct(way, port, traffic);
        self.device.counters.packets_sent += traffic.requests;
        self.device.counters.packets_received += traffic.responses;
        let [requests, responses] = &mut self.device.copied_sizes;
        self.port.add_sent(traffic.requests, traffic.request_bytes, requests);
        self.port.add_received(traffic.responses, traffic.response_bytes, responses);
        if self.port.ethernet.is_some() {
            (*requests, *responses) = Default::default();
        }
    }

    /// Returns an empty buffer for a frame.
    pub(in crate::transport) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.io.wire.take_buffer();
        buffer.clear();
        buffer
    }

    /// Keeps a buffer for the next packet or frame.
    pub(in crate::transport) fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.io.wire.give_buffer(buffer);
    }

    /// Returns whether a frame to `mac` comes back to the function's flow tables.
    pub(in crate::transport) fn loops(&self, mac: MacAddress) -> bool {
        self.vport.loops(mac)
    }

    /// Sends a frame of software's.
    pub(in crate::transport) fn send_frame(&mut self, frame: Vec<u8>) {
        if !self.port.is_active() {
            self.port.counters.xmit_discards += 1;
            return self.io.wire.give_buffer(frame);
        }
        if let Some(port) = &mut self.port.ethernet {
            port.sent.count(&frame);
        }
        self.io.wire.send(Packet::frame(frame));
    }

    /// Keeps a packet's buffer for the next one to build.
    pub(in crate::transport) fn recycle(&mut self, packet: Packet) {
        self.io.wire.give_buffer(packet.into_buffer());
    }
}
