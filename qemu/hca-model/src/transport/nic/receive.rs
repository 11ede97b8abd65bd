//! Receiving frames: filter, flow tables, receive queues, scatter lists and CQEs.

use super::Frames;
use super::fields::{hash_of, match_fields};
use super::state::Own;
use crate::device::Device;
use crate::log::Subject;
use crate::meter::price;
use crate::object::mkey::User;
use crate::object::nic::{Rq, Target, Tir};
use crate::run::Data;
use crate::seams::Io;
use crate::transport::roce::vlan_of;
use crate::transport::state::Sge;
use mlx5_prm::commands::query_q_counter_out;
use mlx5_prm::contexts::tirc;
use mlx5_prm::datapath::{
    CqeOpcode, DATA_LKEY_TERMINATOR, DBR_RECEIVE, DS_SIZE, cqe64, wqe_data_seg, wqe_srq_next_seg,
};
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::WqState;
use rdma_fabric::ethernet::frame::ether_type::VLAN;
use rdma_fabric::ethernet::frame::{Ecn, Frame, TAG_LEN, Transport, Version};
use rdma_fabric::packet::Packet;

/// Longest entry of a receive queue.
const MAX_ENTRY: usize = 512;
/// Bytes of the two addresses, behind which the tag is.
const ADDRESSES: usize = 12;
/// `tirc.self_lb_block`: frames of the function itself arrive, too.
const OWN_UNICAST: u32 = 1;
const OWN_MULTICAST: u32 = 2;
/// `cqe64.hds_ip_ext`: the addresses, the IP header and the checksum of TCP or UDP are right.
const L2_OK: u8 = 1;
const L3_OK: u8 = 2;
const L4_OK: u8 = 4;
/// `cqe64.ml_path`: congestion was experienced.
const CONGESTED: u8 = 0x80;
/// `cqe64.l4_l3_hdr_type`: the tag was stripped.
const STRIPPED: u8 = 1;

/// A frame for a receive queue.
struct Arrived<'a> {
    bytes: &'a [u8],
    frame: &'a Frame<'a>,
    hash: (u32, u8),
    flow_tag: u32,
}

/// A receive WQE.
struct Entry {
    index: u16,
    sges: Vec<Sge>,
}

impl Device {
    /// Takes a frame from the wire: a RoCE packet for a QP, or any other.
    pub(in crate::transport) fn receive_from_cable(&mut self, io: &mut Io<'_>, packet: Packet) {
        let Some(port) = &mut self.port.ethernet else { return };
        let bytes = packet.bytes();
        if !port.fits(bytes.len()) {
            port.too_long += 1;
            return;
        }
        port.received.count(bytes);
        let frame = Frame::parse(bytes);
        if frame.is_some_and(|frame| self.vport.takes_roce(&frame)) {
            let (qps, mut path) = self.split(io);
            return path.incoming(qps, packet, false);
        }
        self.meter.charge(price::PACKET);
        let receives = |frame: &Frame<'_>| self.vport.receives(frame.header().destination(), vlan_of(frame));
        if let Some(frame) = frame.filter(receives) {
            self.receive_frame(io, bytes, &frame, |_| true);
        }
        io.wire.give_buffer(packet.into_buffer());
    }

    /// Takes a frame of the function's own, for receive queues of other transport domains and for those that want it.
    pub(super) fn receive_own(&mut self, io: &mut Io<'_>, own: &Own) {
        self.meter.charge(price::PACKET);
        let tis = own.tisn.and_then(|tisn| self.objects.nic.tises.get(tisn));
        let domain = tis.map(|tis| tis.transport_domain);
        let Some(frame) = Frame::parse(&own.bytes) else { return };
        self.receive_frame(io, &own.bytes, &frame, |tir| {
            domain != Some(tir.transport_domain) || takes_own(tir, &frame)
        });
    }

    /// Takes a frame for the receive queues of those TIRs that `takes` it.
    fn receive_frame(
        &mut self,
        io: &mut Io<'_>,
        bytes: &[u8],
        frame: &Frame<'_>,
        takes: impl Fn(&Tir) -> bool,
    ) {
        let flow = self.objects.nic.steering.receive(&match_fields(frame), bytes.len());
        self.meter.charge(flow.steps);
        for (tirn, flow_tag) in flow.tirs {
            let (_, nic, transport, path) = self.parts(io);
            let mut frames = Frames { path, transport };
            let Some(tir) = nic.tirs.get(tirn).filter(|tir| takes(tir)) else { continue };
            let hash = hash_of(&tir.hash, frame);
            let rqn = match tir.target {
                Target::Direct(rqn) => Some(rqn),
                Target::Indirect(rqtn) => nic.rqts.get(rqtn).and_then(|rqt| rqt.choose(hash.0)),
            };
            if let Some(rq) = rqn.and_then(|rqn| nic.rqs.get_mut(rqn)) {
                frames.receive_in(rq, &Arrived { bytes, frame, hash, flow_tag });
            }
        }
    }

    /// Completes what is posted to a receive queue as flushed.
    pub(crate) fn flush_rq(&mut self, io: &mut Io<'_>, rqn: u32) {
        let (_, nic, transport, path) = self.parts(io);
        let mut frames = Frames { path, transport };
        let Some(rq) = nic.rqs.get_mut(rqn).filter(|rq| rq.flushes && !rq.linked) else { return };
        if rq.wq.refresh(frames.path.guest(), DBR_RECEIVE as u64).is_err() {
            return;
        }
        while rq.wq.left() != 0 {
            frames.path.meter().charge(price::WQE);
            let index = rq.wq.next;
            rq.wq.next = index.wrapping_add(1);
            frames.fail_receive(rq, index, CqeSyndrome::WR_FLUSH_ERR);
        }
    }
}

/// Returns whether a TIR receives a frame of its own function.
fn takes_own(tir: &Tir, frame: &Frame<'_>) -> bool {
    let kind = if frame.header().destination().is_multicast() { OWN_MULTICAST } else { OWN_UNICAST };
    tirc::self_lb_block.get32(&tir.context) & kind != 0
}

impl Frames<'_, '_> {
    fn receive_in(&mut self, rq: &mut Rq, arrived: &Arrived<'_>) {
        if rq.state != WqState::RDY {
            return;
        }
        let entry = match self.take_entry(rq) {
            Ok(Some(entry)) => entry,
            Ok(None) => {
                self.path.delivery().count_in(rq.counter_set_id, query_q_counter_out::out_of_buffer);
                return;
            }
            Err((field, text)) => {
                self.path.reports().refuse(Subject::WorkQueue { qpn: rq.rqn }, field, text);
                rq.state = WqState::ERR;
                let kind = EventQueueType::RQ;
                self.path.delivery().event(kind, rq.rqn, EventType::WQ_CATAS_ERROR);
                return;
            }
        };
        let stripped = arrived.frame.header().tag().filter(|tag| tag.kind == VLAN && !rq.keeps_vlan);
        let (head, rest) = arrived.bytes.split_at_checked(ADDRESSES).unwrap_or((arrived.bytes, &[]));
        let rest = if stripped.is_some() { rest.get(TAG_LEN..).unwrap_or_default() } else { rest };
        let len = (head.len() + rest.len()) as u64;
        let user = User { pd: rq.wq.pd, qpn: rq.rqn, reserved_lkey: rq.reserved_lkey };
        let capacity: u64 = entry.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let failed = if len > capacity {
            Some(CqeSyndrome::LOCAL_LENGTH_ERR)
        } else {
            let mut memory = self.path.memory();
            let scattered = memory.scatter(user, &entry.sges, 0, &Data::Bytes(head));
            let scattered = scattered
                .and_then(|()| memory.scatter(user, &entry.sges, head.len() as u64, &Data::Bytes(rest)));
            scattered.err().map(|fault| {
                let (field, text) = fault.describe("lkey");
                self.path.reports().refuse(Subject::WorkQueue { qpn: rq.rqn }, field, text);
                CqeSyndrome::LOCAL_PROT_ERR
            })
        };
        if let Some(syndrome) = failed {
            rq.state = WqState::ERR;
            self.fail_receive(rq, entry.index, syndrome);
            return;
        }
        let mut cqe = cqe_of(arrived);
        if let Some(tag) = stripped {
            cqe64::vlan_info.set(&mut cqe, tag.tci);
            let kinds = cqe64::l4_l3_hdr_type.get32(&cqe) as u8 | STRIPPED;
            cqe64::l4_l3_hdr_type.set(&mut cqe, kinds);
        }
        cqe64::srqn.set(&mut cqe, rq.user_index);
        cqe64::byte_cnt.set(&mut cqe, len as u32);
        cqe64::wqe_counter.set(&mut cqe, entry.index);
        self.path.delivery().stamp(&mut cqe);
        self.path.delivery().push_cqe(rq.cqn, &cqe, None, false);
    }

    /// Takes the next posted receive. `None` if there is none.
    fn take_entry(&mut self, rq: &mut Rq) -> Result<Option<Entry>, (&'static str, String)> {
        if rq.wq.left() == 0 {
            let refreshed = rq.wq.refresh(self.path.guest(), DBR_RECEIVE as u64);
            refreshed.map_err(|error| ("qp_doorbell_record.receive_counter", error.to_string()))?;
            if rq.wq.left() == 0 {
                return Ok(None);
            }
        }
        self.path.meter().charge(price::WQE);
        let index = if rq.linked { rq.head } else { rq.wq.next };
        let mut bytes = [0; MAX_ENTRY];
        let stride = (1usize << rq.wq.log_stride).min(MAX_ENTRY);
        let bytes = bytes.get_mut(..stride).unwrap_or_default();
        let read = rq.wq.read(self.path.guest(), index, bytes);
        read.map_err(|fault| ("create_rq_in.pas", fault.to_string()))?;
        rq.wq.next = rq.wq.next.wrapping_add(1);
        let list = if rq.linked {
            rq.head =
                wqe_srq_next_seg::next_wqe_index.get32(bytes) as u16 & ((1 << rq.wq.log_size) - 1) as u16;
            bytes.get(wqe_srq_next_seg::SIZE..).unwrap_or_default()
        } else {
            bytes
        };
        let mut sges = Vec::new();
        for segment in list.chunks_exact(DS_SIZE) {
            let len = wqe_data_seg::byte_count.get32(segment);
            let lkey = wqe_data_seg::lkey.get32(segment);
            if lkey == DATA_LKEY_TERMINATOR {
                break;
            }
            // Drivers of linked lists leave entries of no bytes behind.
            if len != 0 {
                sges.push(Sge { address: wqe_data_seg::addr.get(segment), len, lkey });
            }
        }
        Ok(Some(Entry { index, sges }))
    }
}

/// The CQE's description of a frame.
fn cqe_of(arrived: &Arrived<'_>) -> [u8; cqe64::SIZE] {
    let mut cqe = [0; cqe64::SIZE];
    let (hash, hash_type) = arrived.hash;
    cqe64::rss_hash_result.set(&mut cqe, hash);
    cqe64::rss_hash_type.set(&mut cqe, hash_type);
    cqe64::qpn.set(&mut cqe, arrived.flow_tag);
    cqe64::opcode.set(&mut cqe, CqeOpcode::RESP_SEND.0);
    let mut right = L2_OK;
    if let Some(ip) = arrived.frame.ip() {
        if ip.header_checksum_is_right() {
            right |= L3_OK;
        }
        if ip.transport_checksum_is_right() == Some(true) {
            right |= L4_OK;
        }
        let network = if ip.version() == Version::V4 { 2u8 } else { 1 };
        let transport = match ip.transport() {
            Transport::Tcp { .. } => 1,
            Transport::Udp { .. } => 2,
            _ => 0,
        };
        cqe64::l4_l3_hdr_type.set(&mut cqe, network << 2 | transport << 4);
        cqe64::check_sum.set(&mut cqe, ip.sum());
        if ip.ecn() == Ecn::Congested {
            cqe64::ml_path.set(&mut cqe, CONGESTED);
        }
    }
    cqe64::hds_ip_ext.set(&mut cqe, right);
    cqe
}
