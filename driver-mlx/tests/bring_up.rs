//! Bring-up, tear-down, pages and what can go wrong there, against the emulated HCA.

use crate::common;

use common::{REGION, World};
use driver_mlx::{AsyncEvent, Config, Duration, Error, FatalCause, Instant, LinkState, PortType, Step, Wake};
use hca_model::Profile;
use hca_model::device::Life;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::HealthSyndrome;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

fn world(profile: Profile) -> Rc<World> {
    World::new([profile], FabricConfig::default())
}

#[test]
fn up_and_down_again() {
    let world = world(Profile::node(0));
    let hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    assert_eq!(world.complaints(0), [""; 0]);
    let (given, needed) = world.model(0, |m| (m.pages().given(), m.pages().needed()));
    assert_eq!((hca.firmware_pages(), given), (needed, needed));
    assert_eq!(hca.counters().pages_given, u64::from(given));
    assert!(given >= 70);
    assert_eq!(&hca.psid()[..13], b"MT_0000000008");
    assert!(hca.caps().port_type == PortType::InfiniBand && hca.caps().set_deth_sqpn && hca.caps().rc);
    assert_eq!((hca.caps().log_max_msg, hca.caps().cqe_version, hca.caps().log_bf_reg_size), (30, 1, 9));
    let names: Vec<_> = hca.steps().iter().map(|s| s.step.name()).collect();
    let expected = "presence initializing command_queue enable_hca issi boot_pages host_endianness capabilities \
        init_pages init_hca identify uar event_queues resources port";
    assert_eq!(names.join(" "), expected);
    assert!(hca.steps().iter().all(|s| s.took < Duration::from_nanos(10_000_000_000)));
    let census = world.model(0, |m| m.census());
    assert_eq!((census.uars, census.eqs), (1, 2));
    hca.tear_down().expect("torn down");
    assert_eq!(world.complaints(0), [""; 0]);
    world.model(0, |m| {
        assert_eq!((m.life(), m.pages().given(), m.census().total()), (Life::Disabled, 0, 0));
    });
    // And once more, without a reset in between.
    let hca = world.bring_up(0, &Config::DEFAULT).expect("brought up again");
    hca.tear_down().expect("torn down again");
    assert_eq!(world.complaints(0), [""; 0]);
}

#[test]
fn the_port_becomes_active_and_says_so() {
    let world = World::new([Profile::node(0), Profile::node(1)], FabricConfig::default());
    let mut hca = world.ready(1);
    let port = hca.port().expect("a port");
    assert_eq!(port.state, LinkState::Active);
    let link = *port.infiniband().expect("InfiniBand");
    assert!(link.lid.get() != 0 && link.sm_lid.get() != 0);
    assert_eq!(port.port_guid.get(), Profile::port_guid_of(1));
    assert_eq!(port.mtu.bytes(), 4096);
    let gid = hca.gid(0).expect("a GID");
    assert_eq!((gid.prefix(), gid.interface_id()), (link.gid_prefix, Profile::port_guid_of(1)));
    assert_eq!(hca.pkey(0).expect("a P_Key").get(), 0xffff);
    assert!(matches!(hca.gid(u16::MAX), Err(Error::Limit { what: "gid_table_size", .. })));
    while hca.next_event().is_some() {}
    world.model(1, |m| m.port_mut().set_cable(false));
    world.pass(1_000_000);
    assert_eq!(hca.port().map(|p| p.state), Ok(LinkState::Down));
    world.model(1, |m| m.port_mut().set_cable(true));
    world.pass(10_000_000_000);
    let _ = hca.poll(Instant::from_nanos(world.now()));
    assert_eq!(hca.port().map(|p| p.state), Ok(LinkState::Active));
    let events: Vec<_> = std::iter::from_fn(|| hca.next_event()).collect();
    let active = AsyncEvent::Port { port: 1, change: mlx5_prm::event::PortChange::ACTIVE };
    assert!(events.contains(&active), "{events:?}");
    assert_eq!(world.complaints(1), [""; 0]);
}

#[test]
fn the_port_can_be_asked_by_datagram() {
    let asked = |hidden: Vec<(usize, u32)>| {
        let mut profile = Profile::node(0);
        profile.misbehaviour.hidden_capabilities = hidden;
        let world = world(profile);
        let mut hca = world.ready(0);
        let by_mad = hca.trace().iter().any(|entry| {
            matches!(entry.kind, driver_mlx::TraceKind::Command { opcode: Opcode::MAD_IFC, .. })
        });
        let answer = (hca.port().expect("a port"), hca.gid(0).expect("a GID"), hca.pkey(0).expect("a P_Key"));
        assert_eq!(world.complaints(0), [""; 0]);
        (by_mad, answer)
    };
    let (by_mad, with_contexts) = asked(vec![]);
    assert!(!by_mad);
    let (by_mad, with_mads) = asked(vec![(0x34, 1 << 29)]);
    assert!(by_mad);
    assert_eq!(with_contexts, with_mads);
}

#[test]
fn starvation_names_both_numbers_and_leaves_nothing_behind() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.starve_pages = Some(1_000_000);
    let world = world(profile);
    let error = world.bring_up(0, &Config::DEFAULT).err();
    let Some(Error::InsufficientPages { needed: 1_000_000, available }) = error else { panic!("{error:?}") };
    assert!(available > 0 && available < (REGION / 4096) as u64, "{available}");
    let text = error.map(|e| e.to_string()).unwrap_or_default();
    assert_eq!(text, format!("firmware needs 1000000 pages of 4 KiB, {available} are available"));
    world.model(0, |m| assert_eq!((m.life(), m.pages().given()), (Life::Disabled, 0)));
    // A part of the region that must stay free counts as well.
    let world = World::new([Profile::node(0)], FabricConfig::default());
    let config = Config { reserved_pages: u32::MAX, ..Config::DEFAULT };
    let error = world.bring_up(0, &config).err();
    assert!(matches!(error, Some(Error::InsufficientPages { needed: 6, available: 0 })), "{error:?}");
}

#[test]
fn a_missing_capability_is_named() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.hidden_capabilities = vec![(0x44, 1)];
    let error = world(profile).bring_up(0, &Config::DEFAULT).err();
    assert_eq!(error, Some(Error::MissingCapability("rc")));
}

#[test]
fn a_command_without_answer_times_out() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.stall_command = Some(Opcode::INIT_HCA);
    let world = world(profile);
    let error = world.bring_up(0, &Config::DEFAULT).err();
    let expected = Error::Timeout {
        step: Step::InitHca,
        opcode: Some(Opcode::INIT_HCA),
        waited_ms: 60_000,
        syndrome: HealthSyndrome(0),
    };
    assert_eq!(error, Some(expected));
}

/// Offset in the region of the dword with which a command's entry comes back; the command queue is what the driver takes first.
fn owner_dword(slot: usize) -> usize {
    slot * 64 + 0x3c
}

#[test]
fn a_slot_comes_back_with_its_late_answer() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.stall_command = Some(Opcode::ALLOC_PD);
    let world = world(profile);
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let memory = world.memory(0);
    let mut time_outs = 0;
    for _ in 0..4 {
        // Two of three slots are lost, and then answered.
        for slot in 0..2 {
            assert!(matches!(hca.alloc_pd(), Err(Error::Timeout { step: Step::Running, .. })));
            time_outs += 1;
            assert_eq!(memory.load_be32(owner_dword(slot)).map(|owner| owner & 1), Ok(1), "not answered");
        }
        for slot in 0..2 {
            let owner = memory.load_be32(owner_dword(slot)).expect("inside");
            memory.store_be32(owner_dword(slot), owner & !0xff).expect("inside");
        }
    }
    assert_eq!((hca.counters().command_timeouts, hca.fatal()), (time_outs, None));
}

#[test]
fn a_device_that_answers_nothing_any_more_is_fatal() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.stall_command = Some(Opcode::ALLOC_PD);
    let world = world(profile);
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    for _ in 0..3 {
        assert!(matches!(hca.alloc_pd(), Err(Error::Timeout { step: Step::Running, .. })));
    }
    assert_eq!(hca.alloc_pd(), Err(Error::Fatal(FatalCause::CommandsLost)));
    assert_eq!((hca.counters().command_timeouts, hca.fatal()), (3, Some(FatalCause::CommandsLost)));
    let events: Vec<_> = std::iter::from_fn(|| hca.next_event()).collect();
    assert!(events.contains(&AsyncEvent::Fatal(FatalCause::CommandsLost)), "{events:?}");
}

#[test]
fn a_device_that_never_starts_times_out() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.never_initialized = true;
    let world = world(profile);
    let error = world.bring_up(0, &Config::DEFAULT).err();
    assert!(
        matches!(
            error,
            Some(Error::Timeout { step: Step::Initializing, opcode: None, waited_ms: 120_000.., .. })
        ),
        "{error:?}"
    );
}

#[test]
fn a_healthy_device_stays_so() {
    let world = world(Profile::node(0));
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    for _ in 0..100 {
        let now = Instant::from_nanos(world.now());
        let Wake::At(next) = hca.poll(now) else { panic!("the health poll is timed") };
        world.pass((next - now).as_nanos() as u64);
    }
    assert_eq!(hca.fatal(), None);
    assert!(hca.counters().health_polls >= 100);
}

#[test]
fn pages_are_supplied_and_returned_at_run_time() {
    let world = world(Profile::node(0));
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let at_start = hca.firmware_pages();
    let pd = hca.alloc_pd().expect("a PD");
    let memory = hca.alloc(4096, 4096).expect("memory");
    let keys: Vec<_> = (0..600)
        .map(|_| {
            let access = driver_mlx::Access::LOCAL_WRITE;
            hca.register(pd, &memory, access, driver_mlx::Base::Virtual).expect("a key")
        })
        .collect();
    assert!(hca.firmware_pages() > at_start, "growth came by event while CREATE_MKEY waited");
    let at_most = hca.firmware_pages();
    for key in keys {
        hca.deregister(key).expect("deregistered");
    }
    for _ in 0..10 {
        world.pass(100_000_000);
        let _ = hca.poll(Instant::from_nanos(world.now()));
    }
    assert!(hca.firmware_pages() < at_most, "surplus is taken back");
    assert_eq!(hca.firmware_pages(), world.model(0, |m| m.pages().given()));
    assert_eq!(hca.counters().bad_pages, 0);
    hca.free(memory).expect("freed");
    hca.dealloc_pd(pd).expect("ended");
    hca.tear_down().expect("torn down");
    assert_eq!(world.complaints(0), [""; 0]);
}

#[test]
fn refused_commands_carry_status_and_syndrome() {
    let world = world(Profile::node(0));
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    hca.dealloc_pd(pd).expect("ended");
    let error = hca.dealloc_pd(pd).err();
    let Some(Error::Command(refused)) = error else { panic!("{error:?}") };
    assert_eq!(refused.opcode, Opcode::DEALLOC_PD);
    assert_eq!(refused.status, mlx5_prm::status::CmdStatus::BAD_RES);
    let text = refused.to_string();
    assert!(text.starts_with("DEALLOC_PD (op_mod 0x0) at step running: status bad resource"), "{text}");
    assert_eq!(hca.counters().command_errors, 1);
}

#[test]
fn memory_is_accounted_for() {
    let world = world(Profile::node(0));
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let free = hca.free_bytes();
    let slice = hca.alloc(10_000, 4096).expect("memory");
    assert_eq!((slice.len(), free - hca.free_bytes()), (10_000, 16_384));
    assert!(slice.va().is_multiple_of(4096) && slice.device_address() > world.memory(0).device_address());
    assert!(slice.va() as u64 != slice.device_address());
    hca.free(slice).expect("nobody uses it");
    assert_eq!(hca.alloc(REGION, 4096).err(), Some(Error::OutOfMemory { bytes: REGION }));
    assert_eq!(hca.alloc(100, 3).err(), Some(Error::InvalidArgument("align")));
    assert_eq!(hca.free_bytes(), free);
}
