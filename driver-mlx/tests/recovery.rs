//! A device that fails is noticed in time, reset, and brought up again; what its owner has of it stays sound meanwhile.

use crate::common;

use common::node::{self, ALL, Node};
use common::recovery::{SECOND, VENDOR, ready, semaphore, until_fatal, up, works, world};
use driver_mlx::{Base, Config, CqConfig, Error, FatalCause, Instant, QpConfig, SendFlags, SendOp, Step};
use mlx5_prm::init_seg;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;

#[test]
fn a_device_that_fell_off_the_bus_under_traffic_comes_back() {
    let world = world();
    let (mut a, mut b) = node::connected(&world, |_| ());
    a.put(0, &node::filled(1, 1, 4096));
    b.qp.post_recv(&[b.sge(0, 4096)], 1).expect("room");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 4096)], 2, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    world.model(0, hca_model::Hca::kill);
    assert_eq!(until_fatal(&world, &mut a.hca, 3 * SECOND), FatalCause::LinkDead);
    // It is away for another half minute.
    world.later(0, 30 * SECOND, hca_model::Hca::revive);
    a.hca.recover().expect("recovers");
    assert_eq!(a.hca.fatal(), None);
    assert_eq!(a.get(0, 4096), node::filled(1, 1, 4096), "buffers keep their content");

    // What belongs to the life before is refused, or given back without the device.
    let stale = driver_mlx::InitParams { port: 1, pkey_index: 0, access: ALL };
    assert_eq!(a.hca.modify_to_init(&mut a.qp, &stale), Err(Error::Stale));
    assert!(!a.hca.is_current(&a.key));
    let Node { mut hca, memory, key, qp, cq, .. } = a;
    ready(&world, &mut hca);
    let pd = hca.alloc_pd().expect("a PD");
    let again = hca.register(pd, &memory, ALL, Base::Virtual).expect("a key");
    hca.deregister(key).expect("given back");
    assert!(hca.free(memory).is_err_and(|kept| kept.error == Error::InUse), "the new key counts");
    hca.destroy_qp(qp).expect("given back");
    hca.destroy_cq(cq).expect("given back");
    hca.deregister(again).expect("given back");
    hca.dealloc_pd(pd).expect("ended");
    works(&world, &mut hca);
    hca.tear_down().expect("torn down");
}

#[test]
fn traffic_flows_again_over_the_same_memory() {
    let world = world();
    let (mut a, mut b) = node::connected(&world, |_| ());
    for round in 0..3u32 {
        world.pass(60 * SECOND);
        a.put(0, &node::filled(1, round, 4096));
        b.qp.post_recv(&[b.sge(0, 4096)], 1).expect("room");
        let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 4096)], 2, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        b.expect(&world, driver_mlx::CompletionKind::Receive);
        assert_eq!(b.get(0, 4096), node::filled(1, round, 4096));
        for node in [&mut a, &mut b] {
            node.hca.recover().expect("recovers");
        }
        for node in [&mut a, &mut b] {
            ready(&world, &mut node.hca);
            node.renew();
        }
        node::connect_one(&mut a, &mut b, 0);
        node::connect_one(&mut b, &mut a, 1);
    }
    a.end();
    b.end();
}

#[test]
fn firmware_that_asks_for_a_reset_gets_one() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, |m| m.fail(HealthSyndrome(1)));
    assert!(matches!(until_fatal(&world, &mut hca, 3 * SECOND), FatalCause::Syndrome { .. }));
    assert_eq!(hca.alloc_pd(), Err(Error::Fatal(hca.fatal().expect("failed"))));
    hca.recover().expect("recovers");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 0, "of the firmware, not of the function");
    assert_eq!(semaphore(&world), 0, "given back");
}

#[test]
fn a_neighbour_that_has_the_semaphore_goes_first() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, |m| m.fail(HealthSyndrome(1)));
    until_fatal(&world, &mut hca, 3 * SECOND);
    world.write_config(0, VENDOR + 0x04, 0x0a);
    world.write_config(0, VENDOR + 0x14, 77);
    world.write_config(0, VENDOR + 0x10, 1 << 31 | 0x20);
    let began = world.now();
    hca.recover().expect("recovers");
    let waited = (world.now() - began) / SECOND;
    assert!((60..65).contains(&waited), "it waited for the neighbour, {waited} s");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 1, "and reset its function when nothing came of it");
}

#[test]
fn a_reset_by_a_neighbour_is_noticed_and_used() {
    let world = world();
    let mut hca = up(&world);
    world.write_register(0, init_seg::CMDQ_ADDR_L_SZ_OFFSET, 7 << 8);
    let cause = until_fatal(&world, &mut hca, 3 * SECOND);
    assert!(matches!(cause, FatalCause::Interface(1 | 7)), "{cause}");
    hca.recover().expect("recovers");
    works(&world, &mut hca);
    assert_eq!(world.model(0, |m| m.resets()), 1, "what others have done is no proof");
}

#[test]
fn a_function_level_reset_by_somebody_else_is_noticed() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, hca_model::Hca::reset);
    // Whoever did it has put configuration space back.
    world.model(0, |m| m.config_write(4, &[0x06, 0x04]));
    assert_eq!(until_fatal(&world, &mut hca, 3 * SECOND), FatalCause::Forgotten);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
    // Or has not: its registers are out of reach until the driver's platform does.
    world.model(0, hca_model::Hca::reset);
    assert_eq!(until_fatal(&world, &mut hca, 3 * SECOND), FatalCause::LinkDead);
    hca.recover().expect("recovers");
    works(&world, &mut hca);
}

#[test]
fn a_link_that_was_away_is_made_to_let_go_first() {
    let world = world();
    let mut hca = up(&world);
    let memory = hca.alloc(8192, 4096).expect("memory");
    let pd = hca.alloc_pd().expect("a PD");
    let key = hca.register(pd, &memory, ALL, Base::Virtual).expect("a key");
    let now = world.now();
    world.model(0, |m| m.habits_mut().away = Some(now + SECOND..now + 20 * SECOND));
    assert_eq!(until_fatal(&world, &mut hca, 5 * SECOND), FatalCause::LinkDead);
    hca.recover().expect("recovers");
    assert_eq!(
        world.model(0, |m| m.census().total()),
        3,
        "event queues and their UAR, and nothing of the life before"
    );
    // What the driver writes to `nic_interface` reads as written, whether firmware has let go or not.
    assert_eq!(world.model(0, |m| m.resets()), 1, "by a reset of the function");
    hca.deregister(key).expect("given back");
    hca.free(memory).expect("given back");
    works(&world, &mut hca);
}

#[test]
fn firmware_that_hangs_is_noticed_in_bounded_time() {
    let world = world();
    let mut hca = up(&world);
    let began = world.now();
    world.model(0, |m| {
        m.habits_mut().counter_pause = Some(began..u64::MAX);
        m.misbehaviour_mut().stall_command = Some(Opcode::QUERY_ISSI);
    });
    assert_eq!(until_fatal(&world, &mut hca, 80 * SECOND), FatalCause::Hung);
    // Nobody has asked for anything; it is the health poll that found out.
    world.model(0, |m| {
        m.habits_mut().counter_pause = None;
        m.misbehaviour_mut().stall_command = None;
    });
    hca.recover().expect("recovers");
    works(&world, &mut hca);
}

#[test]
fn a_counter_that_stands_is_no_failure_while_commands_are_answered() {
    let world = world();
    let mut hca = up(&world);
    let began = world.now();
    world.model(0, |m| m.habits_mut().counter_pause = Some(began..u64::MAX));
    for _ in 0..200 {
        let _ = hca.poll(Instant::from_nanos(world.now()));
        world.pass(SECOND);
    }
    assert_eq!(hca.fatal(), None);
}

#[test]
fn a_device_that_never_comes_back_is_given_up() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, hca_model::Hca::kill);
    until_fatal(&world, &mut hca, 3 * SECOND);
    let began = world.now();
    for _ in 0..3 {
        assert_eq!(hca.recover(), Err(Error::NotPresent));
        assert!(hca.fatal().is_some());
    }
    assert!(world.now() - began < 200 * SECOND);
    let error = hca.recover().expect_err("given up");
    assert_eq!(error, Error::RecoveryGivenUp { attempts: 3 });
    assert!(error.to_string().contains("restart the machine"), "{error}");
}

#[test]
fn firmware_that_does_not_run_is_told_of() {
    let world = world();
    let mut hca = up(&world);
    world.model(0, |m| m.fail(HealthSyndrome(1)));
    until_fatal(&world, &mut hca, 3 * SECOND);
    world.model(0, |m| m.habits_mut().counter_pause = Some(0..u64::MAX));
    let error = hca.recover().expect_err("stands");
    assert!(
        matches!(error, Error::Timeout { step: Step::Recovery, opcode: None, waited_ms: 5_000..5_050, .. }),
        "{error}"
    );
    assert_eq!(hca.alloc(4096, 4096).err(), Some(Error::Fatal(hca.fatal().expect("still failed"))));
    world.model(0, |m| m.habits_mut().counter_pause = None);
    hca.recover().expect("recovers at the second attempt");
    works(&world, &mut hca);
}

#[test]
fn not_again_at_once() {
    let world = world();
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    hca.recover().expect("recovers");
    world.pass(20 * SECOND);
    let error = hca.recover().expect_err("too soon");
    assert!(matches!(error, Error::RecoveryTooSoon { wait_ms: 39_000..=40_000 }), "{error}");
    world.pass(40 * SECOND);
    hca.recover().expect("recovers");
}

#[test]
fn nothing_stays_taken_however_often_it_fails() {
    let world = world();
    let mut hca = up(&world);
    let mut free = None;
    for round in 0..20 {
        ready(&world, &mut hca);
        let buffer = hca.alloc(64 << 10, 4096).expect("memory");
        let pd = hca.alloc_pd().expect("a PD");
        let key = hca.register(pd, &buffer, ALL, Base::Virtual).expect("a key");
        let cq = hca.create_cq(&CqConfig { entries: 300, eq: 0 }).expect("a CQ");
        let config = QpConfig { blueflame: true, ..QpConfig::rc(pd, cq.number()) };
        let qp = hca.create_qp(&config).expect("a QP");
        match round % 3 {
            0 => world.model(0, hca_model::Hca::kill),
            1 => world.model(0, |m| m.fail(HealthSyndrome(1))),
            // A command is not answered, and its object's memory lost, before the device fails.
            _ => {
                world.model(0, |m| m.misbehaviour_mut().stall_command = Some(Opcode::CREATE_CQ));
                assert!(hca.create_cq(&CqConfig { entries: 300, eq: 0 }).is_err());
                world.model(0, |m| {
                    m.misbehaviour_mut().stall_command = None;
                    m.fail(HealthSyndrome(1));
                });
            }
        }
        until_fatal(&world, &mut hca, 5 * SECOND);
        if round % 2 == 0 {
            // What is given back now is not given out before the device was reset.
            hca.destroy_qp(qp).expect("given back");
            hca.destroy_cq(cq).expect("given back");
            hca.deregister(key).expect("given back");
            hca.free(buffer).expect("given back");
            assert!(matches!(hca.alloc(4096, 4096), Err(Error::Fatal(_))));
            world.model(0, hca_model::Hca::revive);
            hca.recover().expect("recovers");
        } else {
            world.model(0, hca_model::Hca::revive);
            hca.recover().expect("recovers");
            hca.destroy_qp(qp).expect("given back");
            hca.destroy_cq(cq).expect("given back");
            hca.deregister(key).expect("given back");
            hca.free(buffer).expect("given back");
        }
        ready(&world, &mut hca);
        assert_eq!(*free.get_or_insert(hca.free_bytes()), hca.free_bytes(), "round {round}");
    }
    hca.tear_down().expect("torn down");
}
