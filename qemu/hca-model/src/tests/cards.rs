//! Kinds of cards and what real ones do besides, as a guest sees them.

use super::guest::{Failed, Guest, Input};
use crate::card::{CONNECTX_4, CONNECTX_7, VIRTUAL_FUNCTION};
use crate::habits::{CommandTime, Habits};
use crate::profile::Profile;
use mlx5_prm::caps::cmd_hca_cap as cap;
use mlx5_prm::commands::*;
use mlx5_prm::event::EventType;
use mlx5_prm::init_seg as reg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, HealthSyndrome};
use mlx5_prm::value::{PortState, RegisterId};

const MILLISECOND: u64 = 1_000_000;

fn guest(habits: Habits) -> Guest {
    Guest::new(Profile { habits, ..Profile::node(0) })
}

#[test]
fn commands_that_take_time_overtake_each_other() {
    let times = CommandTime { seed: 5, range: (1_000, 50 * MILLISECOND) };
    let mut guest = Guest::up(Profile::node(0));
    guest.hca.habits_mut().command_time = Some(times);
    let posted: Vec<_> =
        (0..8).map(|slot| guest.post(slot, &Input::new(Opcode::NOP).0, nop_out::SIZE)).collect();
    guest.poll();
    let mut order = Vec::new();
    while order.len() < posted.len() {
        guest.now = guest.hca.next_deadline().expect("commands are due").max(guest.now + 1);
        guest.poll();
        for (slot, entry) in posted.iter().enumerate() {
            if guest.answer(slot as u8, entry) != Err(Failed::Pending) && !order.contains(&slot) {
                order.push(slot);
            }
        }
    }
    assert!(!order.is_sorted(), "{order:?}");
}

#[test]
fn a_hungry_card_s_commands_wait_for_pages() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 5, 1, 1 << EventType::PAGE_REQUEST.0).expect("an EQ");
    guest.eq_doorbell(eqn, 0, true);
    guest.hca.habits_mut().page_requests = 5;
    let before = guest.hca.pages().given();
    let waiting = guest.post(3, &Input::new(Opcode::NOP).0, nop_out::SIZE);
    guest.poll();
    assert_eq!(guest.answer(3, &waiting), Err(Failed::Pending));
    // What a driver has to do meanwhile.
    assert_eq!(&guest.memory.bytes(ring, 0x28)[0x20..], [0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(guest.give(5), CmdStatus::OK);
    guest.poll();
    assert!(guest.answer(3, &waiting).is_ok());
    assert_eq!(guest.hca.pages().given(), before + 5);
    // Who cannot give goes on without.
    let waiting = guest.post(3, &Input::new(Opcode::NOP).0, nop_out::SIZE);
    guest.poll();
    assert_eq!(guest.answer(3, &waiting), Err(Failed::Pending));
    assert_eq!(guest.status(&Input::new(Opcode::MANAGE_PAGES)), CmdStatus::OK);
    guest.poll();
    assert!(guest.answer(3, &waiting).is_ok());
}

#[test]
fn a_page_is_one_function_s() {
    let mut guest = Guest::up(Profile::node(0));
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 5, 1, 1 << EventType::PAGE_REQUEST.0).expect("an EQ");
    guest.eq_doorbell(eqn, 0, true);
    guest.hca.habits_mut().other_functions = vec![(3, 2)];
    guest.poll();
    assert_eq!(&guest.memory.bytes(ring, 0x28)[0x20..], [0, 0, 0, 3, 0, 0, 0, 2], "two for function 3");
    let [first, second] = guest.pages(2)[..] else { panic!("two") };
    let give = |function: u64, pages: &[u64]| {
        Input::new(Opcode::MANAGE_PAGES)
            .op_mod(1)
            .set(manage_pages_in::function_id, function)
            .set(manage_pages_in::input_num_entries, pages.len() as u64)
            .pas(pages)
    };
    assert_eq!(guest.status(&give(4, &[first])), CmdStatus::BAD_PARAM);
    assert_eq!(guest.status(&give(3, &[first])), CmdStatus::OK);
    assert_eq!(guest.status(&give(0, &[first])), CmdStatus::BAD_PARAM, "it has it");
    assert!(guest.refusal().contains("is another function's"), "{}", guest.refusal());
    assert_eq!(guest.status(&give(3, &[second])), CmdStatus::OK);
    assert_eq!(guest.hca.pages_of(3).map(crate::pages::FirmwarePages::given), Some(2));
}

#[test]
fn initializing_is_shown_for_as_long_as_it_takes() {
    let second = 1_000 * MILLISECOND;
    let mut guest = Guest::new(Profile::node(0));
    *guest.hca.habits_mut() = Habits {
        initializing: Some(2 * second),
        initializing_again: Some(second),
        reset_time: Some(second),
        ..Habits::default()
    };
    guest.poll();
    let initializing = |guest: &Guest| guest.read32(reg::INITIALIZING_OFFSET) >> 31;
    // It shows at once, before the device has seen the address.
    guest.write32(reg::CMDQ_ADDR_H_OFFSET, 0);
    guest.write32(reg::CMDQ_ADDR_L_SZ_OFFSET, guest.cmdq as u32);
    assert_eq!(initializing(&guest), 1);
    guest.poll();
    guest.write32(reg::CMD_DBELL_OFFSET, 1);
    guest.poll();
    assert!(guest.refusal().contains("rung while `initializing` is set"), "{}", guest.refusal());
    guest.now += second;
    guest.poll();
    assert_eq!(initializing(&guest), 0);
    guest.hca.reset();
    guest.hca.config_write(4, &[0x06, 0x04]);
    assert_eq!(guest.read32(reg::HEALTH_FW_VERSION_OFFSET), u32::MAX);
    guest.now += second;
    guest.poll();
    assert_eq!((guest.read32(reg::HEALTH_FW_VERSION_OFFSET) >> 24, initializing(&guest)), (16, 1));
}

#[test]
fn the_timer_goes_on_over_a_reset() {
    let mut guest = Guest::new(Profile::node(0));
    guest.hca.show_timer(5_000 * MILLISECOND);
    let timer = |guest: &Guest| guest.read32(reg::INTERNAL_TIMER_L_OFFSET);
    let before = timer(&guest);
    guest.hca.config_write(0x68, &[0x10, 0xa8]);
    guest.hca.config_write(4, &[0x06, 0x04]);
    assert_eq!((guest.hca.resets(), timer(&guest)), (1, before));
    assert_ne!(before, 0);
}

#[test]
fn a_failure_is_told_with_and_without_a_wish() {
    for (silent_assert, cold_reset, expected) in
        [(false, false, 0b1001_1000), (true, false, 0b0000_1000), (false, true, 0b1100_1000)]
    {
        let mut guest = guest(Habits { silent_assert, cold_reset, ..Habits::default() });
        assert_eq!(guest.read32(mlx5_prm::later::ASSERT_VAR_OFFSET), 0);
        guest.hca.fail(HealthSyndrome(1));
        guest.poll();
        let wish = guest.read32(reg::HEALTH_RFR_OFFSET) >> 24;
        assert_eq!(wish & 0b1100_1000, expected & 0b1100_1000, "{silent_assert} {cold_reset}");
        assert_eq!(guest.read32(reg::HEALTH_SYND_OFFSET) >> 16 & 0xff, 1);
        assert_ne!(guest.read32(mlx5_prm::later::ASSERT_VAR_OFFSET), 0);
    }
}

#[test]
fn a_link_trains_and_falls_with_its_driver() {
    let mut guest =
        guest(Habits { training: Some(MILLISECOND), link_follows_driver: true, ..Habits::default() });
    guest.hca.port_mut().set_cable(true);
    guest.poll();
    assert_eq!((guest.hca.port().state, guest.hca.link_is_up()), (PortState::DOWN, false));
    guest.initialize();
    guest.poll();
    guest.now += MILLISECOND;
    guest.poll();
    assert_eq!((guest.hca.port().state, guest.hca.link_is_up()), (PortState::INIT, true));
    assert_eq!(guest.status(&Input::new(Opcode::TEARDOWN_HCA)), CmdStatus::OK);
    guest.poll();
    assert!(!guest.hca.link_is_up());
}

#[test]
fn registers_are_the_card_s() {
    for (card, bar) in [(&CONNECTX_4, 32 << 20), (&CONNECTX_7, 32 << 20), (&VIRTUAL_FUNCTION, 2 << 20)] {
        let mut guest = Guest::new(Profile { init_pages: 8, ..Profile::of(card, 0) });
        assert_eq!(guest.hca.registers().len(), bar);
        // The MSI-X table is whoever's it is that sends the interrupts.
        guest.write32(0x2000, 1);
        guest.write32(0x2000 + 16 * u32::from(card.vectors) as usize - 4, 1);
        guest.poll();
        assert_eq!(guest.hca.log().entries().count(), 0);
        guest.write32(bar, 1);
        assert!(!guest.hca.registers().has_work(), "outside");
        guest.initialize();
        let write = Input::new(Opcode::ACCESS_REG)
            .set(access_register_in::register_id, RegisterId::HOST_ENDIANNESS.0.into())
            .pas(&[0, 0]);
        assert_eq!(guest.command_len(&write, 32).is_ok(), card.has_smi);
        assert_eq!(guest.hca.caps().max(cap::uar_sz), if card.has_smi { 5 } else { 1 });
        assert_eq!(guest.hca.caps().max(cap::vport_group_manager), u32::from(card.has_smi));
    }
}

#[test]
fn failed_device_keeps_no_port_changes() {
    let mut guest = guest(Habits::default());
    guest.hca.fail(HealthSyndrome(1));
    guest.poll();
    for plugged in [false, true, false, true] {
        guest.hca.port_mut().set_cable(plugged);
    }
    assert!(!guest.hca.device.port.changes.is_empty());
    guest.poll();
    assert!(guest.hca.device.port.changes.is_empty());
}
