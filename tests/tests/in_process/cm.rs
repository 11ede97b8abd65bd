//! Connection management of many nodes in one process, over the full stack: DAT, connection manager, driver, emulated HCAs,
//! on a fabric that loses packets. What was connected is right on both sides, and what was disconnected is gone.

use dat_nostd::{
    Adapter, AdapterCensus, AdapterConfig, AdapterParts, CloseFlags, ConnectFlags, ConnectionEvent,
    EpAttributes, EpHandle, EvdFlags, EvdHandle, EventData, IaHandle, Neighbour, PspFlags, PzHandle, Qos,
    adapter_storage,
};
use driver_mlx::Gid;
use harness::dat::{HCA, address, due, register};
use harness::{ModelBar, ModelPlatform, World, WorldConfig};
use hca_model::Census;
use hca_model::Profile;
use rdma_fabric::infiniband::OPENSM_PACKET_LIFE_TIME;
use std::rc::Rc;
use std::time::Instant;

const SECOND: u64 = 1_000_000_000;
const MEMORY: usize = 8 << 20;
const PORT: u64 = 7000;
/// Attempts of one node under way at once.
const WINDOW: usize = 8;
/// Endpoints without transfers: what is tested here is how they connect.
const ATTRIBUTES: EpAttributes =
    EpAttributes { max_recv_dtos: 0, max_request_dtos: 0, ..EpAttributes::DEFAULT };

adapter_storage! {
    /// Room for a mesh: more connections than endpoints, but not for those in TimeWait.
    struct MeshTables {
        bar: ModelBar, dma_bytes: MEMORY, eps: 128, evds: 8, lmrs: 8, connections: 160,
    }
}
adapter_storage! {
    /// 64 endpoints, 96 connections.
    struct DefaultTables { bar: ModelBar, dma_bytes: MEMORY }
}

fn mesh_parts() -> AdapterParts<'static, ModelBar> {
    Box::leak(Box::new(MeshTables::new())).parts()
}

fn default_parts() -> AdapterParts<'static, ModelBar> {
    Box::leak(Box::new(DefaultTables::new())).parts()
}

/// A connection as one side sees it.
struct Side {
    ep: EpHandle,
    peer: usize,
    active: bool,
    up: bool,
}

struct Member {
    adapter: Adapter<'static, ModelPlatform>,
    ia: IaHandle,
    pz: PzHandle,
    connect_evd: EvdHandle,
    cr_evd: EvdHandle,
    /// Peers still to be connected to.
    todo: Vec<usize>,
    sides: Vec<Side>,
    established: usize,
    ended: usize,
    refused: usize,
    /// Attempts of its own under way or connected at once.
    window: usize,
    /// Nanoseconds from attempt to attempt, and when the next is due.
    pace: u64,
    next_attempt: u64,
}

/// What a node and its HCA hold.
#[derive(Debug, PartialEq)]
struct Holdings {
    adapter: AdapterCensus,
    device: Census,
    bytes: usize,
}

struct Mesh {
    world: Rc<World>,
    members: Vec<Member>,
    /// Ends every connection as soon as it is there.
    churn: bool,
}

impl Mesh {
    fn new(config: &WorldConfig, count: usize, churn: bool) -> Self {
        Self::over(config, count, churn, mesh_parts)
    }

    fn over(
        config: &WorldConfig,
        count: usize,
        churn: bool,
        parts: fn() -> AdapterParts<'static, ModelBar>,
    ) -> Self {
        let world = World::new(config);
        let attached: Vec<_> = (0..count).map(|i| world.attach(Profile::node(i as u16), MEMORY)).collect();
        let gid = |node: usize| Gid::new(Gid::DEFAULT_PREFIX, Profile::port_guid_of(node as u16));
        let all: Vec<Neighbour> = (0..count).map(|node| (address(node), gid(node))).collect();
        let all: &'static [Neighbour] = all.leak();
        let members = attached.into_iter().enumerate().map(|(node, (platform, region))| {
            let seed = u128::from(config.seed) << 64 | node as u128;
            let config = AdapterConfig { hca: HCA, ..AdapterConfig::new("ib0", address(node), all, seed) };
            let mut adapter =
                Adapter::open(platform, region, harness::host_region(), parts(), &config).expect("opens");
            register(&mut adapter, 0);
            let (ia, _) = adapter.ia_open("ib0", 8, None).expect("IA");
            let pz = adapter.pz_create(ia).expect("PZ");
            let connect_evd = adapter.evd_create(ia, 256, None, EvdFlags::CONNECTION).expect("EVD");
            let cr_evd = adapter.evd_create(ia, 32, None, EvdFlags::CR).expect("EVD");
            adapter.psp_create(ia, PORT, cr_evd, PspFlags::Consumer).expect("PSP");
            let (todo, sides) = (Vec::new(), Vec::new());
            Member {
                adapter,
                ia,
                pz,
                connect_evd,
                cr_evd,
                todo,
                sides,
                established: 0,
                ended: 0,
                refused: 0,
                window: WINDOW,
                pace: 0,
                next_attempt: 0,
            }
        });
        let members = members.collect();
        Self { world, members, churn }
    }

    fn holdings(&self) -> Vec<Holdings> {
        let holdings = self.members.iter().enumerate().map(|(node, member)| {
            let mut adapter = member.adapter.census();
            // What firmware was given while it ran is not lost, only lent.
            let bytes = adapter.free_bytes + member.adapter.hca().firmware_pages() as usize * 4096;
            adapter.free_bytes = 0;
            Holdings { adapter, device: self.world.census(node), bytes }
        });
        holdings.collect()
    }

    /// Everybody once.
    fn round(&mut self) {
        let now = self.world.now();
        let mut next = now + SECOND;
        for node in 0..self.members.len() {
            let deadline = due(self.members[node].adapter.poll(driver_mlx::Instant::from_nanos(now)))
                .unwrap_or(u64::MAX);
            let member = &mut self.members[node];
            next = if member.act(node, now, self.churn) { now } else { next.min(deadline) };
            if member.pace != 0 && !member.todo.is_empty() {
                next = next.min(member.next_attempt.max(now));
            }
        }
        self.world.idle(next.max(now + 1));
    }

    fn until(&mut self, what: &str, done: impl Fn(&[Member]) -> bool) {
        let end = self.world.now() + 600 * SECOND;
        while !done(&self.members) {
            assert!(self.world.now() < end, "{what}: not within ten minutes of virtual time");
            self.round();
        }
    }
}

impl Member {
    fn endpoint(&mut self) -> EpHandle {
        let connect = Some(self.connect_evd);
        self.adapter
            .ep_create(self.ia, Some(self.pz), None, None, connect, Some(&ATTRIBUTES))
            .expect("an endpoint")
    }

    /// Whether it did anything.
    fn act(&mut self, node: usize, now: u64, churn: bool) -> bool {
        let mut busy = false;
        let starting = self.sides.iter().filter(|side| side.active && (churn || !side.up)).count();
        for _ in starting..self.window {
            if now < self.next_attempt {
                break;
            }
            let Some(peer) = self.todo.pop() else { break };
            self.next_attempt += self.pace;
            let ep = self.endpoint();
            let data = [node as u8, peer as u8, 0xa5];
            let flags = ConnectFlags::Default;
            self.adapter
                .ep_connect(ep, &address(peer), PORT, 120_000_000, &data, Qos::BestEffort, flags)
                .expect("connects");
            self.sides.push(Side { ep, peer, active: true, up: false });
            busy = true;
        }
        while let Ok(event) = self.adapter.evd_dequeue(self.cr_evd) {
            let EventData::ConnectionRequest { cr, .. } = event.data else { panic!("{event:?}") };
            let request = self.adapter.cr_query(cr).expect("lives");
            let peer = usize::from(request.private_data[0]);
            assert_eq!(request.private_data[..3], [peer as u8, node as u8, 0xa5], "meant for another");
            assert_eq!(request.remote_address, address(peer));
            let ep = self.endpoint();
            self.adapter.cr_accept(cr, Some(ep), &[node as u8, peer as u8, 0x5a]).expect("accepts");
            self.sides.push(Side { ep, peer, active: false, up: false });
            busy = true;
        }
        while let Ok(event) = self.adapter.evd_dequeue(self.connect_evd) {
            let EventData::Connection { event, ep, .. } = event.data else { panic!("{event:?}") };
            self.connection(node, event, ep, churn);
            busy = true;
        }
        busy
    }

    fn connection(&mut self, node: usize, event: ConnectionEvent, ep: EpHandle, churn: bool) {
        let index = self.sides.iter().position(|side| side.ep == ep).expect("an endpoint of ours");
        let side = &mut self.sides[index];
        match event {
            ConnectionEvent::Established => {
                assert!(!side.up, "twice");
                side.up = true;
                self.established += 1;
                if side.active {
                    let data = self.adapter.ep_private_data(ep).expect("lives");
                    assert_eq!(data[..3], [side.peer as u8, node as u8, 0x5a], "answered by another");
                    if churn {
                        self.adapter.ep_disconnect(ep, CloseFlags::Abrupt).expect("disconnects");
                    }
                }
            }
            ConnectionEvent::Disconnected => {
                assert!(side.up, "never connected");
                self.ended += 1;
                self.adapter.ep_free(ep).expect("freed");
                self.sides.swap_remove(index);
            }
            // The peer had no room for one more request just then.
            ConnectionEvent::NonPeerRejected => {
                assert!(side.active && !side.up);
                self.refused += 1;
                self.todo.insert(0, side.peer);
                self.adapter.ep_free(ep).expect("freed");
                self.sides.swap_remove(index);
            }
            other => panic!("node {node}: {other:?} with node {}", side.peer),
        }
    }
}

fn faulty(seed: u64, faults: &str) -> WorldConfig {
    let mut config = WorldConfig::new(seed);
    config.fabric.faults = faults.parse().expect("a list of faults");
    config
}

#[test]
fn a_hundred_nodes_connect_all_to_all_on_a_fabric_that_loses_packets() {
    const NODES: usize = 100;
    let mut mesh = Mesh::new(&faulty(41, "loss=1%"), NODES, false);
    for node in 0..NODES {
        // Each pair once; who asks alternates, so that everybody has as much to do.
        let asks = |peer: &usize| *peer != node && (node + peer).is_multiple_of(2) == (node < *peer);
        mesh.members[node].todo = (0..NODES).filter(asks).collect();
        // Not everybody at the same node first.
        mesh.members[node].todo.rotate_left(node / 2);
    }
    let before = mesh.holdings();
    let (began, wall) = (mesh.world.now(), Instant::now());
    mesh.until("all connected", |members| {
        members
            .iter()
            .all(|m| m.todo.is_empty() && m.sides.len() == NODES - 1 && m.sides.iter().all(|s| s.up))
    });
    let (took, wall) = (mesh.world.now() - began, wall.elapsed());
    let connections = NODES * (NODES - 1) / 2;
    for (node, member) in mesh.members.iter().enumerate() {
        let mut peers: Vec<usize> = member.sides.iter().map(|side| side.peer).collect();
        peers.sort_unstable();
        assert!(peers.into_iter().eq((0..NODES).filter(|peer| *peer != node)), "node {node}");
    }
    let refused: usize = mesh.members.iter().map(|member| member.refused).sum();
    let lost = mesh.world.fabric_counters().dropped;
    println!(
        "{NODES} nodes, {connections} connections, {lost} packets lost, {refused} refused for want of room and tried again: \
         {} ms of virtual time ({} a second), {:.1} s of real time ({:.0} a second)",
        took / 1_000_000,
        connections as u64 * SECOND / took.max(1),
        wall.as_secs_f64(),
        connections as f64 / wall.as_secs_f64()
    );
    assert!(lost > 100, "the fabric lost only {lost} packets");
    for member in &mut mesh.members {
        for side in member.sides.iter().filter(|side| side.active) {
            member.adapter.ep_disconnect(side.ep, CloseFlags::Abrupt).expect("disconnects");
        }
    }
    mesh.until("all disconnected", |members| {
        members.iter().all(|m| m.sides.is_empty() && m.adapter.census().connections == 0)
    });
    assert_eq!(mesh.holdings(), before);
    let ended: usize = mesh.members.iter().map(|member| member.ended).sum();
    assert_eq!(ended, 2 * connections);
    for node in 0..NODES {
        assert_eq!(mesh.world.refusals(node), [""; 0], "node {node}");
    }
}

#[test]
fn ten_thousand_connects_and_disconnects_leak_nothing() {
    for (seed, faults) in [(42, ""), (43, "loss=1%,dup=1%,reorder=1%")] {
        let config = if faults.is_empty() { WorldConfig::new(seed) } else { faulty(seed, faults) };
        let count = 10_000;
        let mut mesh = Mesh::new(&config, 2, true);
        let before = mesh.holdings();
        // Both ask, so that requests cross.
        for (node, member) in mesh.members.iter_mut().enumerate() {
            member.todo = vec![1 - node; count / 2];
        }
        let (began, wall) = (mesh.world.now(), Instant::now());
        mesh.until("all connected and disconnected", |members| {
            members.iter().all(|m| m.todo.is_empty() && m.sides.is_empty())
        });
        let (took, wall) = (mesh.world.now() - began, wall.elapsed());
        mesh.until("the end of TimeWait", |members| {
            members.iter().all(|m| m.sides.is_empty() && m.adapter.census().connections == 0)
        });
        println!(
            "{count} connections and disconnections, faults {faults:?}: {} ms of virtual time ({} a second), \
             {:.1} s of real time ({:.0} a second)",
            took / 1_000_000,
            count as u64 * SECOND / took.max(1),
            wall.as_secs_f64(),
            count as f64 / wall.as_secs_f64()
        );
        for member in &mesh.members {
            assert_eq!((member.established, member.ended, member.refused), (count, count, 0));
        }
        assert_eq!(mesh.holdings(), before);
        for node in [0, 1] {
            assert_eq!(mesh.world.refusals(node), [""; 0]);
        }
    }
}

/// 1,000 connects and disconnects a second from each of two nodes with the default tables, for 3 seconds; for a minute with
/// `MLX5_TESTS_LONG=1`. Each closed connection is in TimeWait for more than two seconds.
#[test]
fn churn_with_opensms_packet_life_time_refuses_none() {
    let seconds = if runner::conditions::long() { 60 } else { 3 };
    let mut config = WorldConfig::new(44);
    config.fabric.packet_life_time = OPENSM_PACKET_LIFE_TIME;
    let mut mesh = Mesh::over(&config, 2, true, default_parts);
    let before = mesh.holdings();
    let began = mesh.world.now();
    for (node, member) in mesh.members.iter_mut().enumerate() {
        member.todo = vec![1 - node; seconds * 1000];
        (member.window, member.pace, member.next_attempt) = (24, SECOND / 1000, began);
    }
    mesh.until("all connected and disconnected", |members| {
        members.iter().all(|m| m.todo.is_empty() && m.sides.is_empty())
    });
    let took = mesh.world.now() - began;
    let limit = seconds as u64 * SECOND + SECOND / 10;
    assert!(took < limit, "{} ms: the rate was not kept", took / 1_000_000);
    for member in &mesh.members {
        assert_eq!((member.established, member.ended, member.refused), (seconds * 2000, seconds * 2000, 0));
        assert!(member.adapter.census().connections > 64, "TimeWait uses the room that there is");
    }
    mesh.until("the end of TimeWait", |members| members.iter().all(|m| m.adapter.census().connections == 0));
    assert_eq!(mesh.holdings(), before);
    for node in [0, 1] {
        assert_eq!(mesh.world.refusals(node), [""; 0]);
    }
}
