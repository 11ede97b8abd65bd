//! The library on an emulated HCA: large cards, failures of bring-up and tear-down, and recovery.

mod common;

use common::{Bed, ENODEV, ENOMEM, ENOTRECOVERABLE, SECOND, alone};
use hca_model::card::CONNECTX_5_EN;
use hca_model::{Census, Habits, Hca, Profile};
use mlx_firmware::{MlxPlatform, Node, life};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;

/// Memory of the HCA. Each test uses another length, because donated memory is reused.
const MEMORY: usize = 32 << 20;

fn stalled(opcode: Opcode) -> Profile {
    let mut profile = Profile::node(0);
    profile.misbehaviour.stall_command = Some(opcode);
    profile
}

/// Clears all faults, as a reset of a card does.
fn cured(hca: &mut Hca) {
    *hca.misbehaviour_mut() = Default::default();
    hca.habits_mut().counter_pause = None;
}

#[test]
fn a_card_that_asks_for_two_hundred_mib_comes_up() {
    let _alone = alone();
    let profile = Profile { init_pages: 50_000, ..Profile::node(0) };
    let bed = Bed::new(profile, 256 << 20);
    // Too little memory is reported as such, with both numbers.
    assert_eq!(bed.open(&bed.platform(), 64 << 20), ENOMEM);
    let said = bed.said();
    assert!(said.contains("firmware needs 50") && said.contains("available"), "{said}");
    assert!(!bed.hca(|hca| hca.bus_master()));

    bed.asked.borrow_mut().clear();
    assert_eq!(bed.open(&bed.platform(), 0), 0, "{}", bed.said());
    assert!(bed.world.firmware_pages(0) >= 50_000);
    let beside = (16 << 20) + (256 << 10);
    assert_eq!(*bed.asked.borrow(), [(256 << 20, true), (beside, false)]);
    assert_eq!(life::close(), 0, "{}", bed.said());
    assert_eq!((bed.world.firmware_pages(0), bed.world.census(0)), (0, Census::default()));
    assert!(!bed.hca(|hca| hca.bus_master()));
    // The same memory serves again, also if its length is explicit.
    assert_eq!(bed.open(&bed.platform(), 256 << 20), 0, "{}", bed.said());
    assert_eq!((life::close(), bed.asked.borrow().len()), (0, 2));
    assert_eq!((bed.resets.get(), bed.said()), (0, String::new()));
}

#[test]
fn providers_have_the_names_of_the_ports_medium() {
    let _alone = alone();
    let media =
        [(Profile::node(0), ["ib0", "ib0-dat"]), (Profile::of(&CONNECTX_5_EN, 0), ["roce0", "roce0-dat"])];
    for (profile, names) in media {
        let bed = Bed::new(profile, MEMORY);
        assert_eq!(bed.open(&bed.platform(), MEMORY - 10 * 4096), 0, "{}", bed.said());
        assert_eq!(life::ia_names(), names);
        assert_eq!(life::close(), 0, "{}", bed.said());
    }
}

#[test]
fn a_failed_bring_up_is_followed_by_a_reset() {
    let _alone = alone();
    let dma = MEMORY - 4096;
    let bed = Bed::new(stalled(Opcode::INIT_HCA), MEMORY);
    assert_eq!(bed.open(&bed.platform(), dma), ENODEV);
    assert!(bed.said().contains("INIT_HCA"));
    assert_eq!((bed.resets.get(), bed.hca(|hca| hca.bus_master())), (1, false));
    bed.hca(cured);
    assert_eq!(bed.open(&bed.platform(), dma), 0, "{}", bed.said());
    assert_eq!((life::close(), bed.asked.borrow().len(), bed.resets.get()), (0, 2, 1));
    // A bring-up that was undone in order needs no reset.
    bed.hca(|hca| hca.habits_mut().refused_commands = vec![Opcode::INIT_HCA]);
    assert_eq!((bed.open(&bed.platform(), dma), bed.resets.get()), (ENODEV, 1));
}

#[test]
fn configuration_space_is_enough_for_a_reset() {
    let _alone = alone();
    let dma = MEMORY - 2 * 4096;
    let bed = Bed::new(stalled(Opcode::INIT_HCA), MEMORY);
    let platform = MlxPlatform { reset: None, bus_master: None, ..bed.platform() };
    let before = bed.configuration();
    assert_eq!(bed.open(&platform, dma), ENODEV);
    assert_eq!((bed.hca(|hca| hca.resets()), bed.hca(|hca| hca.bus_master())), (1, false));
    // BARs, device control, MSI-X and the rest of the command register are as before.
    assert_eq!(bed.configuration(), before);
    bed.hca(cured);
    assert_eq!(bed.open(&platform, dma), 0, "{}", bed.said());
    assert!(bed.hca(|hca| hca.bus_master()));
    assert_eq!((life::close(), bed.hca(|hca| hca.resets())), (0, 1));
    assert!(!bed.hca(|hca| hca.bus_master()));
}

#[test]
fn memory_that_the_hca_may_access_is_not_used_again() {
    let _alone = alone();
    let dma = MEMORY - 3 * 4096;
    let bed = Bed::new(stalled(Opcode::INIT_HCA), MEMORY);
    let least = bed.least();
    bed.enable();
    assert_eq!(bed.open(&least, dma), ENODEV);
    bed.hca(cured);
    let alive = bed.hca(|hca| hca.pages().given());
    bed.said();
    for dma in [dma, dma - 4096] {
        assert_eq!(bed.open(&least, dma), ENOTRECOVERABLE);
        assert!(bed.said().contains("may still access the memory of its last use"));
    }
    // Cleared bus mastering protects only until it is set again.
    let platform = MlxPlatform { reset: None, read_config: None, ..bed.platform() };
    assert_eq!(bed.open(&platform, dma), ENOTRECOVERABLE);
    assert!(!bed.hca(|hca| hca.bus_master()));
    assert_eq!(bed.hca(|hca| hca.pages().given()), alive, "nothing was done to it");
    assert_eq!(bed.open(&bed.platform(), dma), 0, "{}", bed.said());
    assert_eq!((bed.resets.get(), life::close()), (1, 0));
}

#[test]
fn a_failed_close_says_whether_the_hca_is_kept_from_memory() {
    let _alone = alone();
    let dma = MEMORY - 5 * 4096;
    let bed = Bed::new(Profile::node(0), MEMORY);
    let stall = |hca: &mut Hca| hca.misbehaviour_mut().stall_command = Some(Opcode::TEARDOWN_HCA);
    // Recovery by a reset, by bus mastering, and by nothing.
    let no_config = MlxPlatform { read_config: None, write_config: None, ..bed.platform() };
    let no_reset = MlxPlatform { reset: None, ..no_config };
    for (platform, closed, again) in [
        (no_config, ENODEV, 0),
        (no_reset, ENODEV, ENOTRECOVERABLE),
        (bed.least(), ENOTRECOVERABLE, ENOTRECOVERABLE),
    ] {
        assert_eq!(bed.open(&bed.platform(), dma), 0, "{}", bed.said());
        assert_eq!(life::close(), 0);
        bed.enable();
        assert_eq!(bed.open(&platform, dma), 0, "{}", bed.said());
        bed.hca(stall);
        assert_eq!(life::close(), closed, "{}", bed.said());
        bed.hca(cured);
        assert_eq!(bed.open(&platform, dma), again, "{}", bed.said());
        assert_eq!(life::close(), 0);
    }
}

#[test]
fn a_function_that_was_left_enabled_comes_up_by_a_reset() {
    let _alone = alone();
    let dma = MEMORY - 6 * 4096;
    for (is_able, opened) in [(true, 0), (false, ENODEV)] {
        let habits = Habits { no_take_over: true, ..Habits::default() };
        let bed = Bed::new(Profile { habits, ..Profile::node(0) }, MEMORY);
        bed.leave_running();
        bed.enable();
        let platform = if is_able { bed.platform() } else { bed.least() };
        assert_eq!(bed.open(&platform, dma), opened, "{}", bed.said());
        assert_eq!(bed.resets.get(), u32::from(is_able));
        assert_eq!(life::close(), 0);
    }
}

#[test]
fn rds_carries_on_over_an_hca_that_hangs() {
    let _alone = alone();
    let bed = Bed::with_peer(Profile::node(0), MEMORY);
    assert_eq!(bed.open(&bed.platform(), MEMORY - 7 * 4096), 0, "{}", bed.said());
    let fd = bed.socket(4001);
    let message = |number: usize| -> Vec<u8> { (0..10_000).map(|i| (i * 7 + number) as u8).collect() };
    for number in 0..3 {
        bed.send(fd, &message(number));
        assert_eq!(bed.receive(fd), Ok(message(number)));
    }
    // Firmware stops silently.
    bed.hca(|hca| {
        hca.habits_mut().counter_pause = Some(0..u64::MAX);
        hca.misbehaviour_mut().stall_command = Some(Opcode::QUERY_ISSI);
    });
    bed.cure.set(cured);
    bed.send(fd, &message(3));
    bed.run(100 * SECOND);
    assert_eq!(bed.resets.get(), 1);
    let said = bed.said();
    assert!(said.contains("health counter") && said.ends_with("the HCA is back"), "{said}");
    assert_eq!(bed.receive(fd), Ok(message(3)));
    // Firmware requests a reset while a call waits.
    for number in 4..8 {
        bed.send(fd, &message(number));
        if number == 5 {
            bed.hca(|hca| hca.fail(HealthSyndrome(1)));
        }
        assert_eq!(bed.receive(fd), Ok(message(number)));
    }
    let said = bed.said();
    assert!(said.ends_with("the HCA is back"), "{said}");
    assert_eq!(bed.close_socket(fd), Ok(0));
    assert_eq!(life::close(), 0, "{}", bed.said());
    assert_eq!(bed.world.census(0), Census::default());
}

/// Another owner resets the HCA, or its slot loses power: configuration space is cleared.
#[test]
fn recovery_restores_configuration_space() {
    let _alone = alone();
    let dma = MEMORY - 10 * 4096;
    let bed = Bed::with_peer(Profile::node(0), MEMORY);
    let platform = MlxPlatform { reset: None, bus_master: None, ..bed.platform() };
    assert_eq!(bed.open(&platform, dma), 0, "{}", bed.said());
    let before = bed.configuration();
    let fd = bed.socket(4001);
    bed.world.lose_hca(0, 3 * SECOND);
    bed.send(fd, b"late");
    assert_eq!(bed.receive(fd), Ok(b"late".to_vec()), "{}", bed.said());
    let said = bed.said();
    assert!(said.ends_with("the HCA is back"), "{said}");
    assert_eq!(bed.configuration(), before);
    assert_eq!((bed.close_socket(fd), life::close()), (Ok(0), 0), "{}", bed.said());
}

/// A program has a second to close its IAs; RDS does not wait for one that leaves them open.
#[test]
fn recovery_leaves_a_program_time_to_close_its_ias() {
    let _alone = alone();
    let bed = Bed::new(Profile::node(0), MEMORY);
    assert_eq!(bed.open(&bed.platform(), MEMORY - 9 * 4096), 0, "{}", bed.said());
    let node = <Node as rds_calls::Node>::open().expect("it is open");
    let ias = || dat_calls::Node::lock(node).expect("it is open").adapter.census().ias;
    for (closes, least, most) in [(true, 0, SECOND / 2), (false, SECOND, 2 * SECOND)] {
        let mut guard = dat_calls::Node::lock(node).expect("it is open");
        let opened = dat_calls::open_ia(&mut *guard, "ib0", "ib0", 8, dat_calls::NULL, 2).expect("opens");
        drop(guard);
        assert_eq!(ias(), 2);
        bed.hca(|hca| hca.fail(HealthSyndrome(1)));
        while bed.said().is_empty() {
            bed.run(SECOND / 100);
        }
        let failed = bed.world.now();
        assert_eq!(ias(), 2, "it is not recovered at once");
        if closes {
            let ia = <dat_nostd::IaHandle as dat_calls::Kinded>::given(opened.ia).expect("a handle");
            dat_calls::Node::close_ia(node, ia, 0).expect("closes");
        }
        while !bed.said().contains("is back") {
            bed.run(SECOND / 100);
        }
        let took = bed.world.now() - failed;
        assert!((least..most).contains(&took), "{took} ns, closed: {closes}");
        assert_eq!(ias(), 1);
        // The next recovery may follow at once only after a while.
        bed.run(120 * SECOND);
    }
    assert_eq!(life::close(), 0, "{}", bed.said());
}

#[test]
fn an_hca_that_does_not_come_back_is_given_up() {
    let _alone = alone();
    let bed = Bed::with_peer(Profile::node(0), MEMORY);
    let dma = MEMORY - 8 * 4096;
    assert_eq!(bed.open(&bed.platform(), dma), 0, "{}", bed.said());
    let fd = bed.socket(4001);
    bed.send(fd, b"lost");
    bed.hca(Hca::kill);
    // The driver waits for two minutes.
    let began = bed.world.now();
    assert_eq!(bed.receive(fd), Err(19));
    assert!(bed.world.now() - began >= 120 * SECOND);
    assert!(bed.said().contains("HCA lost"));
    assert_eq!(life::close(), ENOTRECOVERABLE);
    assert_eq!(bed.open(&bed.platform(), dma), ENOTRECOVERABLE);
    bed.hca(Hca::revive);
    assert_eq!(bed.open(&bed.platform(), dma), 0, "{}", bed.said());
    assert_eq!(life::close(), 0);
}
