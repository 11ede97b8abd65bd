//! Bring-up and tear-down of the driver on the emulated HCA, and devices that misbehave.

use driver_mlx::{
    Access, AsyncEvent, Base, Config, CqConfig, Duration, Error, FatalCause, HealthWarning, Instant,
    LinkState, QpConfig, Step,
};
use harness::dat::due;
use harness::{Node, World, WorldConfig};
use hca_model::Profile;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::opcode::Opcode;
use std::rc::Rc;

const MEMORY: usize = 8 << 20;

fn world(seed: u64) -> Rc<World> {
    World::new(&WorldConfig::new(seed))
}

fn up(world: &Rc<World>) -> Node {
    Node::bring_up(world, Profile::node(0), MEMORY, &Config::DEFAULT).expect("comes up")
}

/// The error that bring-up ends with, and that it left nothing behind in the device.
fn refused(profile: Profile, memory: usize, config: &Config) -> Error {
    let world = world(1);
    match Node::bring_up(&world, profile, memory, config) {
        Ok(_) => panic!("came up"),
        Err(error) => {
            assert_eq!(world.census(0).total(), 0, "left behind: {}", world.census(0));
            error
        }
    }
}

#[test]
fn steps_are_told_in_order_and_nothing_stays_behind() {
    let world = world(1);
    let node = up(&world);
    let steps: Vec<&str> = node.hca.steps().iter().map(|time| time.step.name()).collect();
    assert_eq!(
        steps,
        [
            "presence",
            "initializing",
            "command_queue",
            "enable_hca",
            "issi",
            "boot_pages",
            "host_endianness",
            "capabilities",
            "init_pages",
            "init_hca",
            "identify",
            "uar",
            "event_queues",
            "resources",
            "port"
        ]
    );
    assert!(node.hca.steps().iter().any(|time| time.took > Duration::ZERO));
    assert_eq!(world.firmware_pages(0), node.hca.firmware_pages());
    assert!(node.hca.firmware_pages() > 0);
    assert_eq!(node.hca.psid().trim_ascii_end(), b"MT_0000000008\0\0\0".as_slice());
    let counters = node.hca.counters();
    assert_eq!((counters.command_errors, counters.command_timeouts, counters.bad_events), (0, 0, 0));
    node.hca.tear_down().expect("goes down");
    assert_eq!(world.census(0).total(), 0, "left behind: {}", world.census(0));
    assert_eq!(world.firmware_pages(0), 0);
    assert_eq!(world.refusals(0), [""; 0]);
}

#[test]
fn a_device_can_be_brought_up_again_and_again() {
    let world = world(2);
    let (platform, region) = world.attach(Profile::node(0), MEMORY);
    let mut region = Some(region);
    for _ in 0..3 {
        let region = region.take().unwrap_or_else(|| world.memory(0).region_again());
        let mut node = Node::bring_up_on(platform.clone(), region, &Config::DEFAULT).expect("comes up");
        let port = node.wait_active().expect("Active");
        assert_eq!(port.port_guid.get(), Profile::port_guid_of(0));
        node.hca.tear_down().expect("goes down");
        assert_eq!(world.census(0).total(), 0, "left behind: {}", world.census(0));
    }
}

#[test]
fn a_driver_that_vanished_is_reset_away() {
    let world = world(3);
    let node = up(&world);
    assert!(world.census(0).total() > 0);
    let platform = node.platform.clone();
    drop(node);
    world.reset(0);
    assert_eq!(world.census(0).total(), 0, "left behind: {}", world.census(0));
    let again = Node::bring_up_on(platform, world.memory(0).region_again(), &Config::DEFAULT);
    again.expect("comes up after the reset").hca.tear_down().expect("goes down");
}

#[test]
fn objects_come_and_go() {
    let world = world(4);
    let mut node = up(&world);
    let hca = &mut node.hca;
    let (before, free) = (world.census(0), hca.free_bytes());
    let pd = hca.alloc_pd().expect("PD");
    let memory = hca.alloc(10_000, 4096).expect("memory");
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let key = hca.register(pd, &memory, access, Base::Virtual).expect("key");
    assert_eq!((key.address(), key.length()), (memory.va() as u64, 10_000));
    let cq = hca.create_cq(&CqConfig { entries: 100, eq: 0 }).expect("CQ");
    let qp = hca.create_qp(&QpConfig::rc(pd, cq.number())).expect("QP");
    let now = world.census(0);
    assert_eq!(
        [now.pds, now.mkeys, now.cqs, now.qps],
        [before.pds + 1, before.mkeys + 1, before.cqs + 1, before.qps + 1]
    );
    let error = hca.dealloc_pd(pd).expect_err("in use");
    assert!(error.to_string().contains("DEALLOC_PD"), "{error}");
    hca.destroy_qp(qp).expect("QP");
    hca.destroy_cq(cq).expect("CQ");
    hca.deregister(key).expect("key");
    hca.dealloc_pd(pd).expect("PD");
    hca.free(memory).expect("memory");
    assert_eq!((world.census(0), hca.free_bytes()), (before, free));
    node.hca.tear_down().expect("goes down");
}

#[test]
fn firmware_gets_pages_at_run_time_and_gives_all_back() {
    let world = world(5);
    let profile = Profile { objects_per_growth: 8, growth_pages: 16, ..Profile::node(0) };
    let mut node = Node::bring_up(&world, profile, MEMORY, &Config::DEFAULT).expect("comes up");
    let before = node.hca.firmware_pages();
    let pd = node.hca.alloc_pd().expect("PD");
    let memory = node.hca.alloc(4096, 4096).expect("memory");
    let keys: Vec<_> = (0..64)
        .map(|_| node.hca.register(pd, &memory, Access::empty(), Base::Zero).expect("a key, with new pages"))
        .collect();
    assert!(node.hca.firmware_pages() >= before + 100, "{} after {before}", node.hca.firmware_pages());
    assert_eq!(world.firmware_pages(0), node.hca.firmware_pages());
    for key in keys {
        node.hca.deregister(key).expect("key");
    }
    node.hca.dealloc_pd(pd).expect("PD");
    node.hca.tear_down().expect("goes down");
    assert_eq!(world.firmware_pages(0), 0);
}

#[test]
fn page_starvation_names_both_numbers() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.starve_pages = Some(1_000_000);
    let error = refused(profile, MEMORY, &Config::DEFAULT);
    let Error::InsufficientPages { needed: 1_000_000, available } = error else { panic!("{error}") };
    assert!((1_900..2_048).contains(&available), "{available} of 2048 pages");
    assert_eq!(
        error.to_string(),
        format!("firmware needs 1000000 pages of 4 KiB, {available} are available")
    );
}

#[test]
fn reserved_pages_are_not_given_away() {
    let config = Config { reserved_pages: 2_000, ..Config::DEFAULT };
    let error = refused(Profile::node(0), MEMORY, &config);
    assert!(matches!(error, Error::InsufficientPages { needed: 1..200, available: 0..48 }), "{error}");
}

#[test]
fn a_missing_capability_is_named() {
    let mut profile = Profile::node(0);
    let bit = cmd_hca_cap::rc.bit_offset;
    profile.misbehaviour.hidden_capabilities.push((bit as usize / 32 * 4, 0x8000_0000 >> (bit % 32)));
    let error = refused(profile, MEMORY, &Config::DEFAULT);
    assert_eq!(error, Error::MissingCapability("rc"));
    assert_eq!(error.to_string(), "the HCA lacks the capability rc");
}

#[test]
fn a_stalled_command_times_out_by_name() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.stall_command = Some(Opcode::QUERY_ADAPTER);
    let world = world(6);
    let began = world.now();
    let error = Node::bring_up(&world, profile, MEMORY, &Config::DEFAULT).err().expect("does not come up");
    let Error::Timeout { step: Step::Identify, opcode: Some(Opcode::QUERY_ADAPTER), waited_ms, .. } = error
    else {
        panic!("{error}")
    };
    assert!((60_000..61_000).contains(&waited_ms), "{waited_ms} ms");
    assert!(world.now() - began < 130_000_000_000, "bounded, with its tear-down");
}

#[test]
fn firmware_that_never_starts_times_out() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.never_initialized = true;
    let error = refused(profile, MEMORY, &Config::DEFAULT);
    let Error::Timeout { step: Step::Initializing, opcode: None, waited_ms, .. } = error else {
        panic!("{error}")
    };
    assert!((120_000..121_000).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn an_absent_device_is_told_at_once() {
    let world = world(7);
    let (platform, region) = world.attach(Profile::node(0), MEMORY);
    world.unplug(0);
    let error = Node::bring_up_on(platform, region, &Config::DEFAULT).err().expect("does not come up");
    assert_eq!(error, Error::NotPresent);
}

#[test]
fn a_device_that_dies_is_reported_and_every_call_ends() {
    let world = world(8);
    let mut node = up(&world);
    node.wait_active().expect("Active");
    world.unplug(0);
    let began = world.now();
    let error = node.hca.alloc_pd().expect_err("nobody answers");
    assert_eq!(error, Error::Fatal(FatalCause::LinkDead));
    assert!(error.to_string().contains("all ones"), "{error}");
    assert!(world.now() - began < 5_000_000_000, "took {} ms", (world.now() - began) / 1_000_000);
    assert_eq!(node.hca.fatal(), Some(FatalCause::LinkDead));
    let mut told = false;
    while let Some(event) = node.hca.next_event() {
        told |= event == AsyncEvent::Fatal(FatalCause::LinkDead);
    }
    assert!(told, "an event says so");
    let down = world.now();
    assert!(node.hca.tear_down().is_err());
    assert!(world.now() - down < 5_000_000_000);
}

#[test]
fn a_health_counter_that_stands_still_is_told_and_no_more() {
    let mut profile = Profile::node(0);
    profile.misbehaviour.wedge_health = true;
    let world = world(9);
    let mut node = Node::bring_up(&world, profile, MEMORY, &Config::DEFAULT).expect("comes up");
    let limit = world.now() + 30_000_000_000;
    let mut warnings = Vec::new();
    while world.now() < limit {
        let next = due(node.hca.poll(Instant::from_nanos(world.now())));
        warnings.extend(std::iter::from_fn(|| node.hca.next_event()).filter_map(|event| match event {
            AsyncEvent::Health(warning) => Some(warning),
            _ => None,
        }));
        world.idle(next.unwrap_or(limit).min(limit));
    }
    assert_eq!((node.hca.fatal(), warnings), (None, vec![HealthWarning::CounterStands]));
}

#[test]
fn two_nodes_reach_active_with_addresses_of_their_own() {
    let world = world(10);
    let mut nodes: Vec<Node> = (0..2)
        .map(|i| Node::bring_up(&world, Profile::node(i), MEMORY, &Config::DEFAULT).expect("comes up"))
        .collect();
    let ports: Vec<_> = nodes.iter_mut().map(|node| node.wait_active().expect("Active")).collect();
    let links: Vec<_> = ports.iter().map(|port| *port.infiniband().expect("InfiniBand")).collect();
    assert_ne!(links[0].lid, links[1].lid);
    assert_eq!(links[0].sm_lid, links[1].sm_lid);
    for (i, (port, link)) in ports.iter().zip(links).enumerate() {
        assert_ne!(link.lid.get(), 0);
        assert_eq!(port.mtu.bytes(), 4096);
        let gid = nodes[i].hca.gid(0).expect("GID");
        assert_eq!((gid.prefix(), gid.interface_id()), (link.gid_prefix, Profile::port_guid_of(i as u16)));
        assert_eq!(nodes[i].hca.pkey(0).expect("P_Key").get(), 0xffff);
        assert!(nodes[i].hca.gid(10_000).is_err());
    }
    // A cable that is pulled is told by event, and one that is plugged in again leads back to Active.
    world.set_cable(0, false);
    world.pass(1_000_000);
    let _ = nodes[0].hca.poll(Instant::from_nanos(world.now()));
    let event = nodes[0].hca.next_event();
    let mut told = matches!(event, Some(AsyncEvent::Port { port: 1, .. }));
    while let Some(event) = nodes[0].hca.next_event() {
        told |= matches!(event, AsyncEvent::Port { port: 1, .. });
    }
    assert!(told, "port event");
    assert_eq!(nodes[0].hca.port().expect("port").state, LinkState::Down);
    world.set_cable(0, true);
    nodes[0].wait_active().expect("Active again");
    for (i, node) in nodes.into_iter().enumerate() {
        node.hca.tear_down().expect("goes down");
        assert_eq!(world.census(i).total(), 0, "left behind: {}", world.census(i));
        assert_eq!(world.refusals(i), [""; 0]);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let world = world(seed);
        let mut node = up(&world);
        node.wait_active().expect("Active");
        (world.now(), world.turns(), node.hca.counters().commands, world.interrupts(0))
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11).0, run(12).0);
}
