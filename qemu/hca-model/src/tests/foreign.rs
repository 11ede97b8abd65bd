//! Drivers that do other things than Linux's: a lenient device takes what firmware takes, and says what it took.

use super::guest::{Failed, Guest, Input};
use crate::device::Life;
use crate::log::Level;
use crate::profile::{Profile, Strictness};
use mlx5_prm::caps::{atomic_caps, cmd_hca_cap};
use mlx5_prm::cmd::cmd_queue_entry;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, mkc, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};
use mlx5_prm::value::{AccessMode, CapType, ServiceType};

fn lenient() -> Profile {
    Profile { strictness: Strictness::Lenient, ..Profile::node(0) }
}

fn warnings(guest: &Guest) -> Vec<String> {
    guest
        .hca
        .device
        .log
        .entries()
        .filter(|entry| entry.level == Level::Warning)
        .map(ToString::to_string)
        .collect()
}

/// An input of `len` bytes, whatever the layout says.
fn of_len(opcode: Opcode, len: usize) -> Input {
    let mut input = Input::new(opcode);
    input.0.resize(len, 0);
    input
}

/// Takes up to `count` pages back; answers how many came.
fn take(guest: &mut Guest, count: u32) -> u32 {
    let input =
        Input::new(Opcode::MANAGE_PAGES).op_mod(2).set(manage_pages_in::input_num_entries, u64::from(count));
    let output = guest.command_len(&input, 16 + 8 * count as usize).expect("pages");
    manage_pages_out::output_num_entries.get32(&output)
}

#[test]
fn pages_can_be_taken_back_whenever_the_device_is_not_initialized() {
    let mut guest = Guest::new(Profile::node(0));
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let boot = guest.query_pages(1) as u32;
    assert_eq!(guest.give(boot as usize), CmdStatus::OK);
    let init = guest.query_pages(2) as u32;
    assert_eq!(guest.give(init as usize), CmdStatus::OK);
    // A boot loader whose bring-up fails here takes all until none is left, and does not end before.
    assert_eq!(take(&mut guest, 4), 4);
    assert_eq!(take(&mut guest, boot + init), boot + init - 4);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::BAD_SYS_STATE);
    assert_eq!(guest.query_pages(2) as u32, boot + init, "the same number as before");
    assert_eq!(guest.give((boot + init) as usize), CmdStatus::OK);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);
    assert_eq!(take(&mut guest, 4), 0, "in use");
    assert_eq!(guest.status(&Input::new(Opcode::TEARDOWN_HCA)), CmdStatus::OK);
    assert_eq!(take(&mut guest, boot + init), boot + init);
}

#[test]
fn lengths_that_firmware_does_not_look_at_are_taken_with_a_warning() {
    for strictness in [Strictness::Lenient, Strictness::Strict] {
        let mut guest = Guest::new(Profile { strictness, ..Profile::node(0) });
        assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
        let pages = guest.query_pages(1) + guest.query_pages(2);
        assert_eq!(guest.give(pages as usize), CmdStatus::OK);
        let short = guest.command_len(&of_len(Opcode::INIT_HCA, 16), 16).map(|_| ());
        if strictness == Strictness::Strict {
            assert_eq!(short, Err(Failed::Status(CmdStatus::BAD_INP_LEN)));
            continue;
        }
        assert_eq!((short, guest.hca.device.life), (Ok(()), Life::Initialized));
        assert!(warnings(&guest).concat().contains("INIT_HCA: tolerated: init_hca_in: 16 bytes"));
        let port = query_hca_vport_context_in::port_num;
        let query = Input::new(Opcode::QUERY_HCA_VPORT_CONTEXT).set(port, 1);
        assert_eq!(guest.command_len(&query, 224).map(|output| output.len()), Ok(224));
        assert_eq!(guest.command_len(&query, 12), Err(Failed::Status(CmdStatus::BAD_OUTP_LEN)));
        // More pages announced than a short list has are still too few.
        let input = Input::new(Opcode::MANAGE_PAGES).op_mod(1).set(manage_pages_in::input_num_entries, 9);
        assert_eq!(guest.status(&input), CmdStatus::BAD_INP_LEN);
    }
}

/// A client that is no QEMU may take memory decoding for granted.
#[test]
fn registers_answer_before_memory_is_decoded_unless_strict() {
    for (profile, revision) in [(lenient(), 5), (Profile::node(0), 0xffff)] {
        let mut hca = crate::Hca::new(profile);
        let read = |hca: &crate::Hca| {
            let mut word = [0; 4];
            hca.bar().read(4, &mut word);
            u32::from_be_bytes(word) >> 16
        };
        assert_eq!(read(&hca), revision);
        hca.reset();
        assert_eq!(read(&hca), revision);
        hca.config_write(4, &[0x02, 0x04]);
        assert_eq!(read(&hca), 5);
        hca.kill();
        assert_eq!(read(&hca), 0xffff);
    }
}

/// A datagram QP, made and moved as iPXE does: contexts cut short, no MTU, and a reset that announces a context which it
/// does not send.
#[test]
fn a_boot_loaders_queue_pair_is_moved_with_short_contexts() {
    let mut guest = Guest::up(lenient());
    let (ring, record) = (guest.pages(2), guest.page());
    let eq_ring = guest.page();
    let eqn = guest.create_eq(eq_ring, 3, 0, 1 << 9).expect("an EQ");
    let cqn = guest.create_cq(ring[0], 4, record, eqn).expect("a CQ");
    let mut input = Input::new(Opcode::CREATE_QP);
    let context = create_qp_in::qpc.of_mut(&mut input.0);
    for (field, value) in [
        (qpc::st, u32::from(ServiceType::UD.0)),
        (qpc::pd, guest.pd),
        (qpc::uar_page, guest.uar),
        (qpc::cqn_snd, cqn),
        (qpc::cqn_rcv, cqn),
        (qpc::log_rq_stride, 1),
        (qpc::log_rq_size, 3),
        (qpc::log_sq_size, 3),
    ] {
        field.set(context, value);
    }
    qpc::dbr_addr.set(context, record + 64);
    let output = guest.command(&input.pas(&ring[1..])).expect("a QP");
    let qpn = create_qp_out::qpn.get32(&output);
    for opcode in [Opcode::RST2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
        let mut input = of_len(opcode, 256);
        rst2init_qp_in::qpn.set(&mut input.0, qpn);
        let context = input.0.get_mut(rst2init_qp_in::qpc.offset..).expect("a context");
        qpc::q_key.set(context, 0x0b1bu32);
        let path = qpc::primary_address_path.of_mut(context);
        ads::vhca_port_num.set(path, u32::from(opcode == Opcode::RST2INIT_QP));
        assert_eq!(guest.command_len(&input, 16).map(|_| ()), Ok(()), "{opcode}");
    }
    let mut input = of_len(Opcode::QP_2RST, 256);
    qp_2rst_in::qpn.set(&mut input.0, qpn);
    let ask = |guest: &mut Guest| {
        let mut entry = guest.post(1, &input.0, 16);
        for pointer in
            [cmd_queue_entry::input_mailbox_pointer_63_32, cmd_queue_entry::input_mailbox_pointer_31_9]
        {
            pointer.set(&mut entry, 0u8);
        }
        crate::seams::GuestMemory::write(&guest.memory, guest.cmdq + 64, &entry).expect("memory");
        guest.poll();
        guest.answer(1, &entry).map(|_| ())
    };
    assert_eq!(ask(&mut guest), Ok(()));
    assert_eq!(
        guest.hca.device.objects.qps.get(qpn).map(|qp| qp.state()),
        Some(mlx5_prm::value::QpState::RST)
    );
    guest.hca.device.profile.strictness = Strictness::Strict;
    assert_eq!(ask(&mut guest), Err(Failed::Delivery(DeliveryStatus::BAD_INPUT_POINTER)));
}

/// A device that has its boot pages, and its current general capabilities.
fn before_capabilities(profile: Profile) -> (Guest, Vec<u8>) {
    let mut guest = Guest::new(profile);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let boot = guest.query_pages(1);
    assert_eq!(guest.give(boot as usize), CmdStatus::OK);
    let op_mod = CapType::GENERAL.query_op_mod(true);
    let output = guest.command(&Input::new(Opcode::QUERY_HCA_CAP).op_mod(op_mod)).expect("capabilities");
    let block = query_hca_cap_out::capability.of(&output).to_vec();
    (guest, block)
}

fn set_caps(guest: &mut Guest, kind: CapType, block: &[u8]) -> CmdStatus {
    let mut input = Input::new(Opcode::SET_HCA_CAP).op_mod(kind.set_op_mod());
    input.0.truncate(16);
    input.0.extend_from_slice(block);
    match guest.command_len(&input, 16) {
        Ok(_) => CmdStatus::OK,
        Err(Failed::Status(status)) => status,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn freebsds_capabilities_are_taken_and_its_questions_answered() {
    let (mut guest, mut block) = before_capabilities(lenient());
    // What its profile sets, whatever the maximum is.
    cmd_hca_cap::pkey_table_size.set(&mut block, 0u8);
    cmd_hca_cap::log_max_qp.set(&mut block, 17u8);
    cmd_hca_cap::cmdif_checksum.set(&mut block, 0u8);
    cmd_hca_cap::log_uar_page_sz.set(&mut block, 0u8);
    cmd_hca_cap::drain_sigerr.set(&mut block, 1u8);
    assert_eq!(set_caps(&mut guest, CapType::GENERAL, &block), CmdStatus::OK);
    assert_eq!(guest.hca.device.caps.current(cmd_hca_cap::log_max_qp), 17);
    assert_eq!(guest.hca.device.caps.current(cmd_hca_cap::drain_sigerr), 0, "not modelled");
    assert!(warnings(&guest).concat().contains("cmd_hca_cap.drain_sigerr"), "{:?}", warnings(&guest));
    // The atomic block: the byte order, all else zero.
    let mut atomic = vec![0; 64];
    atomic_caps::atomic_req_8B_endianness_mode.set(&mut atomic, 1u8);
    assert_eq!(set_caps(&mut guest, CapType::ATOMIC, &atomic), CmdStatus::OK);
    // It asks for the e-switch's wherever a vport group is managed, and gives up where they are not answered.
    assert_eq!(guest.hca.device.caps.current(cmd_hca_cap::vport_group_manager), 1);
    for kind in [CapType::GENERAL, CapType::ATOMIC, CapType::ESWITCH] {
        for current in [true, false] {
            let input = Input::new(Opcode::QUERY_HCA_CAP).op_mod(kind.query_op_mod(current));
            assert_eq!(guest.status(&input), CmdStatus::OK, "{kind}");
        }
    }
    let (mut strict, _) = before_capabilities(Profile::node(0));
    assert_eq!(set_caps(&mut strict, CapType::GENERAL, &block), CmdStatus::BAD_PARAM);
    assert!(strict.refusal().contains("cmd_hca_cap.drain_sigerr"), "{}", strict.refusal());
}

#[test]
fn ipxes_capabilities_with_their_mistakes_of_byte_order_leave_queue_pairs() {
    let (mut guest, block) = before_capabilities(lenient());
    // 256 bytes, log_max_qp with a reserved bit in its place, a dword without anything.
    let mut block = block[..256].to_vec();
    block[0x10..0x14].copy_from_slice(&0x100u32.to_be_bytes());
    block[0x90..0x94].fill(0);
    assert_eq!(set_caps(&mut guest, CapType::GENERAL, &block), CmdStatus::OK);
    assert!(guest.hca.device.caps.current(cmd_hca_cap::log_max_qp) >= 3, "eight QPs and more");
    let init = guest.query_pages(2);
    assert_eq!(guest.give(init as usize), CmdStatus::OK);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);
}

#[test]
fn freebsds_cache_of_memory_keys_names_no_protection_domain() {
    for profile in [lenient(), Profile::node(0)] {
        let mut guest = Guest::up(profile);
        let create = |free: bool| {
            let mut input = Input::new(Opcode::CREATE_MKEY);
            let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
            mkc::free.set(context, free);
            mkc::umr_en.set(context, 1u8);
            mkc::access_mode_1_0.set(context, AccessMode::MTT.0);
            mkc::qpn.set(context, 0xff_ffffu32);
            mkc::translations_octword_size.set(context, 8u8);
            mkc::log_page_size.set(context, 12u8);
            input
        };
        assert_eq!(guest.status(&create(false)), CmdStatus::BAD_RES, "usable, and of PD 0");
        let output = guest.command(&create(true)).expect("a free key");
        let index = create_mkey_out::mkey_index.get32(&output);
        let query = Input::new(Opcode::QUERY_MKEY).set(query_mkey_in::mkey_index, index.into());
        let output = guest.command(&query).expect("known");
        let context = query_mkey_out::memory_key_mkey_entry.of(&output);
        assert!(mkc::free.is_set(context) && mkc::pd.get32(context) == 0);
        let destroy = Input::new(Opcode::DESTROY_MKEY).set(destroy_mkey_in::mkey_index, index.into());
        assert_eq!(guest.status(&destroy), CmdStatus::OK);
        assert_eq!(guest.hca.census().mkeys, 0);
    }
}
