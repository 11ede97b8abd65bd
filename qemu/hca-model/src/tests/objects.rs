//! Creating, changing and destroying objects, and what is refused.

use super::guest::{Answer, Failed, Guest, Input};
use crate::card::{CONNECTX_4, CONNECTX_5, Card};
use crate::profile::Profile;
use crate::seams::GuestMemory;
use ib_types::Psn;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, mkc, qpc, rmpc, wq, xrc_srqc};
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{OptParamMask, QpState, ServiceType};

/// What is done to a good context.
type Change = fn(&mut [u8]);

/// A guest with a CQ.
struct Bench {
    guest: Guest,
    cqn: u32,
    ring: u64,
    record: u64,
}

fn bench() -> Bench {
    bench_of(Profile::node(0))
}

fn bench_of(profile: Profile) -> Bench {
    let mut guest = Guest::up(profile);
    let (events, ring, cq_record) = (guest.page(), guest.page(), guest.page());
    let eqn = guest.create_eq(events, 4, 0, 0).unwrap();
    let cqn = guest.create_cq(ring, 4, cq_record, eqn).unwrap();
    let (ring, record) = (guest.page(), guest.page());
    Bench { guest, cqn, ring, record }
}

impl Bench {
    /// CREATE_QP of 16 send blocks and 8 receive entries of 64 bytes, as `change` leaves its context.
    fn create(&mut self, service: ServiceType, change: impl FnOnce(&mut [u8])) -> Answer {
        let mut input = Input::new(Opcode::CREATE_QP);
        let context = create_qp_in::qpc.of_mut(&mut input.0);
        qpc::st.set(context, service.0);
        qpc::pm_state.set(context, 3u8);
        qpc::pd.set(context, self.guest.pd);
        qpc::uar_page.set(context, self.guest.uar);
        qpc::log_sq_size.set(context, 4u8);
        qpc::log_rq_size.set(context, 3u8);
        qpc::log_rq_stride.set(context, 2u8);
        qpc::cqn_snd.set(context, self.cqn);
        qpc::cqn_rcv.set(context, self.cqn);
        qpc::dbr_addr.set(context, self.record);
        change(context);
        self.guest.command(&input.pas(&[self.ring]))
    }

    fn qp(&mut self, service: ServiceType) -> u32 {
        create_qp_out::qpn.get32(&self.create(service, |_| {}).unwrap())
    }

    fn modify(&mut self, opcode: Opcode, qpn: u32, mask: u32, change: impl FnOnce(&mut [u8])) -> CmdStatus {
        let mut input = Input::new(opcode).set(rst2init_qp_in::qpn, u64::from(qpn));
        if input.0.len() > 16 {
            rst2init_qp_in::opt_param_mask.set(&mut input.0, mask);
            change(rst2init_qp_in::qpc.of_mut(&mut input.0));
        }
        self.guest.status(&input)
    }

    fn state(&mut self, qpn: u32) -> QpState {
        let input = Input::new(Opcode::QUERY_QP).set(query_qp_in::qpn, u64::from(qpn));
        let output = self.guest.command(&input).unwrap();
        QpState(qpc::state.get32(query_qp_out::qpc.of(&output)) as u8)
    }

    fn ready_to_send(&mut self, qpn: u32) {
        let port = |context: &mut [u8]| {
            let path = qpc::primary_address_path.of_mut(context);
            ads::vhca_port_num.set(path, 1u8);
        };
        assert_eq!(self.modify(Opcode::RST2INIT_QP, qpn, 0, port), CmdStatus::OK);
        let to_rtr = |context: &mut [u8]| {
            qpc::mtu.set(context, 3u8);
            qpc::log_msg_max.set(context, 30u8);
            qpc::remote_qpn.set(context, 0x77u32);
            qpc::next_rcv_psn.set(context, 0x123u32);
            qpc::log_rra_max.set(context, 2u8);
            qpc::min_rnr_nak.set(context, 12u8);
            let path = qpc::primary_address_path.of_mut(context);
            ads::rlid.set(path, 9u8);
            ads::vhca_port_num.set(path, 1u8);
        };
        assert_eq!(self.modify(Opcode::INIT2RTR_QP, qpn, 0, to_rtr), CmdStatus::OK);
        let to_rts = |context: &mut [u8]| {
            qpc::next_send_psn.set(context, 0x456u32);
            qpc::retry_count.set(context, 7u8);
            qpc::rnr_retry.set(context, 7u8);
            ads::ack_timeout.set(qpc::primary_address_path.of_mut(context), 14u8);
        };
        assert_eq!(self.modify(Opcode::RTR2RTS_QP, qpn, 0, to_rts), CmdStatus::OK);
    }
}

#[test]
fn a_connected_qp_goes_through_its_states() {
    let mut b = bench();
    let qpn = b.qp(ServiceType::RC);
    assert_eq!(b.state(qpn), QpState::RST);
    b.ready_to_send(qpn);
    assert_eq!(b.state(qpn), QpState::RTS);
    let qp = b.guest.hca.device.objects.qps.get(qpn).unwrap();
    let connection = qp.connection();
    assert_eq!(connection.remote_qpn(), 0x77);
    assert_eq!((connection.first_expected(), connection.first_sent()), (Psn::new(0x123), Psn::new(0x456)));
    assert_eq!((qp.path().route().dlid, qp.path().ack_timeout()), (9, 14));
    assert_eq!((connection.mtu(), connection.reads_taken()), (1024, 4));
    assert_eq!((connection.retry_count(), connection.rnr_timer()), (7, 12));
    assert_eq!(b.modify(Opcode::QP_2ERR, qpn, 0, |_| {}), CmdStatus::OK);
    assert_eq!(b.state(qpn), QpState::ERR);
    assert_eq!(b.modify(Opcode::QP_2RST, qpn, 0, |_| {}), CmdStatus::OK);
    b.ready_to_send(qpn);
    let input = Input::new(Opcode::DESTROY_QP).set(destroy_qp_in::qpn, u64::from(qpn));
    assert_eq!(b.guest.status(&input), CmdStatus::OK);
    assert_eq!(b.guest.status(&input), CmdStatus::BAD_RES);
}

#[test]
fn only_rc_qps_of_cards_that_announce_it_force_loopback() {
    let ready = |card: &'static Card, service: ServiceType| {
        let mut b = bench_of(Profile { init_pages: 64, ..Profile::of(card, 0) });
        let qpn = b.qp(service);
        let looped = |context: &mut [u8]| {
            qpc::mtu.set(context, 3u8);
            let path = qpc::primary_address_path.of_mut(context);
            ads::vhca_port_num.set(path, 1u8);
            ads::fl.set(path, 1u8);
        };
        assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, looped), CmdStatus::OK);
        b.modify(Opcode::INIT2RTR_QP, qpn, 0, looped)
    };
    assert_eq!(ready(&CONNECTX_5, ServiceType::RC), CmdStatus::OK);
    assert_eq!(ready(&CONNECTX_5, ServiceType::UC), CmdStatus::BAD_PARAM);
    assert_eq!(ready(&CONNECTX_4, ServiceType::RC), CmdStatus::BAD_PARAM);
}

#[test]
fn the_way_to_rtr_changes_the_pkey_index_only_if_the_mask_names_it() {
    let with_index = |index: u8| {
        move |context: &mut [u8]| {
            qpc::mtu.set(context, 3u8);
            let path = qpc::primary_address_path.of_mut(context);
            ads::vhca_port_num.set(path, 1u8);
            ads::pkey_index.set(path, index);
        }
    };
    for (mask, index) in [(OptParamMask::empty(), 1), (OptParamMask::PKEY_INDEX, 2)] {
        let mut b = bench();
        let qpn = b.qp(ServiceType::RC);
        assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, with_index(1)), CmdStatus::OK);
        assert_eq!(b.modify(Opcode::INIT2RTR_QP, qpn, mask.bits(), with_index(2)), CmdStatus::OK);
        let qp = b.guest.hca.device.objects.qps.get(qpn).unwrap();
        assert_eq!(qp.path().pkey_index(), index, "{mask:?}");
    }
}

#[test]
fn wrong_transitions_and_foreign_parameters_change_nothing() {
    let mut b = bench();
    let qpn = b.qp(ServiceType::RC);
    for opcode in [Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP, Opcode::RTS2RTS_QP] {
        assert_eq!(b.modify(opcode, qpn, 0, |_| {}), CmdStatus::BAD_QP_STATE, "{opcode}");
    }
    assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, |_| {}), CmdStatus::BAD_PARAM, "port 0");
    assert!(b.guest.refusal().contains("ads.vhca_port_num"), "{}", b.guest.refusal());
    let port = |context: &mut [u8]| ads::vhca_port_num.set(qpc::primary_address_path.of_mut(context), 1u8);
    let pkey = |context: &mut [u8]| {
        port(context);
        ads::pkey_index.set(qpc::primary_address_path.of_mut(context), 128u8);
    };
    assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, pkey), CmdStatus::BAD_PARAM);
    assert!(b.guest.refusal().contains("ads.pkey_index"), "{}", b.guest.refusal());
    assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 1 << 5, port), CmdStatus::BAD_PARAM);
    assert!(b.guest.refusal().contains("opt_param_mask"), "{}", b.guest.refusal());
    assert_eq!(b.state(qpn), QpState::RST);
    assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, port), CmdStatus::OK);
    assert_eq!(b.modify(Opcode::INIT2RTR_QP, qpn, 0, |c| qpc::mtu.set(c, 6u8)), CmdStatus::BAD_PARAM);
    let deep = |context: &mut [u8]| {
        qpc::mtu.set(context, 5u8);
        qpc::log_rra_max.set(context, 5u8);
    };
    assert_eq!(b.modify(Opcode::INIT2RTR_QP, qpn, 0, deep), CmdStatus::BAD_PARAM);
    assert_eq!(b.state(qpn), QpState::INIT);
    assert_eq!(b.modify(Opcode::QP_2RST, qpn + 1, 0, |_| {}), CmdStatus::BAD_RES);
}

#[test]
fn a_qp_is_made_only_of_what_exists() {
    let mut b = bench();
    let cases: [(&str, CmdStatus, Change); 9] = [
        ("qpc.st", CmdStatus::BAD_PARAM, |c| qpc::st.set(c, 5u8)),
        ("qpc.pd", CmdStatus::BAD_RES, |c| qpc::pd.set(c, 0xfffu32)),
        ("qpc.cqn_snd", CmdStatus::BAD_RES, |c| qpc::cqn_snd.set(c, 1u8)),
        ("qpc.cqn_rcv", CmdStatus::BAD_RES, |c| qpc::cqn_rcv.set(c, 1u8)),
        ("qpc.uar_page", CmdStatus::BAD_RES, |c| qpc::uar_page.set(c, 1u8)),
        ("qpc.dbr_addr", CmdStatus::BAD_PARAM, |c| qpc::dbr_addr.set(c, 0x4000_0004u32)),
        ("qpc.wq_signature", CmdStatus::BAD_PARAM, |c| qpc::wq_signature.set(c, 1u8)),
        ("create_qp_in.pas", CmdStatus::BAD_INP_LEN, |c| qpc::log_sq_size.set(c, 7u8)),
        ("qpc.counter_set_id", CmdStatus::BAD_RES, |c| qpc::counter_set_id.set(c, 9u8)),
    ];
    for (field, status, change) in cases {
        assert_eq!(b.create(ServiceType::RC, change), Err(Failed::Status(status)), "{field}");
        assert!(b.guest.refusal().contains(field), "{}", b.guest.refusal());
    }
    assert_eq!(b.guest.hca.census().qps, 0);
    b.qp(ServiceType::QP1);
    let second = b.create(ServiceType::QP1, |_| {});
    assert_eq!(second, Err(Failed::Status(CmdStatus::BAD_RES_STATE)), "one QP1 a port");
}

#[test]
fn what_is_referred_to_cannot_be_destroyed() {
    let mut b = bench();
    let qpn = b.qp(ServiceType::UD);
    let (uar, pd, cqn) = (u64::from(b.guest.uar), u64::from(b.guest.pd), u64::from(b.cqn));
    let destroy = [
        Input::new(Opcode::DESTROY_EQ).set(destroy_eq_in::eq_number, 0x10),
        Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, cqn),
        Input::new(Opcode::DEALLOC_PD).set(dealloc_pd_in::pd, pd),
        Input::new(Opcode::DEALLOC_UAR).set(dealloc_uar_in::uar, uar),
    ];
    for input in &destroy[..3] {
        assert_eq!(b.guest.status(input), CmdStatus::BAD_RES_STATE);
    }
    // A page that is given back stays until its last user goes, and rings for it meanwhile.
    assert_eq!(b.guest.status(&destroy[3]), CmdStatus::OK);
    assert_eq!(b.guest.status(&destroy[3]), CmdStatus::BAD_RES);
    assert_eq!(b.guest.hca.census().uars, 1);
    let qp = Input::new(Opcode::DESTROY_QP).set(destroy_qp_in::qpn, u64::from(qpn));
    assert_eq!(b.guest.status(&qp), CmdStatus::OK);
    for input in [&destroy[1], &destroy[0], &destroy[2]] {
        assert_eq!(b.guest.status(input), CmdStatus::OK);
        assert_eq!(b.guest.status(input), CmdStatus::BAD_RES, "it is gone");
    }
    assert_eq!(b.guest.hca.census().total(), 0);
}

#[test]
fn memory_keys_hold_what_they_cover() {
    let mut guest = Guest::up(Profile::node(0));
    let pages = guest.pages(4);
    let key = |guest: &mut Guest, octwords: u64, change: &dyn Fn(&mut [u8])| {
        let mut input = Input::new(Opcode::CREATE_MKEY)
            .set(create_mkey_in::translations_octword_actual_size, octwords)
            .pas(&pages);
        let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
        mkc::access_mode_1_0.set(context, 1u8);
        mkc::pd.set(context, guest.pd);
        mkc::qpn.set(context, 0xff_ffffu32);
        mkc::mkey_7_0.set(context, 0x42u8);
        mkc::lw.set(context, 1u8);
        mkc::start_addr.set(context, 0x1000_0800u32);
        mkc::len.set(context, 0x3800u32);
        mkc::translations_octword_size.set(context, 2u8);
        mkc::log_page_size.set(context, 12u8);
        change(context);
        guest.command(&input)
    };
    let output = key(&mut guest, 2, &|_| {}).unwrap();
    let index = create_mkey_out::mkey_index.get32(&output);
    assert!(guest.hca.device.objects.mkeys.get(index << 8 | 0x42).is_some());
    let cases: [(&str, CmdStatus, u64, Change); 6] = [
        ("actual_size", CmdStatus::BAD_PARAM, 2, |c| mkc::len.set(c, 0x3801u32)),
        ("actual_size", CmdStatus::BAD_INP_LEN, 3, |_| {}),
        ("mkc.translations_octword_size", CmdStatus::BAD_PARAM, 2, |c| {
            mkc::translations_octword_size.set(c, 1u8)
        }),
        ("mkc.log_page_size", CmdStatus::BAD_PARAM, 2, |c| mkc::log_page_size.set(c, 11u8)),
        ("mkc.access_mode", CmdStatus::BAD_PARAM, 2, |c| mkc::access_mode_4_2.set(c, 7u8)),
        ("mkc.pd", CmdStatus::BAD_RES, 2, |c| mkc::pd.set(c, 0x999u32)),
    ];
    for (field, status, octwords, change) in cases {
        assert_eq!(key(&mut guest, octwords, &change), Err(Failed::Status(status)), "{field}");
        assert!(guest.refusal().contains(field), "{}", guest.refusal());
    }
    let input = Input::new(Opcode::DESTROY_MKEY).set(destroy_mkey_in::mkey_index, u64::from(index));
    assert_eq!(guest.status(&input), CmdStatus::OK);
    assert_eq!(guest.status(&input), CmdStatus::BAD_RES);
}

#[test]
fn shared_receive_queues_of_the_kinds_that_a_probe_makes() {
    let mut b = bench();
    let output = b.guest.command(&Input::new(Opcode::ALLOC_XRCD)).unwrap();
    let xrcd = alloc_xrcd_out::xrcd.get32(&output);
    let mut input = Input::new(Opcode::CREATE_XRC_SRQ);
    let context = create_xrc_srq_in::xrc_srq_context_entry.of_mut(&mut input.0);
    xrc_srqc::log_xrc_srq_size.set(context, 2u8);
    xrc_srqc::log_rq_stride.set(context, 1u8);
    xrc_srqc::xrcd.set(context, xrcd);
    xrc_srqc::cqn.set(context, b.cqn);
    xrc_srqc::pd.set(context, b.guest.pd);
    xrc_srqc::db_record_addr_h.set(context, (b.record >> 32) as u32);
    xrc_srqc::db_record_addr_l.set(context, (b.record as u32) >> 2);
    let output = b.guest.command(&input.pas(&[b.ring])).unwrap();
    let xrc = create_xrc_srq_out::xrc_srqn.get32(&output);
    assert_eq!(b.guest.hca.device.objects.srqs.get(xrc).map(|srq| srq.dbr_addr), Some(b.record));

    let mut input = Input::new(Opcode::CREATE_RMP);
    let context = create_rmp_in::ctx.of_mut(&mut input.0);
    rmpc::state.set(context, 1u8);
    let queue = rmpc::wq.of_mut(context);
    wq::pd.set(queue, b.guest.pd);
    wq::dbr_addr.set(queue, b.record);
    wq::log_wq_stride.set(queue, 5u8);
    wq::log_wq_sz.set(queue, 2u8);
    let output = b.guest.command(&input.pas(&[b.ring])).unwrap();
    let rmp = create_rmp_out::rmpn.get32(&output);

    // A QP may use it; it cannot go while one does, nor under another kind's name.
    let with_rmp = |context: &mut [u8]| {
        qpc::rq_type.set(context, 1u8);
        qpc::srqn_rmpn_xrqn.set(context, rmp);
    };
    let qpn = create_qp_out::qpn.get32(&b.create(ServiceType::RC, with_rmp).unwrap());
    // Armed with fewer entries posted than the limit, the event comes at once, once.
    let events = b.guest.page();
    let eqn = b.guest.create_eq(events, 4, 1, 1 << EventType::SRQ_RQ_LIMIT.0).unwrap();
    let told = |b: &Bench| b.guest.hca.device.objects.queues.eqs.get(eqn).map(|eq| eq.producer);
    let mut modify = Input::new(Opcode::MODIFY_RMP)
        .set(modify_rmp_in::rmpn, u64::from(rmp))
        .set(modify_rmp_in::rmp_state, 1u64);
    modify.0[0x17] = 1;
    wq::lwm.set(rmpc::wq.of_mut(modify_rmp_in::ctx.of_mut(&mut modify.0)), 2u8);
    assert_eq!(b.guest.status(&modify), CmdStatus::OK);
    assert_eq!(told(&b), Some(1));
    b.guest.memory.store32(b.record, 3).unwrap();
    assert_eq!(b.guest.status(&modify), CmdStatus::OK);
    assert_eq!(told(&b), Some(1));
    let query = Input::new(Opcode::QUERY_RMP).set(query_rmp_in::rmpn, u64::from(rmp));
    let output = b.guest.command(&query).unwrap();
    let queue = rmpc::wq.of(query_rmp_out::rmp_context.of(&output));
    assert_eq!((wq::lwm.get32(queue), wq::sw_counter.get32(queue), wq::hw_counter.get32(queue)), (2, 3, 0));
    b.guest.memory.store32(b.record, 0).unwrap();
    let bad_state = modify.set(modify_rmp_in::rmp_state, 3u64);
    assert_eq!(b.guest.status(&bad_state), CmdStatus::BAD_RES_STATE);
    let destroy = Input::new(Opcode::DESTROY_RMP).set(destroy_rmp_in::rmpn, u64::from(rmp));
    assert_eq!(b.guest.status(&destroy), CmdStatus::BAD_RES_STATE);
    let wrong = Input::new(Opcode::DESTROY_XRC_SRQ).set(destroy_xrc_srq_in::xrc_srqn, u64::from(rmp));
    assert_eq!(b.guest.status(&wrong), CmdStatus::BAD_RES);
    let destroy_qp = Input::new(Opcode::DESTROY_QP).set(destroy_qp_in::qpn, u64::from(qpn));
    assert_eq!(b.guest.status(&destroy_qp), CmdStatus::OK);
    assert_eq!(b.guest.status(&destroy), CmdStatus::OK);
    let dealloc = Input::new(Opcode::DEALLOC_XRCD).set(dealloc_xrcd_in::xrcd, u64::from(xrcd));
    assert_eq!(b.guest.status(&dealloc), CmdStatus::BAD_RES_STATE);
}

#[test]
fn blueflame_data_is_compared_with_the_ring() {
    let mut b = bench();
    let qpn = b.qp(ServiceType::RC);
    b.ready_to_send(qpn);
    // A NOP at block 0 of the send queue, which lies behind 8 receive entries of 64 bytes.
    let mut wqe = [0u8; 64];
    wqe[4..8].copy_from_slice(&(qpn << 8 | 1).to_be_bytes());
    b.guest.memory.write(b.ring + 512, &wqe).unwrap();
    b.guest.memory.store32(b.record + 4, 1).unwrap();
    let register = b.guest.uar as usize * 4096 + 0x800;
    let notes = |b: &Bench| b.guest.hca.device.log.entries().filter(|e| e.text.contains("BlueFlame")).count();
    for at in (0..64).step_by(8) {
        b.guest.bar.write(register + at, &wqe[at..at + 8]);
    }
    b.guest.poll();
    assert_eq!(notes(&b), 0);
    let counters = b.guest.hca.device.transport.counters;
    assert_eq!((counters.doorbells, counters.blueflame), (1, 1));
    b.guest.bar.write(register + 16, &[0xee; 8]);
    b.guest.poll();
    assert_eq!(notes(&b), 1);
    b.guest.bar.write(register + 24, &[0xee; 8]);
    b.guest.poll();
    assert_eq!(notes(&b), 1, "said once a QP");
}

#[test]
fn multicast_groups_are_joined_once_and_left() {
    let mut b = bench();
    let ud = b.qp(ServiceType::UD);
    let rc = b.qp(ServiceType::RC);
    let group = |opcode: Opcode, qpn: u32| {
        let mut input = Input::new(opcode).set(attach_to_mcg_in::qpn, u64::from(qpn));
        attach_to_mcg_in::multicast_gid.of_mut(&mut input.0)[0] = 0xff;
        input
    };
    assert_eq!(b.guest.status(&group(Opcode::ATTACH_TO_MCG, rc)), CmdStatus::BAD_PARAM);
    assert_eq!(b.guest.status(&group(Opcode::ATTACH_TO_MCG, ud)), CmdStatus::OK);
    assert_eq!(b.guest.status(&group(Opcode::ATTACH_TO_MCG, ud)), CmdStatus::BAD_PARAM);
    assert_eq!(b.guest.status(&group(Opcode::DETACH_FROM_MCG, ud)), CmdStatus::OK);
    assert_eq!(b.guest.status(&group(Opcode::DETACH_FROM_MCG, ud)), CmdStatus::BAD_PARAM);
}

#[test]
fn the_registration_qp_gets_its_domain_when_it_is_initialized() {
    let mut b = bench();
    let made = b.create(ServiceType::REG_UMR, |context| {
        qpc::pd.set(context, 0u8);
        qpc::rq_type.set(context, 3u8);
        qpc::log_rq_size.set(context, 0u8);
        qpc::log_rq_stride.set(context, 0u8);
        qpc::latency_sensitive.set(context, 1u8);
        qpc::fre.set(context, 1u8);
        qpc::rlky.set(context, 1u8);
    });
    let qpn = create_qp_out::qpn.get32(&made.unwrap());
    let foreign = |context: &mut [u8]| qpc::pd.set(context, 0x7777u32);
    assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, foreign), CmdStatus::BAD_RES);
    let pd = b.guest.pd;
    let own = |context: &mut [u8]| {
        qpc::pd.set(context, pd);
        ads::vhca_port_num.set(qpc::primary_address_path.of_mut(context), 1u8);
    };
    assert_eq!(b.modify(Opcode::RST2INIT_QP, qpn, 0, own), CmdStatus::OK);
    assert_eq!(b.guest.hca.device.objects.qps.get(qpn).map(|qp| qp.user().pd), Some(pd));
    let dealloc = Input::new(Opcode::DEALLOC_PD).set(dealloc_pd_in::pd, u64::from(pd));
    assert_eq!(b.guest.status(&dealloc), CmdStatus::BAD_RES_STATE);
}
