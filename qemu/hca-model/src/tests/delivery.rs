//! Command queue entries and mailboxes, good and bad.

use super::guest::{Failed, Guest, Input};
use crate::profile::{Profile, Strictness};
use crate::seams::GuestMemory;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::cmd;
use mlx5_prm::commands::*;
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};

/// Posts SET_DRIVER_VERSION (one input block), lets `spoil` change the entry or the block, and rings.
fn spoiled(guest: &mut Guest, spoil: impl FnOnce(&mut Guest, u64)) -> Answered {
    let mut input = Input::new(Opcode::SET_DRIVER_VERSION);
    set_driver_version_in::driver_version.of_mut(&mut input.0)[..4].copy_from_slice(b"test");
    let entry = guest.post(0, &input.0, 16);
    let block = u64::from_be_bytes(entry[8..16].try_into().unwrap());
    spoil(guest, block);
    guest.poll();
    let now: [u8; 64] = guest.memory.bytes(guest.cmdq, 64).try_into().unwrap();
    guest.answer(0, &now).map(|_| ())
}

type Answered = Result<(), Failed>;

fn poke(guest: &Guest, address: u64, byte: u8) {
    guest.memory.write(address, &[byte]).unwrap();
}

#[test]
fn every_delivery_error_has_its_number() {
    let mut guest = Guest::new(Profile::node(0));
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let entry = guest.cmdq;
    assert_eq!(spoiled(&mut guest, |_, _| {}), Ok(()));
    let mut check = |status: DeliveryStatus, field: &str, spoil: &dyn Fn(&mut Guest, u64)| {
        assert_eq!(spoiled(&mut guest, spoil), Err(Failed::Delivery(status)), "{field}");
        assert!(guest.refusal().contains(field), "{}", guest.refusal());
    };
    check(DeliveryStatus::TOKEN_ERR, "cmd_if_box.token", &|g, block| poke(g, block + 0x23d, 0));
    check(DeliveryStatus::BAD_BLOCK_NUMBER, "cmd_if_box.block_number", &|g, block| poke(g, block + 0x23b, 1));
    check(DeliveryStatus::BAD_INPUT_POINTER, "next_pointer", &|g, block| {
        g.memory.store64(entry + 8, block + 512).unwrap();
    });
    check(DeliveryStatus::BAD_INPUT_POINTER, "input_mailbox_pointer", &|g, block| {
        g.memory.store64(entry + 8, block + 64).unwrap();
    });
    check(DeliveryStatus::BAD_INPUT_POINTER, "next_pointer", &|g, _| g.memory.store64(entry + 8, 0).unwrap());
    check(DeliveryStatus::BAD_INPUT_POINTER, "next_pointer", &|g, _| {
        g.memory.store64(entry + 8, 0x1_0000_0000).unwrap();
    });
    check(DeliveryStatus::BAD_OUTPUT_POINTER, "next_pointer", &|g, _| {
        g.memory.store32(entry + 0x38, 600).unwrap();
    });
    check(DeliveryStatus::BAD_INPUT_LEN, "input_length", &|g, _| g.memory.store32(entry + 4, 0).unwrap());
    check(DeliveryStatus::BAD_OUTPUT_LEN, "output_length", &|g, _| {
        g.memory.store32(entry + 0x38, u32::MAX).unwrap();
    });
    check(DeliveryStatus::RESERVED_NOT_ZERO, "cmd_queue_entry", &|g, _| poke(g, entry + 0x3e, 1));
    check(DeliveryStatus::BAD_COMMAND_TYPE, "cmd_queue_entry.type", &|g, _| poke(g, entry, 6));
}

#[test]
fn entries_of_the_driver_and_entries_that_are_not_are_left_alone() {
    let mut guest = Guest::new(Profile::node(0));
    guest.write32(0x18, 1 << 3);
    guest.poll();
    assert!(guest.refusal().contains("entry 3 is the driver's"), "{}", guest.refusal());
    let mut profile = Profile::node(0);
    profile.log_cmdq_size = 2;
    let mut guest = Guest::new(profile);
    assert_eq!(guest.read32(0x14) & 0xff, 0x26);
    guest.write32(0x18, 1 << 4);
    guest.poll();
    assert!(guest.refusal().contains("no entry 4"), "{}", guest.refusal());
}

#[test]
fn all_entries_at_once_and_completion_by_event() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 6, 7, 1 << EventType::CMD.0).unwrap();
    assert_eq!(guest.memory.bytes(ring + 63, 1), [1], "its own creation is not an event");
    guest.eq_doorbell(eqn, 0, true);
    let posted: Vec<_> = (0..32).map(|slot| guest.post(slot, &Input::new(Opcode::ALLOC_PD).0, 16)).collect();
    guest.poll();
    let mut numbers = std::collections::BTreeSet::new();
    for (slot, posted) in (0..).zip(&posted) {
        let output = guest.answer(slot, posted).unwrap();
        assert!(numbers.insert(alloc_pd_out::pd.get32(&output)));
    }
    assert_eq!(guest.vectors.0, [7], "one interrupt until it is armed again");
    let mut done = 0u32;
    for i in 0..32 {
        let event = guest.memory.bytes(ring + i * 64, 64);
        assert_eq!((event[1], event[63] & 1), (EventType::CMD.0, 0));
        done |= u32::from_be_bytes(event[0x20..0x24].try_into().unwrap());
    }
    assert_eq!(done, u32::MAX);
    // Delivery errors are reported the same way.
    guest.eq_doorbell(eqn, 32, true);
    let entry = guest.post(5, &Input::new(Opcode::NOP).0, 16);
    poke(&guest, guest.cmdq + 5 * 64, 0);
    guest.poll();
    assert_eq!(entry[0], 7);
    assert_eq!(guest.memory.bytes(ring + 32 * 64 + 0x20, 4), [0, 0, 0, 1 << 5]);
}

#[test]
fn lengths_opcodes_and_reserved_bits_are_checked() {
    let mut guest = Guest::up(Profile::node(0));
    let mut short = Input::new(Opcode::CREATE_CQ);
    short.0.truncate(200);
    assert_eq!(guest.status(&short), CmdStatus::BAD_INP_LEN);
    let mut long = Input::new(Opcode::ALLOC_PD);
    long.0.extend([0; 16]);
    assert_eq!(guest.status(&long), CmdStatus::BAD_INP_LEN);
    let output = guest.command_len(&Input::new(Opcode::QUERY_ADAPTER), 100);
    assert_eq!(output, Err(Failed::Status(CmdStatus::BAD_OUTP_LEN)));
    let output = guest.command_len(&Input::new(Opcode::QUERY_HCA_CAP), 272);
    assert_eq!(output.map(|bytes| bytes.len()), Ok(272), "a shorter capability block is tolerated");

    let mut reserved = Input::new(Opcode::ALLOC_PD);
    reserved.0[0x0b] = 4;
    assert_eq!(guest.status(&reserved), CmdStatus::BAD_PARAM);
    assert!(guest.refusal().contains("alloc_pd_in+0x8"), "{}", guest.refusal());
    guest.hca.device.profile.strictness = Strictness::Lenient;
    assert_eq!(guest.status(&reserved), CmdStatus::OK);

    assert_eq!(guest.status(&Input::new(Opcode::ALLOC_PD).op_mod(1)), CmdStatus::BAD_OP);
    for opcode in
        [0x00u16, 0xfff, Opcode::CREATE_TIR.0, Opcode::CREATE_DCT.0, Opcode::QUERY_NIC_VPORT_CONTEXT.0]
    {
        let mut input = vec![0; 512];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        let answer = guest.command_len(&Input(input), 512);
        assert_eq!(answer, Err(Failed::Status(CmdStatus::BAD_OP)), "{:?}", Opcode(opcode));
    }
}

#[test]
fn signatures_are_checked_and_made_when_the_mode_is_on() {
    let mut guest = Guest::new(Profile::node(0));
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    assert_eq!(guest.give(6), CmdStatus::OK);
    assert_eq!(spoiled(&mut guest, |g, block| poke(g, block + 100, 0x55)), Ok(()), "by default nobody looks");
    let output = guest.command(&Input::new(Opcode::QUERY_HCA_CAP).op_mod(1)).unwrap();
    let mut input = Input::new(Opcode::SET_HCA_CAP);
    let block = set_hca_cap_in::capability.of_mut(&mut input.0);
    block.copy_from_slice(query_hca_cap_out::capability.of(&output));
    cmd_hca_cap::cmdif_checksum.set(block, 3u8);
    assert_eq!(guest.status(&input), CmdStatus::OK);

    let refused = Err(Failed::Delivery(DeliveryStatus::SIGNATURE_ERR));
    assert_eq!(spoiled(&mut guest, |g, block| poke(g, block + 100, 0x55)), refused);
    let entry = guest.cmdq;
    assert_eq!(spoiled(&mut guest, |g, _| poke(g, entry + 0x3d, 0)), refused);
    assert_eq!(spoiled(&mut guest, |_, _| {}), Ok(()));
    guest.post(0, &Input::new(Opcode::QUERY_ADAPTER).0, 272);
    guest.poll();
    let done: [u8; 64] = guest.memory.bytes(guest.cmdq, 64).try_into().unwrap();
    assert!(cmd::entry_signature_holds(&done));
    let output = u64::from_be_bytes(done[0x30..0x38].try_into().unwrap());
    let block: [u8; 576] = guest.memory.bytes(output, 576).try_into().unwrap();
    assert!(cmd::block_signatures_hold(&block));
}
