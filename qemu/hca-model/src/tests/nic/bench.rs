//! A function with raw Ethernet queues and flow tables.

use crate::card::CONNECTX_5_EN;
use crate::profile::Profile;
use crate::seams::GuestMemory;
use crate::tests::guest::{Answer, Guest, Input};
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::*;
use mlx5_prm::datapath::*;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::steering::*;
use mlx5_prm::value::*;
use rdma_fabric::ethernet::frame::Frame;
use rdma_fabric::packet::Packet;
use rdma_fabric::wire::Wire;
use std::collections::VecDeque;

/// A cable whose other end keeps the frames.
#[derive(Default)]
pub(super) struct Cable {
    pub(super) sent: Vec<Vec<u8>>,
    pub(super) arriving: VecDeque<Vec<u8>>,
}

impl Wire for Cable {
    fn send(&mut self, packet: Packet) {
        self.sent.push(packet.into_buffer());
    }
    fn is_enabled(&self) -> bool {
        true
    }
    fn is_up(&self) -> bool {
        true
    }
}

/// Entries of the rings.
pub(super) const LOG_RING: u32 = 4;
/// The function's address.
pub(super) const OWN: [u8; 6] = [0x50, 0x6b, 0x4b, 0xa0, 0, 0];
pub(super) const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Bytes of a receive buffer.
pub(super) const BUFFER: u32 = 2048;

/// A queue's ring, doorbell record and CQ.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    pub(super) number: u32,
    pub(super) ring: u64,
    pub(super) record: u64,
    pub(super) cqes: u64,
    /// The CQ's doorbell record.
    pub(super) consumer: u64,
    pub(super) posted: u16,
    pub(super) taken: u32,
}

/// A function with a send queue, receive queues, and a flow table that leads to a TIR.
pub(super) struct Nic {
    pub(super) guest: Guest,
    pub(super) cable: Cable,
    pub(super) lkey: u32,
    pub(super) eqn: u32,
    pub(super) domain: u32,
    pub(super) tisn: u32,
    pub(super) sq: Queue,
    pub(super) rqs: Vec<Queue>,
    pub(super) tirn: u32,
    pub(super) table: u32,
    pub(super) group: u32,
}

pub(super) fn number(answer: Answer) -> u32 {
    create_sq_out::sqn.get32(&answer.expect("made"))
}

impl Nic {
    /// As many receive queues as `queues`; with several, the TIR chooses by hash.
    pub(super) fn new(queues: usize) -> Self {
        let mut guest = Guest::up(Profile::of(&CONNECTX_5_EN, 0));
        guest.hca.port_mut().set_cable(true);
        let events = guest.page();
        let eqn = guest.create_eq(events, 4, 0, 0).expect("an EQ");
        let lkey = create_mkey_out::mkey_index.get32(&guest.create_mkey().expect("a key")) << 8;
        let domain = number(guest.command(&Input::new(Opcode::ALLOC_TRANSPORT_DOMAIN)));
        let mut nic = Self {
            guest,
            cable: Cable::default(),
            lkey,
            eqn,
            domain,
            tisn: 0,
            sq: Queue { number: 0, ring: 0, record: 0, cqes: 0, consumer: 0, posted: 0, taken: 0 },
            rqs: Vec::new(),
            tirn: 0,
            table: 0,
            group: 0,
        };
        nic.tisn = number(nic.make(Opcode::CREATE_TIS, create_tis_in::ctx.offset, |context| {
            tisc::transport_domain.set(context, domain);
        }));
        nic.sq = nic.create_sq(|_| {});
        nic.ready(Opcode::MODIFY_SQ, nic.sq.number);
        for _ in 0..queues {
            let rq = nic.create_rq(|_| {});
            nic.ready(Opcode::MODIFY_RQ, rq.number);
            nic.rqs.push(rq);
        }
        nic.tirn = if queues == 1 {
            let rqn = nic.rqs[0].number;
            number(nic.create_tir(|context| tirc::inline_rqn.set(context, rqn)))
        } else {
            let rqtn = nic.create_rqt();
            number(nic.create_tir(|context| {
                tirc::disp_type.set(context, TirDisp::INDIRECT.0);
                tirc::indirect_table.set(context, rqtn);
                tirc::rx_hash_fn.set(context, RxHash::TOEPLITZ.0);
                tirc::rx_hash_toeplitz_key.of_mut(context).fill(0x5a);
                let fields = tirc::rx_hash_field_selector_outer.of_mut(context);
                rx_hash_field_select::selected_fields.set(fields, 0xfu8);
            }))
        };
        nic.table = number(nic.create_table(3, 4));
        nic.group = number(nic.create_group(nic.table, (0, 7), &[0xff; 6]));
        assert_eq!(nic.set_entry(nic.table, 0, nic.group, &OWN, Some(nic.tirn)), CmdStatus::OK);
        let root = Input::new(Opcode::SET_FLOW_TABLE_ROOT)
            .set(set_flow_table_root_in::table_id, u64::from(nic.table));
        assert_eq!(nic.guest.status(&root), CmdStatus::OK);
        assert_eq!(nic.set_list(NicVportList::UC, &[OWN]), CmdStatus::OK);
        nic
    }

    /// A command with a context at `offset`.
    pub(super) fn make(&mut self, opcode: Opcode, offset: usize, set: impl FnOnce(&mut [u8])) -> Answer {
        let mut input = Input::new(opcode);
        set(&mut input.0[offset..]);
        self.guest.command(&input)
    }

    /// Returns its number, ring and doorbell record.
    pub(super) fn create_cq(&mut self) -> (u32, u64, u64) {
        let (cqes, record) = (self.guest.page(), self.guest.page());
        (self.guest.create_cq(cqes, LOG_RING, record, self.eqn).expect("a CQ"), cqes, record)
    }

    pub(super) fn create_sq(&mut self, change: impl FnOnce(&mut [u8])) -> Queue {
        let (cqn, cqes, consumer) = self.create_cq();
        let (ring, record) = (self.guest.page(), self.guest.page());
        let number = number(self.try_sq(cqn, (ring, record), change));
        Queue { number, ring, record, cqes, consumer, posted: 0, taken: 0 }
    }

    pub(super) fn try_sq(
        &mut self,
        cqn: u32,
        (ring, record): (u64, u64),
        change: impl FnOnce(&mut [u8]),
    ) -> Answer {
        let mut input = Input::new(Opcode::CREATE_SQ);
        let context = create_sq_in::ctx.of_mut(&mut input.0);
        sqc::cqn.set(context, cqn);
        sqc::tis_lst_sz.set(context, 1u8);
        sqc::tis_num_0.set(context, self.tisn);
        sqc::flush_in_error_en.set(context, 1u8);
        let queue = sqc::wq.of_mut(context);
        self.put_wq(queue, record, 6);
        wq::uar_page.set(queue, self.guest.uar);
        change(context);
        self.guest.command(&input.pas(&[ring]))
    }

    pub(super) fn put_wq(&self, queue: &mut [u8], record: u64, log_stride: u32) {
        wq::wq_type.set(queue, 1u8);
        wq::pd.set(queue, self.guest.pd);
        wq::dbr_addr.set(queue, record);
        wq::log_wq_stride.set(queue, log_stride);
        wq::log_wq_sz.set(queue, LOG_RING);
    }

    pub(super) fn create_rq(&mut self, change: impl FnOnce(&mut [u8])) -> Queue {
        let (cqn, cqes, consumer) = self.create_cq();
        let (ring, record) = (self.guest.page(), self.guest.page());
        let mut input = Input::new(Opcode::CREATE_RQ);
        let context = create_rq_in::ctx.of_mut(&mut input.0);
        rqc::cqn.set(context, cqn);
        rqc::flush_in_error_en.set(context, 1u8);
        self.put_wq(rqc::wq.of_mut(context), record, 4);
        change(context);
        let number = number(self.guest.command(&input.pas(&[ring])));
        Queue { number, ring, record, cqes, consumer, posted: 0, taken: 0 }
    }

    /// Moves a queue from RST to RDY.
    pub(super) fn ready(&mut self, opcode: Opcode, queue: u32) {
        assert_eq!(self.modify(opcode, queue, WqState::RST, WqState::RDY), CmdStatus::OK);
    }

    pub(super) fn modify(&mut self, opcode: Opcode, queue: u32, from: WqState, to: WqState) -> CmdStatus {
        let mut input = Input::new(opcode)
            .set(modify_sq_in::sqn, u64::from(queue))
            .set(modify_sq_in::sq_state, u64::from(from.0));
        sqc::state.set(modify_sq_in::ctx.of_mut(&mut input.0), to.0);
        self.guest.status(&input)
    }

    pub(super) fn create_rqt(&mut self) -> u32 {
        let mut input = Input::new(Opcode::CREATE_RQT);
        let context = create_rqt_in::rqt_context.of_mut(&mut input.0);
        rqtc::rqt_max_size.set(context, 16u8);
        rqtc::rqt_actual_size.set(context, self.rqs.len() as u32);
        input.0.extend(self.rqs.iter().flat_map(|rq| rq.number.to_be_bytes()));
        number(self.guest.command(&input))
    }

    pub(super) fn create_tir(&mut self, change: impl FnOnce(&mut [u8])) -> Answer {
        let domain = self.domain;
        self.make(Opcode::CREATE_TIR, create_tir_in::ctx.offset, |context| {
            tirc::transport_domain.set(context, domain);
            change(context);
        })
    }

    pub(super) fn create_table(&mut self, level: u32, log_size: u32) -> Answer {
        self.make(Opcode::CREATE_FLOW_TABLE, create_flow_table_in::flow_table_context.offset, |context| {
            flow_table_context::level.set(context, level);
            flow_table_context::log_size.set(context, log_size);
        })
    }

    /// A group that matches the bits `mask` of the destination.
    pub(super) fn create_group(&mut self, table: u32, (first, last): (u32, u32), mask: &[u8; 6]) -> Answer {
        let mut input = Input::new(Opcode::CREATE_FLOW_GROUP)
            .set(create_flow_group_in::table_id, u64::from(table))
            .set(create_flow_group_in::start_flow_index, u64::from(first))
            .set(create_flow_group_in::end_flow_index, u64::from(last))
            .set(create_flow_group_in::match_criteria_enable, 1);
        put_destination(create_flow_group_in::match_criteria.of_mut(&mut input.0), mask);
        self.guest.command(&input)
    }

    pub(super) fn entry(table: u32, index: u32, group: u32, to: &[u8; 6], tir: Option<u32>) -> Input {
        let mut input = Input::new(Opcode::SET_FLOW_TABLE_ENTRY)
            .set(set_fte_in::table_id, u64::from(table))
            .set(set_fte_in::flow_index, u64::from(index));
        let context = set_fte_in::flow_context.of_mut(&mut input.0);
        flow_context::group_id.set(context, group);
        put_destination(flow_context::match_value.of_mut(context), to);
        let action = if tir.is_some() { FlowAction::FWD_DEST } else { FlowAction::DROP };
        flow_context::action.set(context, action.bits());
        if let Some(tirn) = tir {
            flow_context::destination_list_size.set(context, 1u8);
            let mut destination = [0; 8];
            dest_format_struct::destination_type.set(&mut destination, FlowDestination::TIR.0);
            dest_format_struct::destination_id.set(&mut destination, tirn);
            input.0.extend_from_slice(&destination);
        }
        input
    }

    pub(super) fn set_entry(
        &mut self,
        table: u32,
        index: u32,
        group: u32,
        to: &[u8; 6],
        tir: Option<u32>,
    ) -> CmdStatus {
        self.guest.status(&Self::entry(table, index, group, to, tir))
    }

    pub(super) fn set_list(&mut self, list: NicVportList, addresses: &[[u8; 6]]) -> CmdStatus {
        let mut input = Input::new(Opcode::MODIFY_NIC_VPORT_CONTEXT);
        let select = modify_nic_vport_context_in::field_select.of_mut(&mut input.0);
        modify_nic_vport_field_select::addresses_list.set(select, 1u8);
        let context = modify_nic_vport_context_in::nic_vport_context.of_mut(&mut input.0);
        nic_vport_context::allowed_list_type.set(context, list.0);
        nic_vport_context::allowed_list_size.set(context, addresses.len() as u32);
        for address in addresses {
            input.0.extend_from_slice(&[0, 0]);
            input.0.extend_from_slice(address);
        }
        self.guest.status(&input)
    }

    /// Posts a frame: `inline` bytes of it in the WQE, the rest in memory.
    pub(super) fn send(&mut self, frame: &[u8], inline: usize, change: impl FnOnce(&mut [u8])) {
        let mut wqe = vec![0; 32];
        let sq = self.sq;
        wqe_eth_seg::inline_hdr_sz.set(&mut wqe[16..], inline as u32);
        wqe.truncate(30);
        wqe.extend_from_slice(&frame[..inline]);
        wqe.resize(wqe.len().next_multiple_of(16).max(32), 0);
        let page = self.guest.pages(1 + frame.len() / 4096)[0];
        self.guest.memory.write(page, &frame[inline..]).expect("room");
        let mut data = [0; 16];
        wqe_data_seg::byte_count.set(&mut data, (frame.len() - inline) as u32);
        wqe_data_seg::lkey.set(&mut data, self.lkey);
        wqe_data_seg::addr.set(&mut data, page);
        wqe.extend_from_slice(&data);
        wqe_ctrl_seg::opcode.set(&mut wqe, SendOpcode::SEND.0);
        wqe_ctrl_seg::wqe_index.set(&mut wqe, sq.posted);
        wqe_ctrl_seg::qpn.set(&mut wqe, sq.number);
        let segments = wqe.len() / 16;
        wqe_ctrl_seg::ds.set(&mut wqe, segments as u32);
        wqe_ctrl_seg::ce.set(&mut wqe, 2u8);
        change(&mut wqe);
        let size = 64 << LOG_RING;
        for (i, byte) in wqe.iter().enumerate() {
            let at = (usize::from(sq.posted) * 64 + i) % size;
            self.guest.memory.write(sq.ring + at as u64, &[*byte]).expect("room");
        }
        self.sq.posted += wqe.len().div_ceil(64) as u16;
        self.guest.memory.store32(sq.record + 4, u32::from(self.sq.posted)).expect("a record");
        let doorbell = self.guest.uar as usize * 4096 + 0x800;
        self.guest.bar.write(doorbell, &wqe[..8]);
        self.poll();
    }

    /// Posts a receive buffer of `len` bytes. Returns its address.
    pub(super) fn post(&mut self, queue: usize, len: u32) -> u64 {
        let page = self.guest.page();
        let rq = &mut self.rqs[queue];
        let mut entry = [0; 16];
        // Linux sets the uppermost bit of each length.
        Field::bits(0, 31, 0).set(&mut entry, 1u32 << 31 | len);
        wqe_data_seg::lkey.set(&mut entry, self.lkey);
        wqe_data_seg::addr.set(&mut entry, page);
        let at = rq.ring + 16 * u64::from(rq.posted % (1 << LOG_RING));
        rq.posted += 1;
        self.guest.memory.write(at, &entry).expect("room");
        self.guest.memory.store32(rq.record, u32::from(rq.posted)).expect("a record");
        page
    }

    pub(super) fn receive(&mut self, frame: &[u8]) {
        self.cable.arriving.push_back(frame.to_vec());
        self.poll();
    }

    pub(super) fn poll(&mut self) {
        let Guest { hca, memory, vectors, now, .. } = &mut self.guest;
        for frame in self.cable.arriving.drain(..) {
            hca.receive(Packet::frame(frame));
        }
        *now += 1000;
        while hca.poll(*now, memory, vectors, &mut self.cable) {}
    }

    /// The next completion of a queue.
    pub(super) fn completion(guest: &Guest, queue: &mut Queue) -> Option<[u8; 64]> {
        let at = queue.cqes + 64 * u64::from(queue.taken % (1 << LOG_RING));
        let cqe: [u8; 64] = guest.memory.bytes(at, 64).try_into().expect("64 bytes");
        let lap = queue.taken >> LOG_RING & 1 != 0;
        let is_new = cqe_opcode(cqe[CQE_OP_OWN]) != CqeOpcode::INVALID && cqe_owner(cqe[CQE_OP_OWN]) == lap;
        queue.taken += u32::from(is_new);
        guest.memory.store32(queue.consumer, queue.taken & 0xff_ffff).expect("a record");
        is_new.then_some(cqe)
    }

    pub(super) fn received(&mut self, queue: usize) -> Option<[u8; 64]> {
        Self::completion(&self.guest, &mut self.rqs[queue])
    }

    pub(super) fn sent(&mut self) -> Option<[u8; 64]> {
        Self::completion(&self.guest, &mut self.sq)
    }
}

pub(super) fn put_destination(param: &mut [u8], mac: &[u8; 6]) {
    use fte_match_set_lyr_2_4 as outer;
    let headers = fte_match_param::outer_headers.of_mut(param);
    outer::dmac_47_16.set(headers, u32::from_be_bytes([mac[0], mac[1], mac[2], mac[3]]));
    outer::dmac_15_0.set(headers, u16::from_be_bytes([mac[4], mac[5]]));
}

/// A TCP segment over IPv4 with `len` bytes from port `sport`, without checksums.
pub(super) fn tcp(to: [u8; 6], sport: u16, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &PEER, &[8, 0, 0x45, 0]].concat();
    frame.extend((40 + len as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(sport.to_be_bytes());
    frame.extend([0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..len).map(|i| i as u8));
    frame
}

pub(super) fn checksums_are_right(frame: &[u8]) -> bool {
    let ip = Frame::parse(frame).and_then(|frame| frame.ip()).expect("an IP packet");
    ip.header_checksum_is_right() && ip.transport_checksum_is_right() == Some(true)
}
