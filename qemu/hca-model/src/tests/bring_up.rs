//! The whole way up and down, pages included.

use super::guest::{Failed, Guest, Input};
use crate::device::Life;
use crate::profile::Profile;
use crate::seams::GuestMemory;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::query_adapter_param_block;
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, HealthSyndrome};

fn query_cap(guest: &mut Guest, op_mod: u16) -> Vec<u8> {
    let output = guest.command(&Input::new(Opcode::QUERY_HCA_CAP).op_mod(op_mod)).unwrap();
    query_hca_cap_out::capability.of(&output).to_vec()
}

/// Takes pages back until the device has none; answers how many came.
fn reclaim(guest: &mut Guest, at_a_time: u64) -> usize {
    let mut all = std::collections::BTreeSet::new();
    loop {
        let input =
            Input::new(Opcode::MANAGE_PAGES).op_mod(2).set(manage_pages_in::input_num_entries, at_a_time);
        let output = guest.command_len(&input, 16 + 8 * at_a_time as usize).unwrap();
        let count = manage_pages_out::output_num_entries.get32(&output) as usize;
        if count == 0 {
            return all.len();
        }
        for i in 0..count {
            assert!(all.insert(manage_pages_out::pas.quad(&output, i)), "a page came back twice");
        }
    }
}

#[test]
fn the_captured_enable_hca_entry_is_taken() {
    let mut guest = Guest::new(Profile::node(0));
    let words = [0x0700_0000u32, 0x10, 0, 0, 0x0104_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x01fd_0001];
    let entry: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    guest.memory.write(guest.cmdq, &entry).unwrap();
    guest.write32(0x18, 1);
    guest.poll();
    let after = guest.memory.bytes(guest.cmdq, 64);
    assert_eq!(after[63], 0, "given back, delivered");
    assert_eq!(after[..32], entry[..32]);
    assert_eq!(after[32..48], [0; 16], "status ok");
    assert_eq!(after[48..63], entry[48..63], "length, token and signature stay");
    assert_eq!(guest.hca.device.life, Life::Enabled);
}

#[test]
fn up_and_down_again() {
    let mut guest = Guest::new(Profile::node(3));
    for _ in 0..2 {
        assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
        let output = guest.command(&Input::new(Opcode::QUERY_ISSI)).unwrap();
        assert_eq!(query_issi_out::supported_issi_dw0.get32(&output), 3);
        let input = Input::new(Opcode::SET_ISSI).set(set_issi_in::current_issi, 1);
        assert_eq!(guest.status(&input), CmdStatus::OK);
        assert_eq!(guest.query_pages(1), 6);
        assert_eq!(guest.give(6), CmdStatus::OK);
        let endianness =
            Input::new(Opcode::ACCESS_REG).set(access_register_in::register_id, 0x7004).pas(&[0, 0]);
        assert!(guest.command_len(&endianness, 32).is_ok());

        let maximum = query_cap(&mut guest, 0);
        let mut current = query_cap(&mut guest, 1);
        assert_eq!(cmd_hca_cap::log_max_qp.get32(&maximum), 18);
        assert_eq!(cmd_hca_cap::port_type.get32(&current), 0, "InfiniBand");
        let pages_before = guest.query_pages(2);
        cmd_hca_cap::log_max_qp.set(&mut current, 17u8);
        let mut input = Input::new(Opcode::SET_HCA_CAP);
        set_hca_cap_in::capability.of_mut(&mut input.0).copy_from_slice(&current);
        assert_eq!(guest.status(&input), CmdStatus::OK);
        assert_eq!(cmd_hca_cap::log_max_qp.get32(&query_cap(&mut guest, 1)), 17);
        let pages = guest.query_pages(2);
        assert!(pages > pages_before, "more QPs cost more pages: {pages_before}, {pages}");
        assert_eq!(guest.give(pages as usize), CmdStatus::OK);
        assert_eq!(guest.query_pages(2), 0);
        assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);

        let output = guest.command(&Input::new(Opcode::QUERY_ADAPTER)).unwrap();
        let block = query_adapter_out::query_adapter_struct.of(&output);
        assert!(query_adapter_param_block::vsd_contd_psid.of(block).starts_with(b"MT_"));
        let output = guest.command(&Input::new(Opcode::ALLOC_UAR)).unwrap();
        assert!(alloc_uar_out::uar.get32(&output) >= 0x10, "clear of the initialization segment");

        assert_eq!(guest.status(&Input::new(Opcode::TEARDOWN_HCA)), CmdStatus::OK);
        assert_eq!(guest.hca.census().total(), 0);
        assert_eq!(reclaim(&mut guest, 10), 6 + pages as usize, "every page comes back");
        assert_eq!(guest.status(&Input::new(Opcode::DISABLE_HCA)), CmdStatus::OK);
        let settled = cmd_hca_cap::log_max_qp
            .get32(guest.hca.device.caps.query(mlx5_prm::value::CapType::GENERAL, true).unwrap());
        assert_eq!(settled, 14, "what was set is forgotten");
    }
    assert_eq!(guest.hca.device.log.refusals(), 0);
}

#[test]
fn a_driver_that_gives_too_few_pages_is_told_both_numbers() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.starve_pages = Some(1000);
    let mut guest = Guest::new(profile);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    assert_eq!(guest.give(6), CmdStatus::OK);
    assert_eq!(guest.query_pages(2), 1000);
    assert_eq!(guest.give(64), CmdStatus::OK);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::BAD_SYS_STATE);
    assert!(guest.refusal().contains("70 pages at hand, 1006 needed"), "{}", guest.refusal());
}

/// A profile may state any number of pages.
#[test]
fn page_numbers_beyond_the_field_are_its_largest() {
    let mut profile = Profile::node(0);
    (profile.boot_pages, profile.init_pages) = (u32::MAX, u32::MAX);
    let mut guest = Guest::new(profile);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    assert_eq!(guest.query_pages(2), i32::MAX);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::BAD_SYS_STATE);
}

#[test]
fn pages_that_cannot_be_are_refused_by_name() {
    let mut guest = Guest::new(Profile::node(0));
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let good = guest.page();
    let give = |pages: &[u64]| {
        let entries = manage_pages_in::input_num_entries;
        Input::new(Opcode::MANAGE_PAGES).op_mod(1).set(entries, pages.len() as u64).pas(pages)
    };
    for (pages, word) in
        [([good, good + 8], "aligned"), ([good, good], "twice"), ([good, 0x1000], "not accessible")]
    {
        assert_eq!(guest.status(&give(&pages)), CmdStatus::BAD_PARAM);
        let refusal = guest.refusal();
        assert!(refusal.contains("manage_pages_in.pas[1]") && refusal.contains(word), "{refusal}");
    }
    assert_eq!(guest.hca.device.pages.given(), 0, "a refused command takes nothing");
    assert_eq!(guest.status(&give(&[good])), CmdStatus::OK);
    assert_eq!(guest.status(&give(&[good])), CmdStatus::BAD_PARAM);
    let short = Input::new(Opcode::MANAGE_PAGES).op_mod(1).set(manage_pages_in::input_num_entries, 3);
    assert_eq!(guest.status(&short), CmdStatus::BAD_INP_LEN);
}

#[test]
fn more_objects_need_more_pages_which_are_asked_for_by_event() {
    let mut profile = Profile::node(0);
    profile.objects_per_growth = 4;
    profile.growth_pages = 3;
    let mut guest = Guest::up(profile);
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 6, 5, 1 << EventType::PAGE_REQUEST.0).unwrap();
    guest.eq_doorbell(eqn, 0, true);
    for _ in 0..3 {
        assert!(guest.create_mkey().is_ok());
    }
    assert!(guest.vectors.0.is_empty());
    let given = guest.hca.device.pages.given();

    assert_eq!(guest.create_mkey(), Err(Failed::Pending), "the fourth waits for pages");
    assert_eq!(guest.vectors.0, [5]);
    let event = guest.memory.bytes(ring, 64);
    assert_eq!((event[1], event[63]), (EventType::PAGE_REQUEST.0, 0));
    assert_eq!(event[0x20..0x28], [0, 0, 0, 0, 0, 0, 0, 3], "function 0, three pages");
    assert_eq!(guest.query_pages_in_slot(31), 3, "a driver that polls sees it too");
    guest.give_in_slot(31, 3);
    assert_eq!(guest.hca.census().mkeys, 4, "the waiting command went on");
    assert_eq!(guest.memory.bytes(guest.cmdq + 63, 1), [0]);

    // Destroyed objects set pages free again, offered by event.
    for index in 0x100..0x104 {
        let input = Input::new(Opcode::DESTROY_MKEY).set(destroy_mkey_in::mkey_index, index);
        assert_eq!(guest.status(&input), CmdStatus::OK);
    }
    assert_eq!(guest.hca.device.pages.missing(), -3);
    let output = guest
        .command_len(
            &Input::new(Opcode::MANAGE_PAGES).op_mod(2).set(manage_pages_in::input_num_entries, 8),
            80,
        )
        .unwrap();
    assert_eq!(manage_pages_out::output_num_entries.get32(&output), 3);
    assert_eq!(guest.hca.device.pages.given(), given);
}

#[test]
fn a_command_fails_when_the_driver_cannot_give() {
    let mut profile = Profile::node(0);
    profile.objects_per_growth = 1;
    let mut guest = Guest::up(profile);
    assert_eq!(guest.create_mkey(), Err(Failed::Pending));
    let posted: [u8; 64] = guest.memory.bytes(guest.cmdq, 64).try_into().unwrap();
    guest.post(31, &Input::new(Opcode::MANAGE_PAGES).op_mod(0).0, 16);
    guest.poll();
    assert_eq!(guest.answer(0, &posted), Err(Failed::Status(CmdStatus::NO_RES)));
    assert!(guest.refusal().contains("at hand"), "{}", guest.refusal());
    assert_eq!(guest.hca.census().mkeys, 0);
}

#[test]
fn commands_wait_for_their_place_in_the_sequence() {
    let mut guest = Guest::new(Profile::node(0));
    assert_eq!(guest.status(&Input::new(Opcode::QUERY_HCA_CAP)), CmdStatus::BAD_SYS_STATE);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::BAD_SYS_STATE);
    assert_eq!(guest.status(&Input::new(Opcode::ALLOC_PD)), CmdStatus::BAD_SYS_STATE);
    assert!(guest.refusal().contains("before INIT_HCA"), "{}", guest.refusal());
    assert_eq!(guest.status(&Input::new(Opcode::SET_HCA_CAP)), CmdStatus::BAD_SYS_STATE, "boot pages first");
    let other = Input::new(Opcode::ENABLE_HCA).set(enable_hca_in::function_id, 1);
    assert_eq!(guest.status(&other), CmdStatus::BAD_PARAM);
}

#[test]
fn a_function_level_reset_forgets_everything() {
    let mut guest = Guest::up(Profile::node(0));
    guest.hca.device.port.set_cable(true);
    assert!(guest.create_mkey().is_ok());
    assert_ne!(guest.hca.census().total(), 0);
    let mut control = [0; 2];
    guest.hca.config_read(0x68, &mut control);
    control[1] |= 0x80;
    guest.hca.config_write(0x68, &control);
    assert_eq!(guest.hca.census().total(), 0);
    assert_eq!((guest.hca.device.life, guest.hca.device.pages.given()), (Life::Disabled, 0));
    assert!(!guest.hca.bus_master());
    assert_eq!(guest.read32(0x1fc) >> 31, 1, "initializing again");
    assert!(guest.hca.device.port.cable, "a reset pulls no cable");
    guest.attach();
    guest.initialize();
}

#[test]
fn without_bus_mastering_nothing_reaches_memory() {
    let mut guest = Guest::new(Profile::node(0));
    guest.hca.config_write(4, &[0x02]);
    let posted = guest.post(0, &Input::new(Opcode::ENABLE_HCA).0, 12);
    guest.poll();
    assert_eq!(guest.answer(0, &posted), Err(Failed::Pending));
}

#[test]
fn the_interface_can_be_disabled_and_reset_by_its_register() {
    let mut guest = Guest::up(Profile::node(0));
    let queue = guest.cmdq as u32;
    guest.write32(0x14, queue | 1 << 8);
    assert_eq!(guest.read32(0x14) >> 8 & 7, 0, "not before the device has stopped");
    guest.poll();
    assert_eq!(guest.read32(0x14) >> 8 & 7, 1);
    assert_eq!(guest.hca.census().total(), 0);
    let posted = guest.post(0, &Input::new(Opcode::ENABLE_HCA).0, 12);
    guest.poll();
    assert_eq!(guest.answer(0, &posted), Err(Failed::Pending), "a disabled interface takes no commands");
    assert!(!guest.refusal().contains("rung"), "drivers that shut down ring, and cards ignore it");
    guest.write32(0x14, queue | 7 << 8);
    guest.poll();
    assert_eq!(guest.read32(0x14) >> 8 & 7, 7);
    guest.now += 20_000_000;
    guest.poll();
    assert_eq!(guest.read32(0x14) >> 8 & 7, 1, "the reset is done");
    guest.write32(0x14, queue);
    guest.poll();
    guest.initialize();
}

#[test]
fn the_health_counter_moves_unless_wedged() {
    let mut guest = Guest::new(Profile::node(0));
    let first = guest.read32(0x1010);
    let deadline = guest.hca.next_deadline().unwrap();
    assert!(deadline > guest.now && deadline <= guest.now + 1_000_000_000);
    guest.now = deadline;
    guest.poll();
    assert_ne!(guest.read32(0x1010), first);
    let timer = |guest: &Guest| u64::from(guest.read32(0x1000)) << 32 | u64::from(guest.read32(0x1004));
    let start = timer(&guest);
    guest.now += 32_000_000 - 1000;
    guest.poll();
    assert_eq!(timer(&guest) - start, 5_000_000, "156.25 MHz");
    let mut profile = Profile::node(0);
    profile.misbehaviour.wedge_health = true;
    let mut guest = Guest::new(profile);
    let first = guest.read32(0x1010);
    guest.now += 5_000_000_000;
    guest.poll();
    assert_eq!(guest.read32(0x1010), first);
}

#[test]
fn a_stalled_command_never_completes_and_others_do() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.stall_command = Some(Opcode::QUERY_ISSI);
    let mut guest = Guest::new(profile);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    let posted = guest.post(4, &Input::new(Opcode::QUERY_ISSI).0, 112);
    guest.now += 100_000_000_000;
    guest.poll();
    assert_eq!(guest.answer(4, &posted), Err(Failed::Pending));
    assert_eq!(guest.query_pages(1), 6);
}

#[test]
fn an_event_queue_overrun_stops_the_device() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    guest.create_eq(ring, 1, 0, 1 << EventType::PORT_CHANGE.0).unwrap();
    for _ in 0..3 {
        guest.hca.device.port.set_cable(true);
        guest.poll();
        guest.hca.device.port.set_cable(false);
        guest.poll();
    }
    assert_eq!(guest.hca.device.health.syndrome, HealthSyndrome::ASYNCHRONOUS_EQ_BUF_OVERRUN);
    assert_eq!(guest.read32(0x23c) >> 16 & 0xff, 0xc);
    assert_eq!(guest.read32(0x238) >> 31, 1, "asks for a reset");
    let posted = guest.post(0, &Input::new(Opcode::NOP).0, 16);
    guest.poll();
    assert_eq!(guest.answer(0, &posted), Err(Failed::Pending));
    guest.hca.reset();
    guest.attach();
    guest.initialize();
    assert_eq!(guest.read32(0x23c), 0);
}

impl Guest {
    fn query_pages_in_slot(&mut self, slot: u8) -> i32 {
        let posted = self.post(slot, &Input::new(Opcode::QUERY_PAGES).op_mod(3).0, 16);
        self.poll();
        query_pages_out::num_pages.get32(&self.answer(slot, &posted).unwrap()) as i32
    }

    fn give_in_slot(&mut self, slot: u8, count: usize) {
        let pages = self.pages(count);
        let entries = manage_pages_in::input_num_entries;
        let input = Input::new(Opcode::MANAGE_PAGES).op_mod(1).set(entries, count as u64).pas(&pages);
        let posted = self.post(slot, &input.0, 16);
        self.poll();
        assert!(self.answer(slot, &posted).is_ok());
    }
}
