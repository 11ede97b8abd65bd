//! Edges of the HCA's life: what a device shows late, early or falsely while it comes up, goes down
//! and recovers, and what it does not answer.

use crate::common;

use common::recovery::{SECOND, until_fatal, up, works, world};
use common::{Driver, World};
use driver_mlx::{
    Access, Bar, Base, Config, CqConfig, Duration, Error, FatalCause, Hca, HcaStorage, Platform, QpConfig,
};
use hca_model::card::{CONNECTX_5, CONNECTX_6, CONNECTX_7, Card};
use hca_model::device::Life;
use hca_model::profile::FalseDisable;
use hca_model::{Habits, Profile};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::RegisterId;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

fn world_of(habits: Habits) -> Rc<World> {
    World::new([Profile { habits, ..Profile::node(0) }], FabricConfig::default())
}

/// `nic_interface` 1 is what DISABLE_HCA is to lead to, and no failure before it completes.
#[test]
fn disable_hca_may_show_before_it_completes() {
    let slow = Some((Opcode::DISABLE_HCA, 5 * SECOND));
    let world = world_of(Habits { disabled_early: true, slow_command: slow, ..Habits::default() });
    let hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    assert_eq!(hca.tear_down(), Ok(()));
    assert!(world.model(0, |m| m.bus_master()), "nothing failed");
}

#[test]
fn nic_interface_may_follow_enable_hca_late() {
    for late in [20_000_000, SECOND] {
        let world = world_of(Habits { enabled_late: Some(late), ..Habits::default() });
        let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
        works(&world, &mut hca);
        hca.tear_down().expect("torn down");
    }
}

/// A register that does not read back is no sign of another owner.
#[test]
fn a_dropped_hca_is_stopped_though_its_queue_is_not_shown() {
    let world = world_of(Habits { hidden_queue: true, ..Habits::default() });
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    let _cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    drop(hca);
    world.model(0, |m| assert_eq!((m.life(), m.census().total(), m.pages().given()), (Life::Disabled, 0, 0)));
}

#[test]
fn firmware_ends_dma_though_its_queue_is_not_shown() {
    let world = world_of(Habits { hidden_queue: true, ..Habits::default() });
    let mut hca = up(&world);
    world.trouble(0).no_reset.set(true);
    let now = world.now();
    world.model(0, |m| m.habits_mut().away = Some(now + SECOND..now + 20 * SECOND));
    until_fatal(&world, &mut hca, 5 * SECOND);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
}

#[test]
fn a_dropped_hca_that_cannot_be_stopped_loses_bus_mastering() {
    let world = world_of(Habits::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    let _cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    world.model(0, |m| {
        m.misbehaviour_mut().stall_command = Some(Opcode::TEARDOWN_HCA);
        m.misbehaviour_mut().disable = Some(FalseDisable::Ignored);
    });
    drop(hca);
    assert!(!world.model(0, |m| m.bus_master()));
}

/// The register does not say who wrote the 1, or whether the device has stopped.
#[test]
fn a_disabled_interface_does_not_replace_a_reset() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, |m| m.misbehaviour_mut().disable = Some(FalseDisable::Shown));
    let queue = world.platform(0).bar().read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & 0xffff_f000;
    world.write_register(0, init_seg::CMDQ_ADDR_L_SZ_OFFSET, queue | 1 << 8);
    assert_eq!(until_fatal(&world, &mut hca, 3 * SECOND), FatalCause::Interface(1));
    // The platform itself looks that the device has let go before it has bus mastering again.
    hca.recover().expect("recovers");
    assert_eq!(world.model(0, |m| m.resets()), 1);
    works(&world, &mut hca);
}

/// A reset in the middle of a start makes ENABLE_HCA hang on a ConnectX-5.
#[test]
fn recovery_resets_the_function_after_its_firmware_has_started() {
    let world = world();
    let mut hca = up(&world);
    // Another driver resets the function, whose firmware takes 30 s to start.
    world.model(0, |m| {
        m.habits_mut().initializing = Some(30 * SECOND);
        m.reset();
    });
    until_fatal(&world, &mut hca, 3 * SECOND);
    let began = world.now();
    hca.recover().expect("recovers");
    assert_eq!(world.model(0, |m| m.resets()), 2);
    assert!(world.now() - began > 50 * SECOND, "one start after the other");
    works(&world, &mut hca);
}

#[test]
fn a_lost_answer_about_pages_is_fatal_at_once() {
    let world = world();
    let mut hca = up(&world);
    let pd = hca.alloc_pd().expect("a PD");
    let memory = hca.alloc(4096, 4096).expect("memory");
    world.model(0, |m| m.misbehaviour_mut().stall_command = Some(Opcode::MANAGE_PAGES));
    let began = world.now();
    let make = || hca.register(pd, &memory, Access::LOCAL_WRITE, Base::Virtual).err();
    let error = std::iter::repeat_with(make).take(600).flatten().next().expect("it wants pages");
    assert!(matches!(error, Error::Fatal(FatalCause::CommandsLost)), "{error}");
    assert_eq!(hca.fatal(), Some(FatalCause::CommandsLost));
    assert!(world.now() - began < 65 * SECOND);
    world.model(0, |m| m.misbehaviour_mut().stall_command = None);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
}

#[test]
fn the_reserve_grows_with_what_firmware_took() {
    const BLOCKS: usize = 16_384;
    let profile = Profile { init_pages: 8_000, ..Profile::node(0) };
    for (firmware_reserve, expected) in [(64, 500), (1000, 1000), (0, 0)] {
        let world = World::with_memory([profile.clone()], FabricConfig::default(), BLOCKS * 4096);
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        let config = Config { firmware_reserve, ..Config::DEFAULT };
        let mut hca = Hca::bring_up(
            world.platform(0),
            world.region(0),
            common::host_region(),
            storage.parts(),
            &config,
        )
        .expect("comes up");
        let taken = hca.firmware_pages() as usize;
        while hca.alloc(4096, 4096).is_ok() {}
        let left = hca.free_bytes() / 4096;
        assert!((expected..=expected + 10).contains(&left), "{firmware_reserve} of {taken}: {left}");
    }
}

/// Firmware takes its pages once more: what it took in the life before is no reserve beside them.
#[test]
fn the_reserve_begins_anew_with_a_recovery() {
    const BLOCKS: usize = 16_384;
    let profile = Profile { init_pages: 8_000, ..Profile::node(0) };
    let config = Config { recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    let up = |blocks: usize| {
        let world = World::with_memory([profile.clone()], FabricConfig::default(), blocks * 4096);
        let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
        let (platform, region) = (world.platform(0), world.region(0));
        Hca::bring_up(platform, region, common::host_region(), storage.parts(), &config).expect("comes up")
    };
    let taken = BLOCKS - up(BLOCKS).free_bytes() / 4096;
    // More than the reserve of a bring-up, which is 64 pages, and less than that of 8000 pages.
    let mut hca = up(taken + 100);
    let free = hca.free_bytes();
    hca.recover().expect("recovers");
    assert_eq!(hca.free_bytes(), free);
}

#[test]
fn a_ring_that_the_device_may_have_comes_back_by_recovery() {
    let world = world();
    let mut hca = up(&world);
    hca.recover().expect("recovers");
    let free = hca.free_bytes();
    let mut cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    world.model(0, |m| m.misbehaviour_mut().silent_resize = true);
    let resized = hca.resize_cq(&mut cq, 1000);
    assert!(matches!(resized, Err(Error::BadAnswer { .. })), "{resized:?}");
    hca.destroy_cq(cq).expect("destroyed");
    assert!(hca.free_bytes() < free, "nothing says which ring is the device's");
    assert_eq!(hca.counters().leaked_bytes, 64 << 10);
    hca.recover().expect("recovers");
    assert_eq!(hca.free_bytes(), free);
}

#[test]
fn a_platform_without_write_combining_costs_no_command_per_qp() {
    let world = world();
    let mut hca = up(&world);
    world.trouble(0).no_write_combining.set(true);
    world.model(0, |m| m.misbehaviour_mut().stall_command = Some(Opcode::DEALLOC_UAR));
    let pd = hca.alloc_pd().expect("a PD");
    let cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    let config = QpConfig { blueflame: true, ..QpConfig::rc(pd, cq.number()) };
    let began = world.now();
    let first = hca.create_qp(&config).expect("a QP");
    assert!(world.now() - began < SECOND, "{} s", (world.now() - began) / SECOND);
    let commands = hca.counters().commands;
    let second = hca.create_qp(&config).expect("a QP");
    assert_eq!(hca.counters().commands - commands, 1);
    assert!(!first.has_blueflame() && !second.has_blueflame());
    world.model(0, |m| m.misbehaviour_mut().stall_command = None);
    for qp in [first, second] {
        hca.destroy_qp(qp).expect("destroyed");
    }
    hca.destroy_cq(cq).expect("destroyed");
    hca.dealloc_pd(pd).expect("ended");
    hca.tear_down().expect("torn down, the page too");
    assert_eq!(world.complaints(0), [""; 0]);
}

/// A ConnectX-6 Dx or later whose REAL_TIME_CLOCK_ENABLE is on.
#[test]
fn a_card_with_a_real_time_clock_takes_queue_pairs() {
    static REAL_TIME: Card = Card { capabilities: &[(cmd_hca_cap::sq_ts_format, 1)], ..CONNECTX_5 };
    let world = World::new([Profile::of(&REAL_TIME, 0)], FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    works(&world, &mut hca);
    hca.tear_down().expect("torn down");
    assert_eq!(world.complaints(0), [""; 0]);
}

/// As many small messages as the smallest MTU takes are an eighth of the speed.
#[test]
fn an_mtu_that_nothing_tells_is_assumed_and_reported() {
    let world = world_of(Habits {
        read_only_registers: vec![RegisterId::HOST_ENDIANNESS, RegisterId::PAOS],
        refused_registers: vec![RegisterId::PMTU],
        refused_commands: vec![Opcode::MAD_IFC],
        ..Habits::default()
    });
    let config = Config { physical_function: false, recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    let mut hca: Driver = world.bring_up(0, &config).expect("comes up");
    let mut began = 0;
    // Firmware may be another one after a recovery, which has a report of its own.
    for recoveries in 0..2 {
        for _ in 0..2 {
            assert_eq!(hca.port().expect("a port").mtu.bytes(), 2048);
            let new = hca.trace().iter().filter(|entry| entry.time.as_nanos() >= began);
            let lines = new.map(ToString::to_string);
            let assumed = lines.filter(|line| line.ends_with("MTU of the link unknown, 2048 assumed"));
            assert_eq!(assumed.count(), 1, "once after {recoveries} recoveries");
        }
        began = world.now();
        hca.recover().expect("recovers");
    }
}

/// By PTYS, by the function's own management agent, and where neither may be read.
#[test]
fn the_link_has_a_speed() {
    static BY_MAD: Card = Card { capabilities: &[(cmd_hca_cap::ib_virt, 0)], ..CONNECTX_5 };
    let speed = |profile| {
        let world = World::new([profile], FabricConfig::default());
        world.ready(0).port().expect("a port").speed
    };
    for (card, megabits) in
        [(&CONNECTX_5, 100_000), (&CONNECTX_6, 200_000), (&CONNECTX_7, 400_000), (&BY_MAD, 100_000)]
    {
        let profile = Profile { init_pages: 64, ..Profile::of(card, 0) };
        assert_eq!(speed(profile), megabits, "{}", card.name);
    }
    let habits = Habits { refused_registers: vec![RegisterId::PTYS], ..Habits::default() };
    assert_eq!(speed(Profile { habits, ..Profile::node(0) }), 0);
}
