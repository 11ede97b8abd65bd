//! How a failed device is made to let go of memory: what counts as proof, who is waited for, and what is given back whatever happens.

use crate::common;

use common::node::{self, ALL};
use common::recovery::{SECOND, VENDOR, semaphore, until_fatal, up, works, world};
use driver_mlx::{
    Base, Config, Duration, Error, FatalCause, HcaStorage, Instant, Platform, SendFlags, SendOp, Wake,
};
use hca_model::Habits;
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;

/// The device reads as if it had another driver's command queue, or as if a reset were under way for ever; in truth it has not let go.
#[test]
fn only_a_reset_that_is_over_is_one() {
    let world = world();
    let mut hca = up(&world);
    world.write_register(0, init_seg::CMDQ_ADDR_H_OFFSET, 0x55);
    assert_eq!(until_fatal(&world, &mut hca, 3 * SECOND), FatalCause::Forgotten);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 1, "of the function");

    world.model(0, |m| {
        m.habits_mut().reset_under_way = Some(3600 * SECOND);
        m.reset();
        m.config_write(4, &[0x06, 0x04]);
    });
    assert_eq!(until_fatal(&world, &mut hca, 3 * SECOND), FatalCause::Interface(7));
    world.model(0, |m| m.habits_mut().reset_under_way = None);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 3, "the one above, and one to end it");
}

/// As after a hot reset: all of configuration space is lost, and the device may not reach memory before it has let go of the old life's.
#[test]
fn registers_are_made_readable_before_they_are_waited_for() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, hca_model::Hca::kill);
    until_fatal(&world, &mut hca, 3 * SECOND);
    world.later(0, 10 * SECOND, hca_model::Hca::revive);
    // The platform itself looks that bus mastering comes last.
    hca.recover().expect("recovers");
    assert!(world.model(0, |m| m.bus_master()));
    works(&world, &mut hca);
}

/// An HCA that has failed, being away from the bus for a while, and that cannot be reset.
fn failed_without_reset(world: &std::rc::Rc<common::World>) -> common::Driver {
    let mut hca = up(world);
    world.trouble(0).no_reset.set(true);
    let now = world.now();
    world.model(0, |m| m.habits_mut().away = Some(now + SECOND..now + 20 * SECOND));
    until_fatal(world, &mut hca, 5 * SECOND);
    hca
}

#[test]
fn a_function_that_cannot_be_reset_is_ended_by_its_firmware() {
    let world = world();
    let mut hca = failed_without_reset(&world);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 0);

    // Firmware that does not answer commands cannot.
    world.model(0, |m| {
        m.habits_mut().counter_pause = Some(0..u64::MAX);
        m.misbehaviour_mut().stall_command = Some(Opcode::QUERY_ISSI);
    });
    assert_eq!(until_fatal(&world, &mut hca, 80 * SECOND), FatalCause::Hung);
    world.model(0, |m| m.misbehaviour_mut().stall_command = Some(Opcode::TEARDOWN_HCA));
    for _ in 0..2 {
        assert_eq!(hca.recover(), Err(Error::NicInterface(0)));
    }
    world.model(0, |m| {
        m.habits_mut().counter_pause = None;
        m.misbehaviour_mut().stall_command = None;
    });
    world.trouble(0).no_reset.set(false);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
}

/// Firmware ends what a dead owner left when the next one enables the function, whose queues lie elsewhere.
#[test]
fn a_function_that_somebody_left_enabled_is_taken_over() {
    let world = world();
    let left = up(&world);
    let old = world.model(0, |m| m.census().total());
    assert!(old > 0);
    std::mem::forget(left);
    let storage = Box::leak(Box::new(HcaStorage::<{ common::BLOCKS }>::new()));
    let platform = world.platform(0);
    world.trouble(0).no_reset.set(true);
    let mut hca = driver_mlx::Hca::bring_up(
        platform,
        world.region(0),
        common::host_region(),
        storage.parts(),
        &Config::DEFAULT,
    )
    .expect("comes up");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 0);
    hca.tear_down().expect("torn down");
    assert_eq!(world.model(0, |m| (m.census().total(), m.pages().given())), (0, 0));
}

/// With firmware that does not do so, who cannot reset the function is told so, and does not go on.
#[test]
fn a_function_that_somebody_left_enabled_is_reset_or_refused() {
    let world = world();
    world.model(0, |m| m.habits_mut().no_take_over = true);
    std::mem::forget(up(&world));
    let storage = || Box::leak(Box::new(HcaStorage::<{ common::BLOCKS }>::new()));
    let platform = world.platform(0);
    world.trouble(0).no_reset.set(true);
    let refused = driver_mlx::Hca::bring_up(
        platform,
        world.region(0),
        common::host_region(),
        storage().parts(),
        &Config::DEFAULT,
    );
    let error = refused.err().expect("refused");
    assert!(matches!(error, Error::Command(refused) if refused.opcode == Opcode::ENABLE_HCA), "{error}");
    assert!(error.wants_reset());
    assert_eq!(world.model(0, |m| m.resets()), 0);
    world.trouble(0).no_reset.set(false);
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 1);
}

/// Waits that end early, as an interrupt of somebody else's does to them, are no shorter for it.
#[test]
fn time_is_counted_and_not_looks() {
    let world = world();
    let mut hca = up(&world);
    world.trouble(0).restless.set(true);
    world.model(0, |m| m.fail(HealthSyndrome(1)));
    until_fatal(&world, &mut hca, 3 * SECOND);
    // A neighbour has the gateway for a second, and the counter stands for four after that.
    world.write_config(0, VENDOR + 0x0c, 77);
    world.later(0, SECOND, |m| m.config_write(usize::from(VENDOR) + 0x0c, &[0; 4]));
    let now = world.now();
    world.model(0, |m| m.habits_mut().counter_pause = Some(now..now + 5 * SECOND));
    hca.recover().expect("recovers");
    assert_eq!(world.model(0, |m| m.resets()), 0, "the semaphore was to be had");
    assert!((world.now() - now) / SECOND >= 4);
    world.trouble(0).restless.set(false);
    works(&world, &mut hca);
}

/// Configuration space is out of reach for a moment, at any moment: neither the semaphore nor the gateway to it stays taken.
#[test]
fn what_is_shared_is_given_back_whatever_happens() {
    for length in [1, 2, 7] {
        let mut hits = 0;
        for first in 0..60 {
            let world = world();
            let mut hca = up(&world);
            world.model(0, |m| m.fail(HealthSyndrome(1)));
            until_fatal(&world, &mut hca, 3 * SECOND);
            let trouble = world.trouble(0);
            trouble.accesses.set(0);
            *trouble.failing.borrow_mut() = first..first + length;
            hca.recover().expect("recovers");
            hits += u32::from(trouble.accesses.get() > first);
            *trouble.failing.borrow_mut() = 0..0;
            assert_eq!(world.platform(0).read_config(VENDOR + 0x0c), Some(0), "access {first}: the gateway");
            assert_eq!(semaphore(&world), 0, "access {first}: the semaphore");
            works(&world, &mut hca);
        }
        assert!(hits > 20, "{hits}");
    }
}

/// A virtual function leaves the reset to the physical one, which writes down the card's state first.
#[test]
fn a_virtual_function_waits_for_its_physical_one() {
    let world = world();
    let config = Config { physical_function: false, recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    let mut hca = world.bring_up(0, &config).expect("comes up");
    world.model(0, |m| m.fail(HealthSyndrome(1)));
    until_fatal(&world, &mut hca, 3 * SECOND);
    let began = world.now();
    let bar = world.model(0, |m| m.bar());
    let reset = (7u32 << 8).to_be_bytes();
    world.later(0, 40 * SECOND, move |_| bar.write(init_seg::CMDQ_ADDR_L_SZ_OFFSET, &reset));
    hca.recover().expect("recovers");
    assert!((40..45).contains(&((world.now() - began) / SECOND)), "{} s", (world.now() - began) / SECOND);
    assert_eq!(world.model(0, |m| m.resets()), 1, "of the function, after that of the firmware");
    works(&world, &mut hca);
}

/// Memory that is not the region's goes back to its owner only when the device cannot reach it any more.
#[test]
fn foreign_memory_is_the_device_s_until_it_cannot_reach_it() {
    static mut MEMORY: [u8; 4096] = [0; 4096];
    for confinable in [false, true] {
        let world = world();
        let mut hca = up(&world);
        world.trouble(0).no_bus_master.set(!confinable);
        let pd = hca.alloc_pd().expect("a PD");
        // SAFETY: it is a static, which nobody else touches, and neither does the model.
        let key = unsafe { hca.register_foreign(pd, (&raw mut MEMORY).cast(), 4096, ALL, Base::Virtual) }
            .expect("a key");
        assert_eq!(world.mapped(0).len(), 1);
        world.model(0, |m| m.fail(HealthSyndrome(1)));
        let cause = until_fatal(&world, &mut hca, 3 * SECOND);
        let key = match hca.deregister(key) {
            Ok(()) => {
                assert!(confinable && !world.model(0, |m| m.bus_master()));
                None
            }
            Err(kept) => {
                assert!(!confinable && kept.error == Error::Fatal(cause));
                assert_eq!(world.mapped(0).len(), 1);
                Some(kept.value)
            }
        };
        // Bus mastering would stay off otherwise.
        world.trouble(0).no_bus_master.set(false);
        hca.recover().expect("recovers");
        if let Some(key) = key {
            hca.deregister(key).expect("the device was reset");
        }
        assert_eq!(world.mapped(0).len(), 0);
        works(&world, &mut hca);
    }
}

#[test]
fn a_dead_device_is_not_confined() {
    static mut MEMORY: [u8; 4096] = [0; 4096];
    let world = world();
    let mut hca = up(&world);
    let pd = hca.alloc_pd().expect("a PD");
    // SAFETY: it is a static, which nobody else touches, and neither does the model.
    let key = unsafe { hca.register_foreign(pd, (&raw mut MEMORY).cast(), 4096, ALL, Base::Virtual) }
        .expect("a key");
    world.model(0, hca_model::Hca::kill);
    until_fatal(&world, &mut hca, 3 * SECOND);
    let kept = hca.deregister(key).expect_err("nothing says that it has let go");
    assert_eq!(kept.error, Error::Fatal(FatalCause::LinkDead));
    world.model(0, hca_model::Hca::revive);
    hca.recover().expect("recovers");
    hca.deregister(kept.value).expect("given back");
    assert_eq!(world.mapped(0).len(), 0);
}

#[test]
fn a_recovery_that_was_not_enough_counts_as_a_failure() {
    let world = world();
    let mut hca = up(&world);
    for _ in 0..3 {
        hca.recover().expect("recovers");
        hca.recovery_failed();
        assert_eq!(hca.fatal(), Some(FatalCause::NotRecovered));
        assert_eq!(hca.alloc_pd(), Err(Error::Fatal(FatalCause::NotRecovered)));
    }
    assert_eq!(hca.recover(), Err(Error::RecoveryGivenUp { attempts: 3 }));
    // Nor does it make the next attempt wait.
    let mut other = world.bring_up(1, &Config::DEFAULT).expect("comes up");
    other.recover().expect("recovers");
    world.pass(60 * SECOND);
    other.recover().expect("recovers");
    other.recovery_failed();
    other.recover().expect("at once");
    assert!(matches!(other.recover(), Err(Error::RecoveryTooSoon { .. })));
}

#[test]
fn habits_do_not_matter_to_a_reset() {
    // A card on which `nic_interface` reads 1 until ENABLE_HCA is done, and commands take their time.
    let world = world();
    let mut hca = up(&world);
    world.model(0, |m| {
        *m.habits_mut() = Habits {
            disabled_until_enabled: true,
            start_interface: Some(mlx5_prm::value::NicInterface::DISABLED),
            slow_command: Some((Opcode::ENABLE_HCA, 2 * SECOND)),
            ..Habits::default()
        };
    });
    for round in 0..3 {
        world.model(0, |m| if round == 1 { m.reset() } else { m.fail(HealthSyndrome(1)) });
        until_fatal(&world, &mut hca, 3 * SECOND);
        hca.recover().expect("recovers");
        works(&world, &mut hca);
    }
}

/// The device reads as another driver's, while its queues still take what arrives.
fn lose_the_queue(world: &std::rc::Rc<common::World>, node: usize, hca: &mut common::Driver) {
    world.write_register(node, init_seg::CMDQ_ADDR_H_OFFSET, 0x55);
    assert_eq!(until_fatal(world, hca, 3 * SECOND), FatalCause::Forgotten);
}

#[test]
fn what_has_failed_writes_nothing_from_the_moment_it_is_told() {
    let world = world();
    let (mut a, mut b) = node::connected(&world, |_| ());
    b.qp.post_recv(&[b.sge(0, 4096)], 1).expect("room");
    lose_the_queue(&world, 1, &mut b.hca);
    a.put(0, &[9; 4096]);
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 4096)], 2, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    world.pass(SECOND);
    assert_eq!(b.get(0, 4096), [0; 4096], "the receive counts as flushed");
    assert!(!world.model(1, |m| m.bus_master()));
    b.hca.recover().expect("recovers");
    works(&world, &mut b.hca);
    std::mem::forget(a.hca);
}

/// Configuration space was out of reach when the device failed: the health poll goes on until it is not.
#[test]
fn what_could_not_be_kept_from_memory_is_later() {
    let world = world();
    let mut hca = up(&world);
    world.trouble(0).no_bus_master.set(true);
    lose_the_queue(&world, 0, &mut hca);
    let poll = |hca: &mut common::Driver| {
        world.pass(60 * SECOND);
        hca.poll(Instant::from_nanos(world.now()))
    };
    assert!(matches!(poll(&mut hca), Wake::At(_)));
    assert!(world.model(0, |m| m.bus_master()));
    world.trouble(0).no_bus_master.set(false);
    assert_eq!(poll(&mut hca), Wake::Idle);
    assert!(!world.model(0, |m| m.bus_master()));
}

/// A recovery that fails after the device has let go can be tried again, and once more, where the function cannot be reset.
#[test]
fn a_late_failure_is_no_last_one_where_the_function_cannot_be_reset() {
    let world = world();
    let mut hca = failed_without_reset(&world);
    // Firmware does not run on; then it refuses a step of bring-up.
    world.model(0, |m| m.habits_mut().counter_pause = Some(0..u64::MAX));
    let error = hca.recover().expect_err("stands");
    assert!(matches!(error, Error::Timeout { opcode: None, .. }), "{error}");
    world.model(0, |m| {
        m.habits_mut().counter_pause = None;
        m.habits_mut().refused_commands = vec![Opcode::INIT_HCA];
    });
    let error = hca.recover().expect_err("refused");
    assert!(matches!(error, Error::Command(refused) if refused.opcode == Opcode::INIT_HCA), "{error}");
    assert!(!world.model(0, |m| m.bus_master()));
    let left = world.model(0, |m| (m.life(), m.pages().given()));
    assert_eq!(left, (hca_model::device::Life::Disabled, 0), "what was begun is undone");
    world.model(0, |m| m.habits_mut().refused_commands = vec![]);
    hca.recover().expect("recovers at the third attempt");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 0);
}

/// Who was told that the device reaches no memory has it again: nothing switches bus mastering on before a reset.
#[test]
fn memory_that_was_given_back_is_not_reached_once_more() {
    static mut MEMORY: [u8; 4096] = [0; 4096];
    let world = world();
    let mut hca = up(&world);
    world.trouble(0).no_reset.set(true);
    let pd = hca.alloc_pd().expect("a PD");
    // SAFETY: it is a static, which nobody else touches, and neither does the model.
    let key = unsafe { hca.register_foreign(pd, (&raw mut MEMORY).cast(), 4096, ALL, Base::Virtual) }
        .expect("a key");
    let now = world.now();
    world.model(0, |m| m.habits_mut().away = Some(now + SECOND..now + 20 * SECOND));
    until_fatal(&world, &mut hca, 5 * SECOND);
    hca.deregister(key).expect("bus mastering is off");
    assert_eq!(hca.recover(), Err(Error::NicInterface(0)));
    assert!(!world.model(0, |m| m.bus_master()));
    world.trouble(0).no_reset.set(false);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
}

/// Storage that survives the HCA reports whether its region may be used for something else.
#[test]
fn storage_reports_a_region_that_the_device_may_still_access() {
    let storage = Box::leak(Box::new(HcaStorage::<{ common::BLOCKS }>::new()));
    assert!(!storage.region_in_use());
    let mut after = |stalled: Option<Opcode>, refused: Option<Opcode>, forget: bool| {
        let world = world();
        world.model(0, |m| {
            m.misbehaviour_mut().stall_command = stalled;
            m.habits_mut().refused_commands = refused.into_iter().collect();
        });
        let up = driver_mlx::Hca::bring_up(
            world.platform(0),
            world.region(0),
            common::host_region(),
            storage.parts(),
            &Config::DEFAULT,
        );
        let result = up.and_then(|hca| {
            if forget {
                std::mem::forget(hca);
                return Ok(());
            }
            hca.tear_down()
        });
        (result.is_ok(), storage.region_in_use())
    };
    assert_eq!(after(None, None, false), (true, false), "an orderly end");
    assert_eq!(after(None, None, true), (true, true), "it is still at work");
    assert_eq!(after(Some(Opcode::INIT_HCA), None, false), (false, true), "no answer to bring-up");
    assert_eq!(after(None, Some(Opcode::INIT_HCA), false), (false, false), "refused, and undone");
    assert_eq!(after(Some(Opcode::TEARDOWN_HCA), None, false), (false, true), "no answer to tear-down");
}
