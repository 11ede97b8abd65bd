//! Raw Ethernet queues, flow tables and the vport: frames out and in, and what is refused.

mod bench;
mod hostile;

use super::guest::{Guest, Input};
use super::registers::access;
use crate::object::census::Census;
use crate::profile::Profile;
use crate::seams::GuestMemory;
use crate::transport::CongestionCounters;
use bench::*;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::*;
use mlx5_prm::datapath::*;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::steering::*;
use mlx5_prm::value::*;
use rdma_fabric::ethernet::frame::Frame;

const CHECKSUMS: u8 = EthChecksums::L3.bits() | EthChecksums::L4.bits();

#[test]
fn frame_leaves_with_checksums_and_padding() {
    let mut nic = Nic::new(1);
    let frame = tcp(PEER, 1000, 3);
    nic.send(&frame, 18, |wqe| wqe_eth_seg::cs_flags.set(&mut wqe[16..], CHECKSUMS));
    let cqe = nic.sent().expect("signalled");
    assert_eq!((cqe64::opcode.get(&cqe), cqe64::wqe_counter.get(&cqe)), (0, 0));
    let [sent] = &nic.cable.sent[..] else { panic!("one frame") };
    assert_eq!((sent.len(), &sent[..24], &sent[54..]), (60, &frame[..24], &[0, 1, 2, 0, 0, 0][..]));
    assert!(checksums_are_right(sent) && !checksums_are_right(&frame));
    // All in memory, unsignalled, a tag inserted.
    nic.send(&frame, 0, |wqe| {
        wqe_ctrl_seg::ce.set(wqe, 0u8);
        wqe_eth_seg::inline_hdr_sz.set(&mut wqe[16..], ETH_INSERT_VLAN);
        wqe_eth_seg::vlan_tci.set(&mut wqe[16..], 0x6007u16);
    });
    assert_eq!(nic.sent(), None);
    assert_eq!(nic.cable.sent[1][..18], [&frame[..12], &[0x81, 0, 0x60, 7], &frame[12..14]].concat());
}

#[test]
fn long_frame_leaves_in_segments() {
    let mut nic = Nic::new(1);
    let frame = tcp(PEER, 1000, 5000);
    nic.send(&frame, 54, |wqe| {
        wqe_ctrl_seg::opcode.set(wqe, SendOpcode::LSO.0);
        wqe_eth_seg::cs_flags.set(&mut wqe[16..], CHECKSUMS);
        wqe_eth_seg::mss.set(&mut wqe[16..], 1448u16);
    });
    let payloads: Vec<&[u8]> = nic.cable.sent.iter().map(|segment| &segment[54..]).collect();
    assert_eq!(payloads.concat(), frame[54..]);
    assert_eq!(payloads.iter().map(|payload| payload.len()).collect::<Vec<_>>(), [1448, 1448, 1448, 656]);
    assert!(nic.cable.sent.iter().all(|segment| checksums_are_right(segment)));
    assert!(nic.sent().is_some());
}

#[test]
fn segments_of_a_frame_are_bounded() {
    let mut nic = Nic::new(1);
    let segment = |nic: &mut Nic, len: usize| {
        nic.send(&tcp(PEER, 1000, len), 54, |wqe| {
            wqe_ctrl_seg::opcode.set(wqe, SendOpcode::LSO.0);
            wqe_eth_seg::mss.set(&mut wqe[16..], 2u16);
        });
        let cqe = nic.sent().expect("completed");
        (cqe64::opcode.get32(&cqe), nic.cable.sent.len())
    };
    assert_eq!(segment(&mut nic, 4096), (u32::from(CqeOpcode::REQ.0), 2048));
    assert_eq!(segment(&mut nic, 4097), (u32::from(CqeOpcode::REQ_ERR.0), 2048));
}

#[test]
fn frame_arrives_where_flow_tables_lead() {
    let mut nic = Nic::new(1);
    let (first, second) = (nic.post(0, BUFFER), nic.post(0, BUFFER));
    let mut frame = tcp(OWN, 7, 100);
    rdma_fabric::ethernet::frame::write_checksums(&mut frame, true, true);
    nic.receive(&frame);
    nic.receive(&tcp(PEER, 7, 1));
    let cqe = nic.received(0).expect("for its own address");
    assert_eq!(nic.guest.memory.bytes(first, frame.len()), frame);
    assert_eq!(cqe64::byte_cnt.get(&cqe), frame.len() as u64);
    assert_eq!((cqe64::opcode.get(&cqe), cqe64::hds_ip_ext.get(&cqe)), (2, 7));
    assert_eq!(cqe64::l4_l3_hdr_type.get(&cqe), 2 << 2 | 1 << 4);
    let ip = Frame::parse(&frame).and_then(|frame| frame.ip()).expect("an IP packet");
    assert_eq!(cqe64::check_sum.get(&cqe), u64::from(ip.sum()));
    assert_eq!(nic.received(0), None, "another address is filtered");
    // The tag is told, and not in memory; a wrong checksum is told, too.
    let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..50], &[0, 0, 0, 0], &frame[54..]].concat();
    nic.receive(&tagged);
    let cqe = nic.received(0).expect("tagged");
    assert_eq!((cqe64::vlan_info.get(&cqe), cqe64::l4_l3_hdr_type.get(&cqe) & 1), (5, 1));
    assert_eq!(cqe64::hds_ip_ext.get(&cqe), 3, "the checksum of TCP is wrong");
    assert_eq!(nic.guest.memory.bytes(second, 50), frame[..50]);
}

#[test]
fn hash_spreads_connections_and_keeps_each_in_one_queue() {
    let mut nic = Nic::new(4);
    let mut counts = [0; 4];
    for queue in 0..4 {
        for _ in 0..16 {
            nic.post(queue, BUFFER);
        }
    }
    let mut first = Vec::new();
    for round in 0..2 {
        for sport in 0..16 {
            nic.receive(&tcp(OWN, sport, 10));
            let took = (0..4).find_map(|queue| nic.received(queue).map(|cqe| (queue, cqe)));
            let (queue, cqe) = took.expect("received");
            assert_eq!(cqe64::rss_hash_type.get(&cqe), 0x44);
            counts[queue] += 1;
            let mine = (queue, cqe64::rss_hash_result.get(&cqe));
            if round == 0 {
                first.push(mine);
            } else {
                assert_eq!(first[usize::from(sport)], mine);
            }
        }
    }
    assert!(counts.iter().filter(|count| **count != 0).count() >= 3, "{counts:?}");
}

#[test]
fn frames_without_room_are_counted() {
    let mut nic = Nic::new(1);
    let set = number(nic.guest.command(&Input::new(Opcode::ALLOC_Q_COUNTER))) >> 16;
    let set = set.max(1);
    let mut input = Input::new(Opcode::MODIFY_RQ)
        .set(modify_rq_in::rqn, u64::from(nic.rqs[0].number))
        .set(modify_rq_in::rq_state, u64::from(WqState::RDY.0))
        .set(modify_rq_in::modify_bitmask, 1 << 3);
    let context = modify_rq_in::ctx.of_mut(&mut input.0);
    rqc::state.set(context, WqState::RDY.0);
    rqc::counter_set_id.set(context, set);
    assert_eq!(nic.guest.status(&input), CmdStatus::OK);
    nic.receive(&tcp(OWN, 7, 1));
    let query = Input::new(Opcode::QUERY_Q_COUNTER).set(query_q_counter_in::counter_set_id, u64::from(set));
    let counters = nic.guest.command(&query).expect("counters");
    assert_eq!(query_q_counter_out::out_of_buffer.get(&counters), 1);
    // A buffer that is too short fails the queue, and flushes nothing that is not posted.
    nic.post(0, 40);
    nic.receive(&tcp(OWN, 7, 1));
    let cqe = nic.received(0).expect("an error");
    assert_eq!((err_cqe::opcode.get(&cqe), err_cqe::syndrome.get(&cqe)), (0xe, 1));
    assert_eq!(nic.received(0), None);
    assert_eq!(
        nic.modify(Opcode::MODIFY_RQ, nic.rqs[0].number, WqState::RDY, WqState::ERR),
        CmdStatus::BAD_RES_STATE
    );
    assert_eq!(nic.modify(Opcode::MODIFY_RQ, nic.rqs[0].number, WqState::ERR, WqState::RST), CmdStatus::OK);
}

#[test]
fn bad_wqe_fails_its_queue_and_those_behind_are_flushed() {
    let changes: [fn(&mut [u8]); 6] = [
        |wqe| wqe_ctrl_seg::opcode.set(wqe, SendOpcode::RDMA_WRITE.0),
        |wqe| wqe_ctrl_seg::ds.set(wqe, 63u8),
        |wqe| wqe_ctrl_seg::wqe_index.set(wqe, 9u8),
        |wqe| wqe_eth_seg::inline_hdr_sz.set(&mut wqe[16..], 2000u32),
        |wqe| wqe_data_seg::byte_count.set(&mut wqe[48..], 20_000u32),
        |wqe| wqe_data_seg::lkey.set(&mut wqe[48..], 0x1234_5600u32),
    ];
    for change in changes {
        let mut nic = Nic::new(1);
        nic.send(&tcp(PEER, 1, 100), 18, change);
        let cqe = nic.sent().expect("an error");
        assert_eq!(err_cqe::opcode.get(&cqe), 0xd);
        assert_ne!(err_cqe::syndrome.get(&cqe), 5, "{}", nic.guest.refusal());
        nic.send(&tcp(PEER, 1, 100), 18, |_| {});
        let cqe = nic.sent().expect("flushed");
        assert_eq!((err_cqe::opcode.get(&cqe), err_cqe::syndrome.get(&cqe)), (0xd, 5));
        assert!(nic.cable.sent.is_empty());
        // As new after RST, and nothing is sent again.
        nic.sq.posted = 0;
        nic.guest.memory.store32(nic.sq.record + 4, 0).expect("a record");
        assert_eq!(nic.modify(Opcode::MODIFY_SQ, nic.sq.number, WqState::ERR, WqState::RST), CmdStatus::OK);
        nic.ready(Opcode::MODIFY_SQ, nic.sq.number);
        nic.send(&tcp(PEER, 1, 100), 18, |_| {});
        assert_eq!(nic.cable.sent.len(), 1);
    }
}

#[test]
fn own_frames_return_where_the_tir_says_so() {
    let mut nic = Nic::new(1);
    nic.post(0, BUFFER);
    nic.send(&tcp(OWN, 7, 50), 18, |_| {});
    nic.poll();
    assert_eq!(nic.received(0), None);
    let mut input = Input::new(Opcode::MODIFY_TIR).set(modify_tir_in::tirn, u64::from(nic.tirn));
    modify_tir_bitmask::self_lb_en.set(modify_tir_in::bitmask.of_mut(&mut input.0), 1u8);
    tirc::self_lb_block.set(modify_tir_in::ctx.of_mut(&mut input.0), 1u8);
    assert_eq!(nic.guest.status(&input), CmdStatus::OK);
    nic.send(&tcp(OWN, 7, 50), 18, |_| {});
    nic.poll();
    assert!(nic.received(0).is_some());
}

#[test]
fn frames_return_to_other_transport_domains() {
    let mut nic = Nic::new(1);
    // A receive queue of another transport domain, or of none, for an unused address.
    let other = number(nic.guest.command(&Input::new(Opcode::ALLOC_TRANSPORT_DOMAIN)));
    let rqn = nic.rqs[0].number;
    for (index, (domain, switched_off)) in [(other, false), (0, false), (other, true)].into_iter().enumerate()
    {
        let mut input = Input::new(Opcode::MODIFY_NIC_VPORT_CONTEXT);
        let select = modify_nic_vport_context_in::field_select.of_mut(&mut input.0);
        modify_nic_vport_field_select::disable_uc_local_lb.set(select, 1u8);
        let context = modify_nic_vport_context_in::nic_vport_context.of_mut(&mut input.0);
        nic_vport_context::disable_uc_local_lb.set(context, u8::from(switched_off));
        assert_eq!(nic.guest.status(&input), CmdStatus::OK);
        let tir = number(nic.create_tir(|context| {
            tirc::inline_rqn.set(context, rqn);
            tirc::transport_domain.set(context, domain);
        }));
        let to = [2, 0, 0, 0, 0, index as u8];
        let entry = index as u32 + 1;
        assert_eq!(nic.set_entry(nic.table, entry, nic.group, &to, Some(tir)), CmdStatus::OK);
        nic.post(0, BUFFER);
        nic.send(&tcp(to, 7, 50), 18, |_| {});
        nic.poll();
        assert_eq!(nic.received(0).is_some(), !switched_off, "domain {domain:#x}");
        assert_eq!(nic.cable.sent.len(), index + 1, "on the wire, too");
    }
}

#[test]
fn objects_in_use_stay() {
    let mut nic = Nic::new(1);
    let end = |nic: &mut Nic, opcode, field: Field, number: u32| {
        nic.guest.status(&Input::new(opcode).set(field, u64::from(number)))
    };
    let [tisn, sqn, rqn, tirn] = [nic.tisn, nic.sq.number, nic.rqs[0].number, nic.tirn];
    let (table, group) = (nic.table, nic.group);
    for (opcode, field, number) in [
        (Opcode::DESTROY_TIS, destroy_tis_in::tisn, tisn),
        (Opcode::DESTROY_RQ, destroy_rq_in::rqn, rqn),
        (Opcode::DESTROY_TIR, destroy_tir_in::tirn, tirn),
        (Opcode::DESTROY_FLOW_GROUP, destroy_flow_group_in::group_id, group),
        (Opcode::DESTROY_FLOW_TABLE, destroy_flow_table_in::table_id, table),
        (Opcode::DEALLOC_PD, dealloc_pd_in::pd, nic.guest.pd),
        (Opcode::DEALLOC_TRANSPORT_DOMAIN, dealloc_transport_domain_in::transport_domain, nic.domain),
    ] {
        assert_eq!(end(&mut nic, opcode, field, number), CmdStatus::BAD_RES_STATE, "{opcode}");
    }
    let delete = Input::new(Opcode::DELETE_FLOW_TABLE_ENTRY).set(delete_fte_in::table_id, u64::from(table));
    assert_eq!(nic.guest.status(&delete), CmdStatus::OK);
    assert_eq!(nic.guest.status(&delete), CmdStatus::BAD_RES);
    for (opcode, field, number) in [
        (Opcode::DESTROY_FLOW_GROUP, destroy_flow_group_in::group_id, group),
        (Opcode::DESTROY_FLOW_TABLE, destroy_flow_table_in::table_id, table),
        (Opcode::DESTROY_TIR, destroy_tir_in::tirn, tirn),
        (Opcode::DESTROY_RQ, destroy_rq_in::rqn, rqn),
        (Opcode::DESTROY_SQ, destroy_sq_in::sqn, sqn),
        (Opcode::DESTROY_TIS, destroy_tis_in::tisn, tisn),
        (Opcode::DEALLOC_TRANSPORT_DOMAIN, dealloc_transport_domain_in::transport_domain, nic.domain),
    ] {
        assert_eq!(end(&mut nic, opcode, field, number), CmdStatus::OK, "{opcode}");
        assert_eq!(end(&mut nic, opcode, field, number), CmdStatus::BAD_RES, "{opcode}");
    }
    let Census { tises, tirs, rqts, sqs, rqs, flow_tables, .. } = nic.guest.hca.census();
    assert_eq!((tises, tirs, rqts, sqs, rqs, flow_tables), (0, 0, 0, 0, 0, 0));
}

#[test]
fn flow_tables_lead_upwards_alone() {
    let mut nic = Nic::new(1);
    let (low, top) = (number(nic.create_table(2, 1)), nic.table);
    let (ok, bad, missing) = (CmdStatus::OK, CmdStatus::BAD_PARAM, CmdStatus::BAD_RES);
    for (from, to, index, status) in [(low, top, 0, ok), (top, low, 8, bad), (low, 0x999, 1, missing)] {
        let range = (index, index);
        let group = number(nic.create_group(from, range, &[0; 6]));
        let mut input = Nic::entry(from, range.0, group, &[0; 6], Some(to));
        let at = input.0.len() - 8;
        dest_format_struct::destination_type.set(&mut input.0[at..], FlowDestination::FLOW_TABLE.0);
        assert_eq!(nic.guest.status(&input), status, "{from:#x} to {to:#x}: {}", nic.guest.refusal());
    }
    // A size, a range, an index and a group that do not exist.
    assert!(nic.create_table(0, 17).is_err());
    assert!(
        nic.create_group(low, (1, 2), &[0; 6]).is_err() && nic.create_group(low, (0, 0), &[0; 6]).is_err()
    );
    assert_eq!(nic.set_entry(top, 9, nic.group, &OWN, None), CmdStatus::BAD_PARAM);
    assert_eq!(nic.set_entry(top, 1, 0x777, &OWN, None), CmdStatus::BAD_RES);
    assert_eq!(nic.set_entry(top, 0, nic.group, &OWN, None), CmdStatus::BAD_RES_STATE, "in use");
}

#[test]
fn entry_changes_in_place() {
    let mut nic = Nic::new(1);
    nic.post(0, BUFFER);
    let change =
        Nic::entry(nic.table, 0, nic.group, &OWN, None).op_mod(1).set(set_fte_in::modify_enable_mask, 5);
    assert_eq!(nic.guest.status(&change), CmdStatus::OK);
    nic.receive(&tcp(OWN, 7, 1));
    assert_eq!(nic.received(0), None, "dropped");
    let change = Nic::entry(nic.table, 0, nic.group, &OWN, Some(nic.tirn));
    let change = change.op_mod(1).set(set_fte_in::modify_enable_mask, 5);
    assert_eq!(nic.guest.status(&change), CmdStatus::OK);
    nic.receive(&tcp(OWN, 7, 1));
    assert!(nic.received(0).is_some());
}

#[test]
fn vport_lists_come_back() {
    let mut nic = Nic::new(1);
    let query = |nic: &mut Nic, list: NicVportList| {
        let input = Input::new(Opcode::QUERY_NIC_VPORT_CONTEXT)
            .set(query_nic_vport_context_in::allowed_list_type, u64::from(list.0));
        nic.guest.command_len(&input, 272 + 64).expect("a context")
    };
    let output = query(&mut nic, NicVportList::UC);
    let context = query_nic_vport_context_out::nic_vport_context.of(&output);
    assert_eq!(nic_vport_context::allowed_list_size.get(context), 1);
    assert_eq!((nic_vport_context::permanent_address.of(context), &output[272..280]), {
        let own: &[u8] = &[0, 0, 0x50, 0x6b, 0x4b, 0xa0, 0, 0];
        (own, own)
    });
    assert_eq!(nic.set_list(NicVportList::UC, &[OWN; 128]), CmdStatus::OK);
    assert_eq!(nic.set_list(NicVportList::UC, &[OWN; 129]), CmdStatus::BAD_PARAM);
    let output = query(&mut nic, NicVportList::VLAN);
    let context = query_nic_vport_context_out::nic_vport_context.of(&output);
    assert_eq!(nic_vport_context::allowed_list_size.get(context), 0);
}

#[test]
fn congestion_counters_are_read_and_cleared() {
    use query_cong_statistics_out as out;
    let mut nic = Nic::new(1);
    let read = |nic: &mut Nic, clear: u64| {
        let query = Input::new(Opcode::QUERY_CONG_STATISTICS).set(query_cong_statistics_in::clear, clear);
        let counters = nic.guest.command(&query).expect("counters");
        [
            out::np_ecn_marked_roce_packets_low,
            out::np_cnp_sent_low,
            out::rp_cnp_handled_low,
            out::rp_cnp_ignored_low,
        ]
        .map(|field| field.get(&counters))
    };
    let counters = CongestionCounters { marked: 7, sent: 3, handled: 2, ignored: 1 };
    nic.guest.hca.device.transport.congestion = counters;
    assert_eq!([0, 1, 0].map(|clear| read(&mut nic, clear)), [[7, 3, 2, 1], [7, 3, 2, 1], [0; 4]]);
    let mut infiniband = Guest::up(Profile::node(0));
    let status = infiniband.status(&Input::new(Opcode::QUERY_CONG_STATISTICS));
    assert_eq!(status, CmdStatus::BAD_OP);
}

#[test]
fn counters_tell_kinds_and_sizes_of_frames() {
    use mlx5_prm::registers::{
        eth_2819_cntrs_grp_data_layout as by_size, eth_2863_cntrs_grp_data_layout as by_kind, ppcnt_reg,
    };
    let mut nic = Nic::new(1);
    nic.send(&tcp(PEER, 1000, 100), 18, |_| {});
    nic.receive(&tcp(OWN, 1000, 100));
    nic.receive(&tcp([0xff; 6], 1000, 2000));
    nic.receive(&vec![0; 1519]);
    let mut counters = |group: PpcntGroup| {
        let mut register = vec![0; ppcnt_reg::SIZE];
        ppcnt_reg::local_port.set(&mut register, 1u8);
        ppcnt_reg::grp.set(&mut register, u32::from(group.0));
        access(&mut nic.guest, RegisterId::PPCNT, false, &register).expect("counters").split_off(8)
    };
    let quad = |counters: &[u8], high: Field| Field::quad(high.bit_offset / 8).get(counters);
    let read = counters(PpcntGroup::RFC_2863);
    assert_eq!(
        (quad(&read, by_kind::if_in_ucast_pkts_high), quad(&read, by_kind::if_out_ucast_pkts_high)),
        (1, 1)
    );
    assert_eq!((quad(&read, by_kind::if_in_octets_high), quad(&read, by_kind::if_in_errors_high)), (158, 2));
    let read = counters(PpcntGroup::RFC_2819);
    assert_eq!(quad(&read, by_size::ether_stats_pkts128to255octets_high), 1);
    assert_eq!(quad(&read, by_size::ether_stats_oversize_pkts_high), 2);
}

#[test]
fn flow_control_changes_where_its_masks_say() {
    use mlx5_prm::registers::pfcc_reg;
    let mut nic = Nic::new(1);
    let mut register = vec![0; pfcc_reg::SIZE];
    let mut pause = |write: bool, set: &dyn Fn(&mut [u8])| {
        register.fill(0);
        pfcc_reg::local_port.set(&mut register, 1u8);
        set(&mut register);
        let register = access(&mut nic.guest, RegisterId::PFCC, write, &register).expect("flow control");
        [pfcc_reg::pptx, pfcc_reg::pprx, pfcc_reg::pfctx, pfcc_reg::pfcrx].map(|field| field.get(&register))
    };
    assert_eq!(pause(false, &|_| {}), [1, 1, 0, 0]);
    pause(true, &|register| {
        pfcc_reg::pptx_mask_n.set(register, 1u8);
        pfcc_reg::prio_mask_tx.set(register, 0xf0u8);
        pfcc_reg::pfctx.set(register, 0x18u8);
    });
    assert_eq!(pause(false, &|_| {}), [1, 0, 0x10, 0]);
}

#[test]
fn an_infiniband_device_has_no_such_commands() {
    let mut guest = Guest::up(Profile::node(0));
    for opcode in [Opcode::CREATE_TIS, Opcode::CREATE_FLOW_TABLE, Opcode::QUERY_NIC_VPORT_CONTEXT] {
        assert_eq!(guest.status(&Input::new(opcode)), CmdStatus::BAD_OP, "{opcode}");
    }
    let flow_control = access(&mut guest, RegisterId::PFCC, false, &[0; 32]);
    assert_eq!(flow_control, Err(CmdStatus::BAD_PARAM));
}
