//! Device memory: allocation, keys, operation addresses, and BAR0 as a guest reads and writes it.

use super::guest::{Answer, Guest, Input};
use crate::object::memic::{BAR_OFFSET, SIZE};
use crate::profile::Profile;
use mlx5_prm::caps::device_mem_cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::mkc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{AccessMode, CapType};

const START: u64 = BAR_OFFSET as u64;
const INCREMENT: u64 = 0;
const TEST_AND_SET: u64 = 1;

/// An allocation of `len` bytes in the page `page` of the device's memory, as Linux asks for one.
fn alloc_in(page: u64, len: u64) -> Input {
    Input::new(Opcode::ALLOC_MEMIC)
        .set(alloc_memic_in::range_start_addr, START + page * 4096)
        .set(alloc_memic_in::range_size, len.next_multiple_of(4096))
        .set(alloc_memic_in::memic_size, len)
}

fn alloc(guest: &mut Guest, page: u64, len: u64) -> u64 {
    let output = guest.command(&alloc_in(page, len)).expect("device memory");
    alloc_memic_out::memic_start_addr.get(&output)
}

fn free_in(start: u64, len: u64) -> Input {
    Input::new(Opcode::DEALLOC_MEMIC)
        .set(dealloc_memic_in::memic_start_addr, start)
        .set(dealloc_memic_in::memic_size, len)
}

fn operation_in(op_mod: u16, start: u64, operation: u64) -> Input {
    Input::new(Opcode::MODIFY_MEMIC)
        .op_mod(op_mod)
        .set(modify_memic_in::memic_operation_type, operation)
        .set(modify_memic_in::memic_start_addr, start)
}

fn create_key(guest: &mut Guest, start: u64, len: u64) -> Answer {
    let mut input = Input::new(Opcode::CREATE_MKEY);
    let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
    let (high, low) = AccessMode::MEMIC.split();
    mkc::access_mode_4_2.set(context, high);
    mkc::access_mode_1_0.set(context, low);
    mkc::pd.set(context, guest.pd);
    mkc::qpn.set(context, 0xff_ffffu32);
    mkc::start_addr.set(context, start);
    mkc::len.set(context, len);
    mkc::lw.set(context, 1u8);
    guest.command(&input)
}

fn read<const N: usize>(guest: &Guest, at: u64) -> [u8; N] {
    let mut bytes = [0xee; N];
    guest.bar.read(at as usize, &mut bytes);
    bytes
}

#[test]
fn a_program_maps_what_the_driver_allocated() {
    let mut guest = Guest::up(Profile::node(0));
    let query = Input::new(Opcode::QUERY_HCA_CAP).op_mod(CapType::DEV_MEM.0 << 1 | 1);
    let output = guest.command(&query).expect("capabilities");
    let caps = query_hca_cap_out::capability.of(&output);
    assert!(device_mem_cap::memic.is_set(caps));
    assert_eq!(device_mem_cap::memic_bar_start_addr.get(caps), START);
    let size = device_mem_cap::memic_bar_size.get(caps);
    assert!(size <= 256 * 4096, "Linux has a map of 256 pages");

    let start = alloc(&mut guest, 2, 0x140);
    assert_eq!((start, guest.hca.census().memics), (START + 0x2000, 1));
    guest.bar.write(start as usize + 4, &[1, 2, 3, 4]);
    assert_eq!(guest.bar.backlog(), 0, "memory, and no register");
    assert_eq!(read::<6>(&guest, start + 3), [0, 1, 2, 3, 4, 0]);
    assert_eq!(guest.status(&alloc_in(2, 0x1000)), CmdStatus::NO_RES, "what makes Linux look elsewhere");

    let output = guest.command(&operation_in(0, start, INCREMENT)).expect("an operation");
    let adds = modify_memic_out::memic_operation_addr.get(&output);
    let output = guest.command(&operation_in(0, start, TEST_AND_SET)).expect("an operation");
    let sets = modify_memic_out::memic_operation_addr.get(&output);
    guest.bar.write(adds as usize + 4, &[41]);
    assert_eq!(read::<1>(&guest, sets + 4), [42]);
    assert_eq!(read::<2>(&guest, start + 4), [1, 2]);
    assert_eq!(guest.status(&operation_in(0, start, TEST_AND_SET)), CmdStatus::BAD_RES_STATE);
    assert_eq!(guest.status(&operation_in(0, start + 64, TEST_AND_SET)), CmdStatus::BAD_RES);
    assert_eq!(guest.status(&operation_in(0, start, 2)), CmdStatus::BAD_PARAM);
    assert_eq!(guest.status(&operation_in(2, start, 0)), CmdStatus::BAD_OP);
    assert_eq!(guest.status(&free_in(start, 0x140)), CmdStatus::BAD_RES_STATE);
    for operation in [INCREMENT, TEST_AND_SET] {
        assert_eq!(guest.status(&operation_in(1, start, operation)), CmdStatus::OK);
        assert_eq!(guest.status(&operation_in(1, start, operation)), CmdStatus::BAD_RES);
    }
    assert_eq!(guest.status(&free_in(start, 0x100)), CmdStatus::BAD_RES);
    assert_eq!(guest.status(&free_in(start, 0x140)), CmdStatus::OK);
    assert_eq!(guest.status(&free_in(start, 0x140)), CmdStatus::BAD_RES);
    assert_eq!(guest.hca.census().memics, 0);
    alloc(&mut guest, 2, 0x140);
    assert_eq!(read::<8>(&guest, start), [0; 8], "nobody sees what another left");
}

#[test]
fn a_key_names_memory_that_was_allocated_and_keeps_it() {
    let mut guest = Guest::up(Profile::node(0));
    let start = alloc(&mut guest, 0, 0x1000);
    let (next, len) = (alloc(&mut guest, 1, 0x1000), 0x1000);
    let refused = |answer: Answer| answer.is_err();
    assert!(refused(create_key(&mut guest, next, len + 1)), "beyond the allocation");
    assert!(refused(create_key(&mut guest, start, 2 * len)), "over two of them");
    assert!(refused(create_key(&mut guest, next + len, 8)), "not allocated");
    assert!(create_key(&mut guest, next, 0).is_ok(), "of nothing, as Linux asks for one");
    assert!(refused(create_key(&mut guest, next + len, 0)));
    assert!(refused(create_key(&mut guest, start, u64::MAX)));
    assert!(refused(create_key(&mut guest, 0, 8)), "not device memory");
    let output = create_key(&mut guest, start + 0x10, 0x20).expect("a key");
    let index = create_mkey_out::mkey_index.get32(&output);
    let query = Input::new(Opcode::QUERY_MKEY).set(query_mkey_in::mkey_index, index.into());
    let output = guest.command(&query).expect("its context");
    let context = query_mkey_out::memory_key_mkey_entry.of(&output);
    assert_eq!((mkc::start_addr.get(context), mkc::len.get(context)), (start + 0x10, 0x20));
    assert_eq!(guest.status(&free_in(start, len)), CmdStatus::BAD_RES_STATE);
    let destroy = Input::new(Opcode::DESTROY_MKEY).set(destroy_mkey_in::mkey_index, index.into());
    assert_eq!(guest.status(&destroy), CmdStatus::OK);
    assert_eq!(guest.status(&free_in(start, len)), CmdStatus::OK);
    assert!(refused(create_key(&mut guest, start, 8)), "freed");
}

#[test]
fn there_is_an_end_to_it() {
    let mut guest = Guest::up(Profile::node(0));
    for page in 0..SIZE as u64 / 4096 {
        alloc(&mut guest, page, 4096);
    }
    let whole = alloc_in(0, 64).set(alloc_memic_in::range_size, SIZE as u64);
    assert_eq!(guest.status(&whole), CmdStatus::NO_RES);
    let bad = [
        (alloc_memic_in::memic_size, 0),
        (alloc_memic_in::memic_size, 65),
        (alloc_memic_in::log_memic_addr_alignment, 7),
        (alloc_memic_in::range_start_addr, 0),
        (alloc_memic_in::range_start_addr, START + SIZE as u64),
        (alloc_memic_in::range_size, SIZE as u64 + 1),
        (alloc_memic_in::range_size, u64::from(u32::MAX)),
    ];
    for (field, value) in bad {
        assert_eq!(guest.status(&alloc_in(0, 64).set(field, value)), CmdStatus::BAD_PARAM, "{value:#x}");
    }
    assert_eq!(guest.status(&free_in(0, 4096)), CmdStatus::BAD_RES);
    assert_eq!(guest.status(&free_in(u64::MAX, 4096)), CmdStatus::BAD_RES);
}

#[test]
fn a_reset_frees_it_and_leaves_a_neighbours_alone() {
    let mut guests = [Guest::up(Profile::node(0)), Guest::up(Profile::node(1))];
    let [start, _] = [0, 1].map(|n| {
        let start = alloc(&mut guests[n], 0, 64);
        guests[n].bar.write(start as usize, &[n as u8 + 1; 8]);
        start
    });
    create_key(&mut guests[0], start, 64).expect("a key");
    assert_eq!(read::<8>(&guests[1], start), [2; 8]);
    // Through the PCI Express capability.
    guests[0].hca.config_write(0x60 + 8, &[0x10, 0xa8]);
    assert_eq!(guests[0].hca.census().total(), 0);
    for guest in &mut guests {
        guest.hca.config_write(4, &[0x06, 0x04]);
    }
    assert_eq!((read::<8>(&guests[0], start), read::<8>(&guests[1], start)), ([0; 8], [2; 8]));
    // A dead device takes nothing and answers all ones.
    guests[1].hca.kill();
    guests[1].bar.write(start as usize, &[9; 8]);
    assert_eq!(read::<8>(&guests[1], start), [0xff; 8]);
    guests[1].hca.revive();
    assert_eq!(read::<8>(&guests[1], start), [0xff; 8], "it decodes nothing yet");
    guests[1].hca.config_write(4, &[0x06, 0x04]);
    assert_eq!(read::<8>(&guests[1], start), [0; 8]);
}
