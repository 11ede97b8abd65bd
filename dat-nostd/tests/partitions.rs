//! Partitions: P_Keys are found by value, wherever in a port's table the subnet manager has put
//! them.

use crate::common;

use common::{Net, Options, Side};
use dat_nostd::*;
use driver_mlx::{Config, Hca, HcaStorage, PKey, Psn, QpNumber};
use harness::{World, WorldConfig};
use hca_model::Profile;
use ib_port::ib_mgmt::cm::{CmEvent, ConnectParams, RejReason};
use ib_port::ib_mgmt::sa::{ClientConfig, PathRecord};
use ib_port::{Port, PortConfig, PortStorage, Resolution};
use rdma_fabric::ports::PortIndex;

const NONE: CompletionFlags = CompletionFlags::empty();
/// Time in which a subnet manager has programmed a table and the port's owner has read it.
const SETTLED: u64 = 100_000_000;

/// Two nodes whose ports have these P_Keys.
fn net(seed: u64, tables: [&[u16]; 2]) -> Net {
    let mut net = Net::new(seed, 2);
    put(&net.world, tables);
    net.pass(SETTLED);
    net
}

fn put(world: &World, tables: [&[u16]; 2]) {
    let now = world.now();
    for (index, keys) in tables.into_iter().enumerate() {
        world.with_fabric(|fabric| fabric.set_partitions(PortIndex(index as u32), keys, now));
    }
}

/// Two sides connect, exchange a message and disconnect.
fn talk(net: &mut Net) {
    let sides = [net.side(0, &Options::default()), net.side(1, &Options::default())];
    talk_over(net, sides);
}

fn talk_over(net: &mut Net, sides: [Side; 2]) {
    let [active, passive] = sides;
    net.connect(&sides);
    for (to, from) in [(1, 0), (0, 1)] {
        net.nodes[to].ep_post_recv(sides[to].ep, &[sides[to].segment(0, 64)], 1, NONE).unwrap();
        net.nodes[from].ep_post_send(sides[from].ep, &[sides[from].segment(0, 64)], 2, NONE).unwrap();
        assert_eq!(net.dto(to, sides[to].recv).status, DtoStatus::Success);
        assert_eq!(net.dto(from, sides[from].request).status, DtoStatus::Success);
    }
    net.nodes[0].ep_disconnect(active.ep, CloseFlags::Abrupt).unwrap();
    assert_eq!(net.connection(1, &passive), ConnectionEvent::Disconnected);
    for (node, side) in [(0, active), (1, passive)] {
        net.nodes[node].ia_close(side.ia, CloseFlags::Abrupt).unwrap();
    }
    net.assert_no_refusals();
}

/// OpenSM puts 0x7fff first on fabrics whose nodes are limited members of the default partition:
/// two of those do not reach each other.
#[test]
fn full_members_meet_behind_a_limited_first_entry() {
    talk(&mut net(611, [&[0x7fff, 0xffff], &[0x7fff, 0, 0xffff]]));
}

/// The path's P_Key is another than the one at index 0 of the passive side.
#[test]
fn a_connection_takes_the_partition_of_its_path() {
    talk(&mut net(612, [&[0xffff, 0x8001], &[0x8001, 0xffff]]));
    talk(&mut net(613, [&[0x8001, 0xffff], &[0xffff, 0x0001]]));
    // A limited member reaches a full one.
    talk(&mut net(614, [&[0x7fff], &[0x8001, 0xffff]]));
    // The passive side has another entry of its own for the path's P_Key.
    talk(&mut net(617, [&[0x8001, 0x7fff], &[0xffff, 0x8001]]));
}

/// An endpoint's queue pair is in INIT with an entry of the former table.
#[test]
fn endpoints_made_before_a_table_changes_take_its_new_entries() {
    const MOVED: &[u16] = &[0x8002, 0xffff];
    for (seed, tables) in [(618, [MOVED, &[0xffff]]), (619, [&[0xffff], MOVED])] {
        let mut net = net(seed, [&[0xffff], &[0xffff]]);
        let sides = [net.side(0, &Options::default()), net.side(1, &Options::default())];
        put(&net.world, tables);
        net.pass(SETTLED);
        talk_over(&mut net, sides);
    }
}

/// Ports that become limited members of their path's partition reach each other in another one.
#[test]
fn paths_are_resolved_again_where_the_table_changes() {
    let mut net = net(620, [&[0xffff], &[0xffff]]);
    talk(&mut net);
    put(&net.world, [&[0x8001, 0x7fff], &[0x8001, 0x7fff]]);
    net.pass(SETTLED);
    talk(&mut net);
}

/// The table changes: what is made then takes the new places.
#[test]
fn connections_follow_a_table_that_changes() {
    let mut net = net(615, [&[0xffff], &[0xffff]]);
    talk(&mut net);
    for tables in [[&[0x7fff, 0xffff][..], &[0x7fff, 0x8001, 0xffff]], [&[0xffff], &[0x8002, 0x7fff, 0xffff]]]
    {
        put(&net.world, tables);
        net.pass(SETTLED);
        talk(&mut net);
    }
}

/// A request of a partition in which the port is not, or only a limited member like its peer, is
/// refused: the HCA would drop its data.
#[test]
fn a_request_of_another_partition_is_refused() {
    let world = World::new(&WorldConfig::new(616));
    let [(asker, asker_region), (platform, region)] =
        [0, 1].map(|node| world.attach(Profile::node(node), 32 << 20));
    let tables = Box::leak(Box::new(harness::net::Storage::new()));
    let config = AdapterConfig::new("ib0", common::address(1), &[], 616);
    let host = harness::host_region;
    let mut adapter = Adapter::open(platform, region, host(), tables.parts(), &config).unwrap();
    harness::dat::register(&mut adapter, 1);
    let (ia, _) = adapter.ia_open("ib0", 8, None).unwrap();
    let evd = adapter.evd_create(ia, 8, None, EvdFlags::CR).unwrap();
    adapter.psp_create(ia, 7, evd, PspFlags::Consumer).unwrap();
    let storage = Box::leak(Box::new(HcaStorage::<8192>::new()));
    let mut hca = Hca::bring_up(asker, asker_region, host(), storage.parts(), &Config::DEFAULT).unwrap();
    let storage = Box::leak(Box::new(PortStorage::<8, 8, 8, 8, 8, 8>::new()));
    let config = PortConfig { seed: 1, sa: ClientConfig::default(), ip: None, address: None, vlan: None };
    let mut port = Port::open(&mut hca, storage.parts(), &config).unwrap();
    put(&world, [&[0xffff], &[0xffff, 0x0002, 0x8003]]);
    let dgid = adapter.port_info().gid;
    let mut run = |steps: u32, work: &mut dyn FnMut(&mut Port<'_, _>, Instant)| {
        for _ in 0..steps {
            let now = Instant::from_nanos(world.now());
            let _ = hca.poll(now);
            while let Some(event) = hca.next_event() {
                if matches!(event, driver_mlx::AsyncEvent::Port { .. }) {
                    port.refresh(&mut hca, false).unwrap();
                }
            }
            let _ = (port.poll(now), adapter.poll(now));
            port.service(&mut hca, now);
            work(&mut port, now);
            world.idle(world.now() + 100_000);
        }
        adapter.evd_dequeue(evd).is_ok()
    };
    let mut path = None::<PathRecord>;
    run(3000, &mut |port, now| {
        if let Resolution::Known(known) = port.resolve(now, dgid) {
            path = Some(known);
        }
    });
    let path = path.expect("a path");
    for (pkey, accepted) in [
        (0xffff, true),
        (0x7fff, true),
        (0x8001, false),
        (0x8002, true),
        (0x0002, false),
        (0x0003, true),
        (0, false),
    ] {
        let mut path = path;
        path.set_pkey(PKey::new(pkey));
        let params =
            ConnectParams::new(path, 0x0106_0007, QpNumber::new(0x1234 + u32::from(pkey)), Psn::new(5));
        let (mut asked, mut refused) = (false, None);
        // RDMA-CM's header: version 0, IPv4, ports and addresses.
        let mut header = [0; 36];
        header[1] = 0x40;
        header[16..20].copy_from_slice(&[10, 0, 0, 1]);
        header[32..36].copy_from_slice(&[10, 0, 0, 2]);
        let arrived = run(500, &mut |port, now| {
            if !core::mem::replace(&mut asked, true) {
                port.cm().connect(now, &params, &header, 1).unwrap();
            }
            while let Some(event) = port.cm().poll_event() {
                if let CmEvent::Rejected { reason, .. } = event {
                    refused = Some(reason);
                }
            }
        });
        let reason = (!accepted).then_some(RejReason::INVALID_GID);
        assert_eq!((arrived, refused), (accepted, reason), "{pkey:#x}");
    }
}
