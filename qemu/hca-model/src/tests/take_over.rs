//! A second owner without a reset in between, as a crash kernel is: it finds the device set up by who is dead, gives a command queue of its
//! own and begins with ENABLE_HCA.

use super::guest::{Failed, Guest, Input};
use crate::device::Life;
use crate::profile::Profile;
use mlx5_prm::event::EventType;
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::PortState;

/// A device in the middle of its first owner's work: its port Active, one event queue armed on vector 3, objects. Answers the event ring.
fn in_use(profile: Profile) -> (Guest, u64) {
    let mut guest = Guest::up(profile);
    let ring = guest.page();
    let eqn = guest.create_eq(ring, 6, 3, 1 << EventType::PORT_CHANGE.0).expect("an EQ");
    guest.eq_doorbell(eqn, 0, true);
    guest.create_mkey().expect("a key");
    (guest, ring)
}

/// The owner is dead, and the next one gives a queue in memory of its own.
fn another_owner(guest: &mut Guest) {
    guest.cmdq = guest.page();
    guest.write32(init_seg::CMDQ_ADDR_H_OFFSET, (guest.cmdq >> 32) as u32);
    guest.write32(init_seg::CMDQ_ADDR_L_SZ_OFFSET, guest.cmdq as u32);
    guest.poll();
}

#[test]
fn the_first_enable_hca_of_another_owner_ends_what_was_before() {
    let (mut guest, ring) = in_use(Profile::node(0));
    let old = guest.hca.census().total();
    assert!(old >= 4, "{old}");
    another_owner(&mut guest);
    assert_eq!(guest.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & init_seg::NIC_INTERFACE_MASK, 0);

    // Until then the device goes on with what it was told: it has not heard that its owner is dead.
    assert_eq!((guest.hca.census().total(), guest.hca.life()), (old, Life::Initialized));
    guest.hca.port_mut().set_cable(true);
    guest.poll();
    assert_eq!(
        (guest.memory.bytes(ring, 64)[1], guest.vectors.0.as_slice()),
        (EventType::PORT_CHANGE.0, &[3][..])
    );

    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    assert_eq!((guest.hca.census().total(), guest.hca.pages().given()), (0, 0));
    assert_eq!(guest.hca.life(), Life::Enabled);
    let before = guest.memory.bytes(ring, 4096);
    guest.hca.port_mut().set_cable(false);
    guest.poll();
    assert_eq!((guest.memory.bytes(ring, 4096), guest.vectors.0.len()), (before, 1), "no DMA, no interrupt");
    guest.hca.port_mut().set_cable(true);
    assert_eq!(guest.hca.port().state, PortState::INIT);

    // It is a driver like any other now: it is told what pages are needed, and may not enable twice.
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::BAD_SYS_STATE);
    let boot = guest.query_pages(1);
    assert_eq!(boot, 6);
    assert_eq!(guest.give(boot as usize), CmdStatus::OK);
    let init = guest.query_pages(2);
    assert_eq!(guest.give(init as usize), CmdStatus::OK);
    assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);
    assert!(guest.command(&Input::new(Opcode::ALLOC_PD)).is_ok());
    assert_eq!((guest.hca.census().total(), guest.hca.resets()), (1, 0));
    let held = guest.hca.budget().held();
    assert_eq!(guest.status(&Input::new(Opcode::TEARDOWN_HCA)), CmdStatus::OK);
    assert!(guest.hca.budget().held() <= held);
    guest.hca.reset();
    assert_eq!(guest.hca.budget().held(), 0);
}

#[test]
fn commands_of_the_dead_owner_are_answered_nowhere() {
    let mut profile = Profile::node(0);
    profile.objects_per_growth = 1;
    let mut guest = Guest::up(profile);
    // One that waits for pages.
    assert_eq!(guest.create_mkey(), Err(Failed::Pending));
    let old = guest.memory.bytes(guest.cmdq, 4096);
    let old_queue = guest.cmdq;
    another_owner(&mut guest);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
    assert_eq!(guest.give(6), CmdStatus::OK);
    guest.poll();
    assert_eq!(guest.memory.bytes(old_queue, 4096), old);
    assert_eq!(guest.hca.census().mkeys, 0);
}

/// Firmware of the first ConnectX-4 did not survive a kexec: a reset helps.
#[test]
fn old_firmware_refuses_another_owner() {
    let mut profile = Profile::node(0);
    profile.habits.no_take_over = true;
    let (mut guest, _) = in_use(profile);
    another_owner(&mut guest);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::BAD_SYS_STATE);
    assert!(guest.refusal().contains("enabled already"), "{}", guest.refusal());
    guest.hca.reset();
    guest.attach();
    guest.initialize();
}

/// `nic_interface` 1 ends what is, as at the end of a fast teardown: then there is nothing to be taken over.
#[test]
fn a_disabled_interface_is_nobodys() {
    let (mut guest, ring) = in_use(Profile::node(0));
    guest.write32(init_seg::CMDQ_ADDR_L_SZ_OFFSET, 1 << init_seg::NIC_INTERFACE_SHIFT);
    guest.poll();
    assert_eq!((guest.hca.census().total(), guest.hca.life()), (0, Life::Disabled));
    let before = guest.memory.bytes(ring, 4096);
    guest.hca.port_mut().set_cable(true);
    another_owner(&mut guest);
    guest.initialize();
    assert_eq!(guest.memory.bytes(ring, 4096), before);
    assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::BAD_SYS_STATE);
}
