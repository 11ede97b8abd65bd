//! What real cards do and an obliging emulator does not: the driver comes up all the same, and goes on.

use crate::common;

use common::{Driver, World, node};
use driver_mlx::report::Report;
use driver_mlx::{
    AsyncEvent, CompletionKind, Config, CqConfig, Duration, Error, FatalCause, HcaStorage, HealthWarning,
    Instant, LinkState, MemoryRegion, Pd, QpConfig, SendFlags, SendOp, SrqConfig, Step, Wake,
};
use hca_model::card::{CONNECTX_5, Card};
use hca_model::{Habits, Profile};
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CqeSyndrome, HealthSyndrome};
use mlx5_prm::value::{NicInterface, RegisterId};
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;

fn world(habits: Habits) -> Rc<World> {
    World::new([Profile { habits, ..Profile::node(0) }], FabricConfig::default())
}

fn up(habits: Habits) -> (Rc<World>, Driver) {
    let world = world(habits);
    let hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    (world, hca)
}

/// Polls as it is asked to, for so many nanoseconds, and gives the events.
fn live(world: &Rc<World>, hca: &mut Driver, nanoseconds: u64) -> Vec<AsyncEvent> {
    let end = world.now() + nanoseconds;
    let mut events = Vec::new();
    while world.now() < end {
        let now = Instant::from_nanos(world.now());
        let next = match hca.poll(now) {
            Wake::At(next) => next.as_nanos().clamp(world.now() + 1, end),
            _ => end,
        };
        world.pass(next - world.now());
        events.extend(std::iter::from_fn(|| hca.next_event()));
    }
    events
}

fn health(events: &[AsyncEvent]) -> Vec<HealthWarning> {
    events
        .iter()
        .filter_map(|e| if let AsyncEvent::Health(warning) = e { Some(*warning) } else { None })
        .collect()
}

#[test]
fn a_neighbour_s_logged_fault_is_told_once_and_tolerated() {
    let syndrome = HealthSyndrome(1);
    let (world, mut hca) = up(Habits { neighbour_syndrome: Some(syndrome), ..Habits::default() });
    let events = live(&world, &mut hca, 60 * SECOND);
    assert_eq!(hca.fatal(), None);
    assert_eq!(health(&events), [HealthWarning::Syndrome { syndrome, extended: 0 }]);
    // It goes and another comes.
    world.model(0, |m| m.habits_mut().neighbour_syndrome = None);
    assert_eq!(health(&live(&world, &mut hca, 10 * SECOND)), []);
    let syndrome = HealthSyndrome(8);
    world.model(0, |m| m.habits_mut().neighbour_syndrome = Some(syndrome));
    let events = live(&world, &mut hca, 10 * SECOND);
    assert_eq!(health(&events), [HealthWarning::Syndrome { syndrome, extended: 0 }]);
    hca.alloc_pd().expect("still works");
}

#[test]
fn a_function_is_disabled_until_it_is_enabled() {
    // Firmware takes longer over ENABLE_HCA than the distance of health polls.
    let slow = Some((Opcode::ENABLE_HCA, 7 * SECOND));
    let habits = Habits { disabled_until_enabled: true, slow_command: slow, ..Habits::default() };
    let (world, mut hca) = up(habits);
    assert_eq!(health(&live(&world, &mut hca, 10 * SECOND)), []);
    assert_eq!(hca.fatal(), None);
}

#[test]
fn a_pause_of_the_health_counter_is_told_and_tolerated() {
    let (world, mut hca) = up(Habits::default());
    let now = world.now();
    world.model(0, |m| m.habits_mut().counter_pause = Some(now + SECOND..now + 11 * SECOND));
    let events = live(&world, &mut hca, 30 * SECOND);
    assert_eq!(health(&events), [HealthWarning::CounterStands]);
    assert_eq!(hca.fatal(), None);
    hca.alloc_pd().expect("still works");
}

#[test]
fn looking_often_is_no_fault_of_the_device() {
    let (world, mut hca) = up(Habits::default());
    let now = Instant::from_nanos(world.now());
    for _ in 0..10 {
        assert_eq!(hca.check_health(now), None);
    }
    assert_eq!(health(&live(&world, &mut hca, SECOND)), []);
}

#[test]
fn a_syndrome_with_a_wish_for_a_reset_is_fatal() {
    let (world, mut hca) = up(Habits::default());
    world.model(0, |m| m.fail(HealthSyndrome(1)));
    let events = live(&world, &mut hca, 5 * SECOND);
    let cause = FatalCause::Syndrome { syndrome: HealthSyndrome(1), extended: 0 };
    assert_eq!(hca.fatal(), Some(cause));
    assert!(events.contains(&AsyncEvent::Fatal(cause)), "{events:?}");
    let state = hca.device_state().expect("it answers");
    assert!(state.health.reset_wanted && state.health.severity_valid);
    let text = state.health.to_string();
    assert!(text.contains("asks for a reset (rfr)") && text.contains("assert_var 0x"), "{text}");
}

#[test]
fn it_starts_from_every_state_of_the_interface() {
    for state in [NicInterface::FULL_DRIVER, NicInterface::DISABLED, NicInterface::NO_DRAM_NIC] {
        let (_, mut hca) = up(Habits { start_interface: Some(state), ..Habits::default() });
        hca.alloc_pd().expect("works");
    }
    let (world, _) = up(Habits { reset_under_way: Some(8 * SECOND), ..Habits::default() });
    assert!(world.now() > 8 * SECOND, "it waited for the reset's end");
    let world = self::world(Habits { reset_under_way: Some(3600 * SECOND), ..Habits::default() });
    let error = world.bring_up(0, &Config::DEFAULT).err();
    assert_eq!(error, Some(Error::NicInterface(7)));
    assert!((60 * SECOND..70 * SECOND).contains(&world.now()));
}

#[test]
fn a_function_that_stays_disabled_is_told_of() {
    let world = world(Habits { stays_disabled: true, ..Habits::default() });
    assert_eq!(world.bring_up(0, &Config::DEFAULT).err(), Some(Error::NicInterface(1)));
    world.model(0, |m| assert_eq!((m.life(), m.pages().given()), (hca_model::device::Life::Disabled, 0)));
}

#[test]
fn firmware_that_starts_again_after_a_fault_may_take_its_time() {
    let world = world(Habits { initializing: Some(1000 * SECOND), ..Habits::default() });
    let error = world.bring_up(0, &Config::DEFAULT).err();
    assert!(matches!(error, Some(Error::Timeout { step: Step::Initializing, .. })), "{error:?}");
    assert!((120 * SECOND..130 * SECOND).contains(&world.now()));
    let config = Config { recovery: true, ..Config::DEFAULT };
    world.bring_up(0, &config).expect("comes up");
    assert!((1000 * SECOND..1010 * SECOND).contains(&world.now()));
}

#[test]
fn registers_that_are_away_for_a_moment_come_back() {
    let (_, _) = up(Habits { away: Some(0..SECOND), ..Habits::default() });
    let away = Habits { away: Some(0..30 * SECOND), ..Habits::default() };
    let error = world(away.clone()).bring_up(0, &Config::DEFAULT).err();
    assert_eq!(error, Some(Error::NotPresent));
    // After a failure a reset may be under way.
    let config = Config { recovery: true, ..Config::DEFAULT };
    world(away).bring_up(0, &config).expect("it comes back");
}

#[test]
fn an_owner_that_vanished_is_no_obstacle() {
    let (world, hca) = up(Habits::default());
    let left = hca.device_state().expect("it answers");
    assert!(left.left_running());
    std::mem::forget(hca);
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up again");
    hca.alloc_pd().expect("works");
    let _ = hca.poll(Instant::from_nanos(world.now()));
    assert_eq!((hca.fatal(), hca.firmware_pages()), (None, world.model(0, |m| m.pages().given())));
}

#[test]
fn the_device_says_how_long_things_take() {
    // 200 s for a command, 3 s between health polls.
    let habits = Habits {
        cmd_q_init_to: 0x2000_0005,
        cmd_exec_to: 0x2000_00c8,
        default_timeouts: vec![(0x14, 3000)],
        ..Habits::default()
    };
    let (world, mut hca) = up(habits.clone());
    let polls = hca.counters().health_polls;
    live(&world, &mut hca, 30 * SECOND);
    assert_eq!(hca.counters().health_polls - polls, 10);
    world.model(0, |m| m.misbehaviour_mut().stall_command = Some(Opcode::ALLOC_PD));
    let error = hca.alloc_pd().err();
    assert!(matches!(error, Some(Error::Timeout { waited_ms: 200_000..201_000, .. })), "{error:?}");
    // A device that announces times and then refuses the register keeps the defaults.
    let refused = Habits { refused_registers: vec![RegisterId::DTOR], ..habits };
    let (world, mut hca) = up(refused);
    let polls = hca.counters().health_polls;
    live(&world, &mut hca, 30 * SECOND);
    assert_eq!(hca.counters().health_polls - polls, 15);
}

#[test]
fn the_device_says_how_long_it_takes_in_the_command_queue() {
    let again = |cmd_q_init_to| {
        let initializing_again = Some(20 * SECOND);
        let world = world(Habits { cmd_q_init_to, initializing_again, ..Habits::default() });
        let began = world.now();
        let error = world.bring_up(0, &Config::DEFAULT).err();
        (error, (world.now() - began) / SECOND)
    };
    // 30 s.
    assert_eq!(again(0x2000_001e), (None, 20));
    let (error, now) = again(0);
    assert!(matches!(error, Some(Error::Timeout { step: Step::CommandQueue, .. })), "{error:?}");
    assert!(now < 10, "Linux's 2 s, and nothing to wait for behind them: {now} s");
}

#[test]
fn a_command_may_take_seconds() {
    let (world, mut hca) =
        up(Habits { slow_command: Some((Opcode::ALLOC_PD, 20 * SECOND)), ..Habits::default() });
    let began = world.now();
    hca.alloc_pd().expect("in time");
    assert!(world.now() - began >= 20 * SECOND);
}

#[test]
fn registers_that_a_function_does_not_own_are_no_obstacle() {
    let refused = vec![RegisterId::HOST_ENDIANNESS, RegisterId::PAOS, RegisterId::PMTU, RegisterId::PTYS];
    let (_, mut hca) = up(Habits { refused_registers: refused, ..Habits::default() });
    // The MTU is that of the management agent.
    assert_eq!(hca.port().expect("a port").mtu.bytes(), 4096);
}

#[test]
fn a_port_that_was_switched_off_is_switched_on_by_who_owns_it() {
    for (physical_function, after) in [(true, true), (false, false)] {
        let world = world(Habits::default());
        world.model(0, |m| m.port_mut().set_admin(false));
        let config = Config { physical_function, ..Config::DEFAULT };
        world.bring_up(0, &config).expect("comes up");
        assert_eq!(world.model(0, |m| m.link_is_up()), after);
        assert_eq!(world.complaints(0), [""; 0]);
    }
    // Firmware that does not let it is no obstacle.
    for habits in [
        Habits { read_only_registers: vec![RegisterId::PAOS], ..Habits::default() },
        Habits { refused_registers: vec![RegisterId::PAOS], ..Habits::default() },
    ] {
        let world = self::world(habits);
        world.model(0, |m| m.port_mut().set_admin(false));
        let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
        assert_eq!(hca.port().expect("a port").state, LinkState::Down);
    }
}

#[test]
fn an_unexpected_port_is_not_the_end() {
    for (oper_mtu, mtu) in [(0, 256), (255, 256), (1500, 1024), (4200, 4096)] {
        let (_, mut hca) = up(Habits { oper_mtu: Some(oper_mtu), ..Habits::default() });
        assert_eq!(hca.port().expect("a port").mtu.bytes(), mtu);
    }
    let world = world(Habits { vport_state: Some(9), unset_lid_is_ffff: true, ..Habits::default() });
    world.model(0, |m| m.port_mut().set_cable(false));
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    let port = hca.port().expect("a port");
    assert_eq!((port.state, port.lid().get()), (LinkState::Down, 0));
}

#[test]
fn a_function_s_own_port_counts_and_not_the_card_s() {
    let habits = Habits { port_state: Some(1), grh_required: true, ..Habits::default() };
    let world =
        World::new([Profile::node(0), Profile { habits, ..Profile::node(1) }], FabricConfig::default());
    // The link is Active for this function, though the field of the card says Down.
    let mut hca = world.ready(1);
    assert!(hca.port().expect("a port").infiniband().expect("InfiniBand").grh_required);
}

/// As a hypervisor hands it on before it has named it: no GUIDs, no LID, no subnet management agent, and nothing to write to.
#[test]
fn a_virtual_function_without_a_name_comes_up() {
    let own = vec![RegisterId::HOST_ENDIANNESS, RegisterId::PAOS, RegisterId::PMTU, RegisterId::PTYS];
    for refused_registers in [vec![], vec![RegisterId::PMTU, RegisterId::PTYS, RegisterId::PVLC]] {
        let habits = Habits {
            read_only_registers: own.clone(),
            refused_registers,
            refused_commands: vec![Opcode::MAD_IFC],
            grh_required: true,
            unset_lid_is_ffff: true,
            ..Habits::default()
        };
        let profile = Profile { habits, node_guid: 0, port_guid: 0, ..Profile::node(0) };
        let world = World::new([profile], FabricConfig::default());
        world.model(0, |m| m.port_mut().set_cable(false));
        let config = Config { physical_function: false, ..Config::DEFAULT };
        let mut hca = world.bring_up(0, &config).expect("comes up");
        let port = hca.port().expect("a port");
        assert_eq!((port.state, port.lid().get(), port.port_guid.get()), (LinkState::Down, 0, 0));
        assert!(port.infiniband().expect("InfiniBand").grh_required);
        assert_eq!(hca.gid(0).expect("a GID").interface_id(), 0);
    }
}

#[test]
fn pages_are_for_the_function_that_firmware_names() {
    for (pages_function, embedded_cpu) in [(5, false), (0, true), (0x7ffe, true)] {
        let (world, mut hca) = up(Habits { pages_function, embedded_cpu, ..Habits::default() });
        let pd = hca.alloc_pd().expect("a PD");
        let keys = make_keys(&mut hca, pd, 600);
        assert_eq!(hca.firmware_pages(), world.model(0, |m| m.pages().given()));
        keys.into_iter().for_each(|key| hca.deregister(key).expect("deregistered"));
        hca.dealloc_pd(pd).expect("ended");
        hca.tear_down().expect("torn down");
        assert_eq!(world.complaints(0), [""; 0]);
        assert_eq!(world.model(0, |m| m.pages().given()), 0);
    }
}

#[test]
fn pages_of_other_functions_are_kept_apart() {
    for announces_ends in [true, false] {
        let mut profile = Profile::node(0);
        if !announces_ends {
            let bit = cmd_hca_cap::release_all_pages.bit_offset;
            profile.misbehaviour.hidden_capabilities.push((bit as usize / 32 * 4, 0x8000_0000 >> (bit % 32)));
        }
        let world = World::new([profile], FabricConfig::default());
        let mut hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
        let own = hca.firmware_pages();
        for wanted in [vec![(3, 40), (7, 5)], vec![(3, 0), (7, 5)], vec![(3, 12), (7, 0)]] {
            world.model(0, |m| m.habits_mut().other_functions = wanted.clone());
            live(&world, &mut hca, 10 * SECOND);
            let others: u32 = wanted.iter().map(|(_, pages)| pages).sum();
            assert_eq!(hca.firmware_pages(), own + others, "{announces_ends} {wanted:?}");
            assert_eq!(world.model(0, |m| m.pages().given()), own);
        }
        hca.alloc_pd().and_then(|pd| hca.dealloc_pd(pd)).expect("still works");
        hca.tear_down().expect("torn down");
        assert_eq!(world.complaints(0), [""; 0]);
    }
}

#[test]
fn pages_that_firmware_offers_back_are_no_error() {
    let habits = Habits { spare_pages: 3, ..Habits::default() };
    let world = World::new([Profile { boot_pages: 0, habits, ..Profile::node(0) }], FabricConfig::default());
    let hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
    assert_eq!(hca.firmware_pages(), world.model(0, |m| m.pages().given()));
}

/// Whoever asks for pages that are not there is answered too.
#[test]
fn pages_are_refused_to_the_function_that_asks() {
    for (pages_function, embedded_cpu) in [(0, false), (5, true)] {
        let world = world(Habits { pages_function, embedded_cpu, ..Habits::default() });
        let config = Config { firmware_reserve: 0, ..Config::DEFAULT };
        let mut hca = world.bring_up(0, &config).expect("comes up");
        let pd = hca.alloc_pd().expect("a PD");
        let memory = hca.alloc(4096, 4096).expect("memory");
        while hca.alloc(4096, 4096).is_ok() {}
        let rights = driver_mlx::Access::LOCAL_WRITE;
        let error =
            std::iter::repeat_with(|| hca.register(pd, &memory, rights, driver_mlx::Base::Virtual).err());
        let error = error.take(600).flatten().next().expect("firmware has no memory for so many");
        assert!(matches!(error, Error::Command(refused) if refused.opcode == Opcode::CREATE_MKEY), "{error}");
        assert!(hca.counters().page_requests_refused > 0);
        let refused = |event| matches!(event, AsyncEvent::PagesRefused { needed: 16, available: 0 });
        assert!(std::iter::from_fn(|| hca.next_event()).any(refused));
        let misnamed = |line: &String| line.contains("function_id");
        assert!(!world.complaints(0).iter().any(misnamed), "{:?}", world.complaints(0));
    }
}

fn make_keys(hca: &mut Driver, pd: Pd, count: usize) -> Vec<MemoryRegion> {
    let memory = hca.alloc(4096, 4096).expect("memory");
    let keys = (0..count).map(|_| {
        hca.register(pd, &memory, driver_mlx::Access::LOCAL_WRITE, driver_mlx::Base::Virtual).expect("a key")
    });
    keys.collect()
}

#[test]
fn firmware_gets_pages_when_consumers_have_taken_all_they_could() {
    let (_, mut hca) = up(Habits::default());
    let pd = hca.alloc_pd().expect("a PD");
    let memory = hca.alloc(4096, 4096).expect("memory");
    while hca.alloc(4096, 4096).is_ok() {}
    assert!(hca.free_bytes() >= 64 * 4096, "{}", hca.free_bytes());
    // Each 256 objects want 16 pages more.
    for key in 0..600 {
        let made = hca.register(pd, &memory, driver_mlx::Access::LOCAL_WRITE, driver_mlx::Base::Virtual);
        assert!(made.is_ok(), "key {key}: {made:?}");
    }
    assert_eq!(hca.counters().page_requests_refused, 0);
}

#[test]
fn fifty_thousand_pages_are_given_and_come_back() {
    const BLOCKS: usize = 65_536;
    let profile = Profile {
        init_pages: 50_000,
        habits: Habits { pages_function: 3, ..Habits::default() },
        ..Profile::node(0)
    };
    let world = World::with_memory([profile], FabricConfig::default(), BLOCKS * 4096);
    let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
    let hca = driver_mlx::Hca::bring_up(
        world.platform(0),
        world.region(0),
        common::host_region(),
        storage.parts(),
        &Config::DEFAULT,
    )
    .expect("comes up");
    assert!(hca.firmware_pages() >= 50_006);
    hca.tear_down().expect("torn down");
    assert_eq!(world.complaints(0), [""; 0]);
}

#[test]
fn atomics_are_offered_only_where_they_count_right() {
    let atomic = |habits| up(habits).1.caps().atomic;
    assert!(atomic(Habits::default()));
    assert!(!atomic(Habits { no_atomic_byte_order: true, ..Habits::default() }), "operands would be swapped");
    assert!(!atomic(Habits { atomics: Some((3, 0x10)), ..Habits::default() }), "no 8 bytes");
    assert!(!atomic(Habits { atomics: Some((1, 8)), ..Habits::default() }), "no fetch-and-add");
    // Nobody is let in by a key that allows them.
    let habits = Habits { no_atomic_byte_order: true, ..Habits::default() };
    let world =
        World::new([Profile { habits, ..Profile::node(0) }, Profile::node(1)], FabricConfig::default());
    let [mut a, mut b] = [0, 1].map(|index| node::Node::new(&world, index, |_| ()));
    a.init();
    let towards = node::towards(&mut b, 0);
    let refused = a.hca.modify_to_rtr(&mut a.qp, &towards);
    assert_eq!(refused, Err(Error::MissingCapability("atomic")));
}

/// Both kinds of receive queues, each with room for more SGEs than are posted.
#[test]
fn scatter_lists_end_with_the_key_that_the_device_names() {
    for (terminator, shared) in [(None, false), (Some(0x7700), false), (Some(0x7700), true)] {
        let habits = Habits { terminator, ..Habits::default() };
        let profile = |index| Profile { habits: habits.clone(), ..Profile::node(index) };
        let world = World::new([profile(0), profile(1)], FabricConfig::default());
        let [a, mut b] = [0, 1].map(|index| node::Node::new(&world, index, |config| config.max_recv_sge = 3));
        let mut srq = shared.then(|| {
            let srq = b.hca.create_srq(&SrqConfig { pd: b.pd, max_wr: 16, max_sge: 3 }).expect("an SRQ");
            let config = QpConfig { srq: Some(srq.number()), ..QpConfig::rc(b.pd, b.cq.number()) };
            let taker = b.hca.create_qp(&config).expect("a QP");
            b.hca.destroy_qp(std::mem::replace(&mut b.qp, taker)).expect("destroyed");
            srq
        });
        let (mut a, mut b) = node::connect_both(a, b);
        a.put(0, &[7; 200]);
        let mut send = |b: &mut node::Node, len| {
            let list = [b.sge(0, 100)];
            match &mut srq {
                Some(srq) => {
                    srq.post_recv(&list, 1).expect("room");
                    srq.ring();
                }
                None => b.qp.post_recv(&list, 1).expect("room"),
            }
            let doorbell =
                a.qp.post_send(SendOp::Send, &[a.sge(0, len)], 2, SendFlags::SIGNALED).expect("room");
            a.qp.ring(doorbell);
            let cqe = b.completion(&world);
            let retired = srq.as_mut().map_or_else(|| b.qp.retire(&cqe), |srq| srq.retire(&cqe));
            assert_eq!(node::id(retired), Some(1));
            cqe
        };
        let cqe = send(&mut b, 100);
        assert_eq!(cqe.kind(), CompletionKind::Receive, "{terminator:?} {shared}: {cqe:?}");
        assert_eq!(b.get(0, 101), [&[7; 100][..], &[0]].concat());
        // A list that is too short must end where it ends, and not go on behind.
        let cqe = send(&mut b, 200);
        assert_eq!(cqe.kind(), CompletionKind::ReceiveError, "{terminator:?} {shared}");
        let syndrome = cqe.error().map(|error| error.syndrome);
        assert_eq!(syndrome, Some(CqeSyndrome::LOCAL_LENGTH_ERR), "{terminator:?} {shared}");
    }
}

#[test]
fn no_more_objects_than_their_events_have_room_for() {
    let world = world(Habits::default());
    let config = Config { log_async_eq_size: 7, ..Config::DEFAULT };
    let mut hca = world.bring_up(0, &config).expect("comes up");
    let pd = hca.alloc_pd().expect("a PD");
    let cq = hca.create_cq(&CqConfig { entries: 16, eq: 0 }).expect("a CQ");
    let mut qps = Vec::new();
    let error = loop {
        match hca.create_qp(&QpConfig::rc(pd, cq.number())) {
            Ok(qp) => qps.push(qp),
            Err(error) => break error,
        }
    };
    assert_eq!((qps.len(), error), (31, Error::Limit { what: "log_async_eq_size", asked: 65, limit: 64 }));
    // One that goes makes room for another.
    hca.destroy_qp(qps.remove(0)).expect("destroyed");
    hca.create_qp(&QpConfig::rc(pd, cq.number())).expect("room");
}

/// Each connection would send one when its first packet comes before its owner has made it ready to send.
#[test]
fn a_packet_before_the_last_step_sends_no_event() {
    let world = node::world(FabricConfig::default());
    let [mut a, mut b] = [0, 1].map(|index| node::Node::new(&world, index, |_| ()));
    node::connect_one(&mut a, &mut b, 0);
    b.init();
    let towards = node::towards(&mut a, 0);
    b.hca.modify_to_rtr(&mut b.qp, &towards).expect("RTR");
    b.qp.post_recv(&[b.sge(0, 64)], 1).expect("room");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 64)], 2, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    b.expect(&world, CompletionKind::Receive);
    let _ = b.hca.poll(Instant::from_nanos(world.now()));
    let of_qp = |event| matches!(event, AsyncEvent::Qp { .. });
    assert!(!std::iter::from_fn(|| b.hca.next_event()).any(of_qp));
}

/// Fewer objects then.
#[test]
fn an_event_queue_is_no_longer_than_the_device_allows() {
    static SMALL: Card = Card { capabilities: &[(cmd_hca_cap::log_max_eq_sz, 9)], ..CONNECTX_5 };
    let world = World::new([Profile::of(&SMALL, 0)], FabricConfig::default());
    // The device would refuse either of both queues.
    let config = Config { log_eq_size: 10, ..Config::DEFAULT };
    let mut hca = world.bring_up(0, &config).expect("comes up");
    let (pd, cq) = (hca.alloc_pd(), hca.create_cq(&CqConfig { entries: 16, eq: 0 }));
    let config = QpConfig::rc(pd.expect("a PD"), cq.expect("a CQ").number());
    let error = std::iter::repeat_with(|| hca.create_qp(&config).err()).take(300).flatten().next();
    assert_eq!(error, Some(Error::Limit { what: "log_async_eq_size", asked: 449, limit: 448 }));
}

#[test]
fn steps_are_as_before_whatever_is_optional() {
    let (_, hca) = up(Habits { cmd_q_init_to: 0x2000_0002, ..Habits::default() });
    assert!(hca.steps().iter().any(|step| step.step == Step::Port));
    assert!(hca.steps().iter().all(|step| step.took < Duration::from_secs(1)));
}

#[test]
fn a_failed_bring_up_leaves_a_report() {
    let habits = Habits {
        refused_commands: vec![Opcode::INIT_HCA],
        neighbour_syndrome: Some(HealthSyndrome(8)),
        ..Habits::default()
    };
    let world = world(habits);
    let mut storage = HcaStorage::<{ common::BLOCKS }>::new();
    let platform = world.platform(0);
    let bar = driver_mlx::Platform::bar(&platform);
    let made = driver_mlx::Hca::bring_up(
        platform,
        world.region(0),
        common::host_region(),
        storage.parts(),
        &Config::DEFAULT,
    );
    let error = made.err().expect("refused");
    let text = Report::new(&error, bar, storage.history()).to_string();
    for part in [
        "failed: INIT_HCA (op_mod 0x0) at step init_hca: status ",
        "device: firmware 16.",
        "nic_interface 0",
        "health: synd unrecoverable hardware error",
        "assert_var 0x00000000",
        "step init_hca\n",
        "INIT_HCA op_mod 0x0: status ",
        "ENABLE_HCA op_mod 0x0: ok, ",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(text.find("ENABLE_HCA op_mod").expect("there") < text.find("INIT_HCA op_mod").expect("there"));
}

#[test]
fn an_emergency_stop_ends_dma_in_the_middle_of_everything() {
    let world = World::new([Profile::node(0), Profile::node(1)], FabricConfig::default());
    let (mut a, b) = node::connected(&world, |_| ());
    let (raddr, rkey) = b.remote(0);
    a.put(0, &[9; 4096]);
    let doorbell =
        a.qp.post_send(SendOp::Write { raddr, rkey }, &[a.sge(0, 4096)], 1, SendFlags::SIGNALED)
            .expect("room");
    a.qp.ring(doorbell);
    // The stop comes behind the doorbell, and before the peer writes what arrives.
    driver_mlx::emergency_stop(driver_mlx::Platform::bar(&world.platform(1)));
    world.pass(SECOND);
    assert_eq!(b.get(0, 4096), [0; 4096]);
    world.model(1, |m| assert_eq!((m.life(), m.census().total()), (hca_model::device::Life::Disabled, 0)));
    std::mem::forget(b.hca);
    world.bring_up(1, &Config::DEFAULT).expect("can be had again");
}
