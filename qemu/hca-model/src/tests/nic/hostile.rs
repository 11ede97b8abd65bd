//! A guest and its cable with bad intentions: frames of any content, objects without end, flow tables and TIRs that
//! lead in circles or nowhere. Work and memory stay within their limits.

use super::bench::*;
use crate::object::nic::{MAX_COUNTERS, MAX_GROUPS, MAX_TABLES};
use crate::seams::GuestMemory;
use crate::tests::guest::{Failed, Input};
use ib_types::SplitMix64;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::*;
use mlx5_prm::datapath::{CqeOpcode, cqe64};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::steering::*;
use mlx5_prm::value::*;
use rdma_fabric::ethernet::frame::{write_checksums, write_icrc};
use rdma_fabric::infiniband::packet::{Bth, Opcode as PacketOpcode};
use rdma_fabric::work::STEPS_PER_CALL;

/// Most steps of a call with one frame: those of the call, and one operation that began within them.
const MOST_OF_A_FRAME: u64 = STEPS_PER_CALL + (1 << 16) + 4 * MAX_GROUPS as u64 + 4096;

/// RoCE v2 over IPv4 to `OWN`, with an opcode, an extended header and `len` bytes.
fn roce(opcode: u8, len: usize) -> Vec<u8> {
    let content = 12 + 16 + len + 4;
    let mut frame = [&OWN[..], &PEER, &[8, 0, 0x45, 2]].concat();
    frame.extend((28 + content as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0x12, 0xb7]);
    frame.extend((8 + content as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(Bth::new(PacketOpcode(opcode), 0xffff, 0x40, 7).to_bytes());
    frame.extend((0..16 + len + 4).map(|i| i as u8));
    frame
}

/// Frames of each kind that is parsed, all valid.
fn valid() -> Vec<Vec<u8>> {
    let payload = tcp(OWN, 7, 100);
    let arp =
        [&[0xff; 6][..], &PEER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &PEER, &[10, 0, 0, 1], &[0; 10]].concat();
    let tagged = [&payload[..12], &[0x81, 0, 0x60, 5], &payload[12..]].concat();
    let twice = [&payload[..12], &[0x88, 0xa8, 0, 9], &tagged[12..]].concat();
    let ipv6 = |next: u8, content: &[u8]| {
        let len = (content.len() as u16).to_be_bytes();
        [&OWN[..], &PEER, &[0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], next, 64], &[0xfe; 32], content]
            .concat()
    };
    let udp = [0xc0, 0, 0x12, 0xb7, 0, 36, 0, 0];
    let bth = Bth::new(PacketOpcode::UD_SEND_ONLY, 0xffff, 1, 0).to_bytes();
    let grh_like =
        [&OWN[..], &PEER, &[0x89, 0x15, 0x60, 0, 0, 0, 0, 24, 0x1b, 64], &[0xfe; 32], &bth, &[0; 12]];
    let mut frames = vec![
        payload,
        arp,
        tagged,
        twice,
        ipv6(17, &[&udp[..], &bth, &[0; 16]].concat()),
        ipv6(0, &[&[17, 0, 5, 2, 0, 0, 0, 0][..], &udp, &bth, &[0; 16]].concat()),
        ipv6(44, &[&[6, 0, 0, 1, 0, 0, 0, 9][..], &[7; 40]].concat()),
        ipv6(43, &[&[60, 255, 0, 0][..], &[3; 60]].concat()),
        grh_like.concat(),
    ];
    frames.extend((0..=255u8).step_by(5).map(|opcode| roce(opcode, 33)));
    for frame in &mut frames {
        write_checksums(frame, true, true);
        write_icrc(frame);
    }
    frames
}

/// A change that a hostile sender makes.
fn mutated(frame: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..1 + random.next_u64() % 4 {
        let at = random.next_u64() as usize % (frame.len().max(1));
        match random.next_u64() % 6 {
            0 => frame.truncate(at),
            1 => frame.extend((0..random.next_u64() % 9_600).map(|i| i as u8)),
            2 => frame.iter_mut().skip(at).take(2).for_each(|byte| *byte = 0xff),
            3 => frame.iter_mut().skip(at).take(2).for_each(|byte| *byte = 0),
            _ => frame.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= random.next_u64() as u8),
        }
    }
    if random.next_u64().is_multiple_of(2) {
        // Past the checks of the sums.
        write_checksums(&mut frame, true, true);
        write_icrc(&mut frame);
    }
    frame
}

fn refusal(failed: Failed) -> CmdStatus {
    match failed {
        Failed::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

impl Nic {
    /// Lets the transport take RoCE packets to 10.0.0.2, and others the receive queues.
    fn take_roce(&mut self) {
        let mut entry = [0; roce_addr_layout::SIZE];
        let gid = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 2]].concat();
        roce_addr_layout::source_l3_address.of_mut(&mut entry).copy_from_slice(&gid);
        let [a, b, rest @ ..] = OWN;
        roce_addr_layout::source_mac_47_32.set(&mut entry, u16::from_be_bytes([a, b]));
        roce_addr_layout::source_mac_31_0.set(&mut entry, u32::from_be_bytes(rest));
        roce_addr_layout::roce_version.set(&mut entry, 2u8);
        let vport = &mut self.guest.hca.device.vport;
        assert!(vport.set_roce_address(0, &entry));
        vport.roce = true;
    }

    /// Posts receives until the ring is full. All have the same buffer.
    fn supply(&mut self, queue: usize, left: &mut u16) {
        while *left < 1 << LOG_RING {
            let page = self.post(queue, BUFFER);
            self.guest.rewind(page);
            *left += 1;
        }
    }

    /// Brings a queue that failed at a long frame back to RDY, without receives.
    fn revive(&mut self, queue: usize) {
        let number = self.rqs[queue].number;
        while self.received(queue).is_some() {}
        assert_eq!(self.modify(Opcode::MODIFY_RQ, number, WqState::ERR, WqState::RST), CmdStatus::OK);
        // Its indices begin again at 0.
        self.guest.memory.store32(self.rqs[queue].record, 0).expect("a record");
        self.rqs[queue].posted = 0;
        self.ready(Opcode::MODIFY_RQ, number);
    }

    /// An entry that leads to tables or TIRs.
    fn lead(&mut self, table: u32, index: u32, group: u32, to: &[(FlowDestination, u32)]) -> CmdStatus {
        let mut input = Self::entry(table, index, group, &[0; 6], None);
        let context = set_fte_in::flow_context.of_mut(&mut input.0);
        flow_context::action.set(context, FlowAction::FWD_DEST.bits());
        flow_context::destination_list_size.set(context, to.len() as u32);
        for (kind, id) in to {
            let mut destination = [0; 8];
            dest_format_struct::destination_type.set(&mut destination, kind.0);
            dest_format_struct::destination_id.set(&mut destination, *id);
            input.0.extend_from_slice(&destination);
        }
        self.guest.status(&input)
    }

    fn set_root(&mut self, table: u32) {
        let root =
            Input::new(Opcode::SET_FLOW_TABLE_ROOT).set(set_flow_table_root_in::table_id, u64::from(table));
        assert_eq!(self.guest.status(&root), CmdStatus::OK);
    }

    fn held(&self) -> u64 {
        self.guest.hca.budget().held()
    }

    /// Steps that a frame takes.
    fn steps(&mut self, frame: &[u8]) -> u64 {
        let before = self.guest.hca.meter().steps();
        self.receive(frame);
        self.guest.hca.meter().steps() - before
    }
}

#[test]
fn frames_of_any_content_cost_bounded_work_and_arrive_as_they_are() {
    let mut nic = Nic::new(4);
    nic.take_roce();
    let (valid, mut random) = (valid(), SplitMix64::new(30));
    let (mut received, mut left) = (0, [0; 4]);
    for round in 0..20_000usize {
        for (queue, left) in left.iter_mut().enumerate() {
            nic.supply(queue, left);
        }
        let frame = match round % 3 {
            0 => (0..random.next_u64() % 128).map(|_| random.next_u64() as u8).collect(),
            _ => mutated(&valid[random.next_u64() as usize % valid.len()], &mut random),
        };
        nic.receive(&frame);
        for (queue, left) in left.iter_mut().enumerate() {
            while let Some(cqe) = nic.received(queue) {
                let opcode = CqeOpcode(cqe64::opcode.get32(&cqe) as u8);
                if opcode != CqeOpcode::RESP_SEND {
                    nic.revive(queue);
                    *left = 0;
                    break;
                }
                *left -= 1;
                let tag = 4 * (cqe64::l4_l3_hdr_type.get32(&cqe) as usize & 1);
                assert_eq!(cqe64::byte_cnt.get32(&cqe) as usize, frame.len() - tag, "{frame:02x?}");
                received += 1;
            }
        }
    }
    assert!(received > 1_000, "{received} frames arrived");
    let most = nic.guest.hca.meter().most_in_call();
    assert!(most <= MOST_OF_A_FRAME, "{most} steps in a call");
    let log = nic.guest.hca.log();
    assert!(log.refusals() < 20_000, "{} refusals", log.refusals());
}

/// 2^16 groups with an entry each, which is what a table holds. The frame matches only the last one, if any.
#[test]
fn full_flow_tables_cost_their_owner_and_give_its_memory_back() {
    let mut nic = Nic::new(1);
    let before = nic.held();
    let table = number(nic.create_table(9, 16));
    let mut groups = Vec::new();
    let refused = loop {
        let index = groups.len() as u32;
        match nic.create_group(table, (index, index), &[0xff; 6]) {
            Ok(output) => groups.push(create_flow_group_out::group_id.get32(&output)),
            Err(failed) => break refusal(failed),
        }
        assert_eq!(
            nic.lead(table, index, groups[index as usize], &[(FlowDestination::TIR, nic.tirn)]),
            CmdStatus::OK
        );
    };
    // The bench's own group is one of them.
    assert_eq!((refused, groups.len() as u32), (CmdStatus::NO_RES, MAX_GROUPS - 1));
    let (held, limit) = (nic.held(), nic.guest.hca.budget().limit());
    assert!(held < limit / 2, "{held} of {limit} bytes");
    nic.set_root(table);
    nic.post(0, BUFFER);
    let steps = nic.steps(&tcp(OWN, 1, 60));
    assert_eq!(nic.received(0), None);
    assert!(steps >= u64::from(MAX_GROUPS) && steps <= MOST_OF_A_FRAME, "{steps} steps");
    assert!(nic.guest.hca.meter().most_in_call() <= MOST_OF_A_FRAME);
    for (index, group) in (0..).zip(groups) {
        let delete = Input::new(Opcode::DELETE_FLOW_TABLE_ENTRY)
            .set(delete_fte_in::table_id, u64::from(table))
            .set(delete_fte_in::flow_index, index);
        let destroy =
            Input::new(Opcode::DESTROY_FLOW_GROUP).set(destroy_flow_group_in::group_id, u64::from(group));
        assert_eq!([delete, destroy].map(|input| nic.guest.status(&input)), [CmdStatus::OK; 2]);
    }
    let destroy =
        Input::new(Opcode::DESTROY_FLOW_TABLE).set(destroy_flow_table_in::table_id, u64::from(table));
    assert_eq!(nic.guest.status(&destroy), CmdStatus::OK);
    assert_eq!(nic.held(), before);
}

#[test]
fn tables_and_counters_are_limited() {
    let mut nic = Nic::new(1);
    let tables = std::iter::from_fn(|| nic.create_table(9, 0).ok()).count() as u32;
    assert_eq!(tables, MAX_TABLES - 1);
    let counter = Input::new(Opcode::ALLOC_FLOW_COUNTER);
    let counters = (0..=MAX_COUNTERS).take_while(|_| nic.guest.status(&counter) == CmdStatus::OK).count();
    assert_eq!(counters as u32, MAX_COUNTERS);
    let limit = nic.guest.hca.budget().limit();
    assert!(nic.held() < limit / 2);
}

/// Tables of each level, which lead to all tables that they may, and try to lead back.
#[test]
fn tables_that_lead_to_one_another_end() {
    const TABLES: u32 = 48;
    let mut nic = Nic::new(1);
    let made: Vec<(u32, u32)> = (0..TABLES)
        .map(|level| {
            let table = number(nic.create_table(100 + level, 2));
            let group = number(nic.create_group(table, (0, 1), &[0; 6]));
            (table, group)
        })
        .collect();
    for (at, (table, group)) in made.iter().enumerate() {
        for (other, _) in &made[..=at] {
            let back = [(FlowDestination::FLOW_TABLE, *other)];
            assert_eq!(nic.lead(*table, 1, *group, &back), CmdStatus::BAD_PARAM, "{table:#x} to {other:#x}");
            let mut miss = Input::new(Opcode::MODIFY_FLOW_TABLE)
                .set(modify_flow_table_in::table_id, u64::from(*table))
                .set(modify_flow_table_in::modify_field_select, 1);
            let context = modify_flow_table_in::flow_table_context.of_mut(&mut miss.0);
            flow_table_context::table_miss_action.set(context, TableMissAction::FWD.0);
            flow_table_context::table_miss_id.set(context, *other);
            assert_eq!(nic.guest.status(&miss), CmdStatus::BAD_PARAM, "{table:#x} misses to {other:#x}");
        }
        let mut on: Vec<_> =
            made[at + 1..].iter().map(|(other, _)| (FlowDestination::FLOW_TABLE, *other)).collect();
        on.extend([(FlowDestination::TIR, nic.tirn); 8]);
        assert_eq!(nic.lead(*table, 0, *group, &on), CmdStatus::OK);
        // A change in place is checked, too.
        let back = Nic::entry(*table, 0, *group, &[0; 6], Some(*table)).op_mod(1);
        let mut back = back.set(set_fte_in::modify_enable_mask, 0xf);
        let last = back.0.len() - 8;
        dest_format_struct::destination_type.set(&mut back.0[last..], FlowDestination::FLOW_TABLE.0);
        assert_eq!(nic.guest.status(&back), CmdStatus::BAD_PARAM);
    }
    nic.set_root(made[0].0);
    for _ in 0..1 << LOG_RING {
        nic.post(0, BUFFER);
    }
    // 2^46 paths lead through the tables.
    let steps = nic.steps(&tcp(OWN, 1, 60));
    assert!(steps <= MOST_OF_A_FRAME, "{steps} steps");
    let frames = std::iter::from_fn(|| nic.received(0)).count();
    assert_eq!(frames, 1 << LOG_RING, "as many as were posted");
}

/// Tables of receive queues as no driver makes them, and TIRs that use them.
#[test]
fn odd_tables_of_receive_queues_lead_nowhere_or_are_refused() {
    let mut nic = Nic::new(3);
    let rqt = |nic: &mut Nic, max: u32, actual: u32, list: &[u32]| {
        let mut input = Input::new(Opcode::CREATE_RQT);
        let context = create_rqt_in::rqt_context.of_mut(&mut input.0);
        rqtc::rqt_max_size.set(context, max);
        rqtc::rqt_actual_size.set(context, actual);
        input.0.extend(list.iter().flat_map(|rqn| rqn.to_be_bytes()));
        nic.guest.command(&input).map(|output| create_rqt_out::rqtn.get32(&output)).map_err(refusal)
    };
    let rqns: Vec<u32> = nic.rqs.iter().map(|rq| rq.number).collect();
    let bad = Err(CmdStatus::BAD_PARAM);
    for (max, actual, list) in [
        (0, 0, &rqns[..0]),
        (16, 0, &rqns),
        (2, 3, &rqns),
        (16, 4, &rqns),
        (16, 0xffff, &rqns),
        (257, 1, &rqns),
        (0xffff, 0xffff, &rqns),
    ] {
        assert_eq!(rqt(&mut nic, max, actual, list), bad, "{actual} of {max}");
    }
    for missing in [0, 0x999, 0xff_ffff] {
        assert_eq!(rqt(&mut nic, 16, 2, &[rqns[0], missing]), Err(CmdStatus::BAD_RES));
    }
    // One queue again and again, and a number of queues that is no power of 2.
    let (same, odd) = (rqt(&mut nic, 256, 256, &[rqns[0]; 256]), rqt(&mut nic, 3, 3, &rqns));
    let (same, odd) = (same.expect("made"), odd.expect("made"));
    let indirect = |nic: &mut Nic, rqtn: u32, function: RxHash| {
        let made = nic.create_tir(|context| {
            tirc::disp_type.set(context, TirDisp::INDIRECT.0);
            tirc::indirect_table.set(context, rqtn);
            tirc::rx_hash_fn.set(context, function.0);
            let fields = tirc::rx_hash_field_selector_outer.of_mut(context);
            rx_hash_field_select::selected_fields.set(fields, 0x3fff_ffffu32);
        });
        made.map(|output| create_tir_out::tirn.get32(&output)).map_err(refusal)
    };
    for rqtn in [0, 0x999] {
        assert_eq!(indirect(&mut nic, rqtn, RxHash::NONE), Err(CmdStatus::BAD_RES));
    }
    let table = number(nic.create_table(9, 4));
    let group = number(nic.create_group(table, (0, 15), &[0; 6]));
    let mut to = Vec::new();
    for function in RxHash::ALL {
        for rqtn in [same, odd] {
            to.push((FlowDestination::TIR, indirect(&mut nic, rqtn, *function).expect("made")));
        }
    }
    assert_eq!(nic.lead(table, 0, group, &to), CmdStatus::OK);
    nic.set_root(table);
    let mut left = [0; 3];
    for sport in 0..64 {
        for (queue, left) in left.iter_mut().enumerate() {
            nic.supply(queue, left);
        }
        nic.receive(&tcp(OWN, sport, 9));
        let came: usize = (0..3)
            .map(|queue| {
                let count = std::iter::from_fn(|| nic.received(queue)).count();
                left[queue] -= count as u16;
                count
            })
            .sum();
        assert_eq!(came, to.len(), "each TIR's queue receives the frame");
    }
    // A queue that failed receives nothing, and one in a table cannot go.
    assert_eq!(nic.modify(Opcode::MODIFY_RQ, rqns[0], WqState::RDY, WqState::ERR), CmdStatus::OK);
    while nic.received(0).is_some() {}
    nic.receive(&tcp(OWN, 1, 9));
    assert_eq!(nic.received(0), None);
    let destroy = Input::new(Opcode::DESTROY_RQ).set(destroy_rq_in::rqn, u64::from(rqns[0]));
    assert_eq!(nic.guest.status(&destroy), CmdStatus::BAD_RES_STATE);
    let destroy = Input::new(Opcode::DESTROY_RQT).set(destroy_rqt_in::rqtn, u64::from(same));
    assert_eq!(nic.guest.status(&destroy), CmdStatus::BAD_RES_STATE);
}
