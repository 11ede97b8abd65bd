//! IP between nodes in one process, over InfiniBand or Ethernet: the broadcast group, ARP, packets, and addresses that DAT connects to.

use dat_nostd::{
    AdapterConfig, ConnectFlags, ConnectionEvent, EpAttributes, EpHandle, EvdFlags, EventData, IpConfig,
    IpCounters, IpError, PspFlags, Qos, adapter_storage,
};
use driver_mlx::{DmaRegion, Instant};
use harness::dat::{HCA, ModelAdapter, address, due, register};
use harness::net::usual_card;
use harness::{ModelBar, ModelPlatform, World, WorldConfig};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5_EN, Card};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;
use std::net::Ipv4Addr;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
const MEMORY: usize = 8 << 20;

adapter_storage! {
    struct Tables {
        bar: ModelBar, dma_bytes: 16 << 20, eps: 8, evds: 32, lmrs: 16, events: 128,
        connections: 32,
    }
}

fn ip_of(node: usize) -> Ipv4Addr {
    match address(node) {
        std::net::IpAddr::V4(ip) => ip,
        std::net::IpAddr::V6(_) => unreachable!("the world's addresses are IPv4"),
    }
}

/// An adapter that knows nobody: everything is asked for.
fn open(platform: ModelPlatform, region: DmaRegion) -> ModelAdapter {
    let node = platform.node();
    let storage = Box::leak(Box::new(Tables::new()));
    let config = AdapterConfig {
        generation: 1,
        hca: HCA,
        ip: Some(IpConfig { prefix_len: 16, ..IpConfig::DEFAULT }),
        ..AdapterConfig::new("ib0", address(node), &[], 0x1d_0000 + node as u128)
    };
    let mut adapter = ModelAdapter::open(platform, region, harness::host_region(), storage.parts(), &config)
        .expect("opens");
    register(&mut adapter, 0);
    adapter
}

struct Nodes {
    world: Rc<World>,
    adapters: Vec<ModelAdapter>,
}

impl Nodes {
    fn new(config: &WorldConfig, count: usize) -> Self {
        Self::of(World::new(config), usual_card(), count)
    }

    fn of(world: Rc<World>, card: &'static Card, count: usize) -> Self {
        let attached: Vec<_> =
            (0..count).map(|i| world.attach(Profile::of(card, i as u16), MEMORY)).collect();
        let adapters = attached.into_iter().map(|(platform, region)| open(platform, region)).collect();
        let mut nodes = Self { world, adapters };
        nodes.until("IP is up", |nodes| nodes.adapters.iter_mut().all(|a| a.ip().expect("IP").is_up()));
        nodes
    }

    /// One round of everybody.
    fn round(&mut self) {
        let now = self.world.now();
        let mut next = now + 10_000_000;
        for adapter in &mut self.adapters {
            next = next.min(due(adapter.poll(Instant::from_nanos(now))).unwrap_or(u64::MAX));
        }
        self.world.idle(next.max(now + 1));
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.world.now() + 60 * SECOND;
        while !done(self) {
            assert!(self.world.now() < end, "{what}: not within a minute; {:?}", self.counters(0));
            self.round();
        }
    }

    /// Everybody for a while.
    fn pass(&mut self, duration: u64) {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            self.round();
        }
    }

    fn send(&mut self, from: usize, packet: &[u8]) -> Result<(), IpError> {
        self.adapters[from].ip().expect("IP").send(packet)
    }

    /// What has arrived at a node so far.
    fn arrived(&mut self, node: usize) -> Vec<Vec<u8>> {
        let mut ip = self.adapters[node].ip().expect("IP");
        let mut packets = Vec::new();
        while let Some(packet) = ip.rx() {
            packets.push(packet.to_vec());
        }
        packets
    }

    fn counters(&mut self, node: usize) -> IpCounters {
        self.adapters[node].ip().expect("IP").counters()
    }

    /// The next packet that arrived at a node.
    fn receive(&mut self, node: usize) -> Vec<u8> {
        let mut packet = None;
        self.until("a packet", |nodes| {
            packet = nodes.adapters[node].ip().expect("IP").rx().map(<[u8]>::to_vec);
            packet.is_some()
        });
        packet.expect("arrived")
    }
}

/// A packet whose every byte depends on sender, number and position.
fn packet(from: Ipv4Addr, to: Ipv4Addr, number: u8, len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> =
        (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ number ^ from.octets()[3]).collect();
    packet[..10].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, number, 0, 0, 64, 253]);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet
}

#[test]
fn packets_of_all_lengths_go_both_ways_and_the_first_is_not_lost() {
    let mut nodes = Nodes::new(&WorldConfig::new(1), 2);
    let mtu = nodes.adapters[0].ip().expect("IP").mtu();
    assert!([2044, 4092, 4082].contains(&mtu), "{mtu}");
    for (number, len) in [20, 21, 84, 1500, mtu - 1, mtu].into_iter().enumerate() {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = packet(ip_of(from), ip_of(to), number as u8, len);
            nodes.adapters[from].ip().expect("IP").send(&sent).expect("taken");
            assert_eq!(nodes.receive(to), sent, "packet {number} of node {from}");
        }
    }
    let too_long = packet(ip_of(0), ip_of(1), 9, mtu + 1);
    assert_eq!(nodes.adapters[0].ip().expect("IP").send(&too_long), Err(IpError::TooLong));
    assert_eq!(nodes.adapters[0].ip().expect("IP").send(&[0x60; 40]), Err(IpError::Malformed));
    // One request was enough (or none, if the other's announcement came first): the one who was asked learnt by it.
    let (a, b) = (nodes.counters(0).arp, nodes.counters(1).arp);
    assert!(a.requests <= 1 && b.requests == 0 && b.answered == a.requests, "{a:?} {b:?}");
    assert_eq!((a.conflicts, b.conflicts), (0, 0));
    for adapter in nodes.adapters {
        adapter.close().expect("closes");
    }
    // Everybody left the group.
    for node in [0, 1] {
        assert_eq!(nodes.world.refusals(node), Vec::<String>::new());
    }
}

#[test]
fn every_packet_arrives_once_and_in_order_where_nothing_is_lost() {
    let mut nodes = Nodes::new(&WorldConfig::new(2), 3);
    // More than fits into the queue at once, before anybody knows anybody.
    for number in 0..100u8 {
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let sent = packet(ip_of(from), ip_of(to), number, 100 + usize::from(number) * 7);
            let mut taken = nodes.send(from, &sent);
            while taken == Err(IpError::Full) {
                nodes.round();
                taken = nodes.send(from, &sent);
            }
            assert_eq!(taken, Ok(()));
        }
        nodes.round();
    }
    nodes.pass(SECOND / 10);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let arrived = nodes.arrived(to);
        assert!(arrived.len() <= 96 || nodes.counters(to).overrun == 0);
        for (number, found) in arrived.iter().enumerate() {
            let expected = packet(ip_of(from), ip_of(to), number as u8, 100 + number * 7);
            assert_eq!(found, &expected, "packet {number} of node {from}");
        }
        assert_eq!(arrived.len() as u64 + nodes.counters(to).overrun, 100);
    }
}

#[test]
fn who_does_not_exist_is_unreachable_and_arp_repairs_what_the_fabric_loses() {
    let mut config = WorldConfig::new(3);
    config.fabric.faults = "loss=20%".parse().expect("a fault");
    let mut nodes = Nodes::new(&config, 2);
    let nobody = Ipv4Addr::new(10, 0, 0, 99);
    nodes.send(0, &packet(ip_of(0), nobody, 0, 60)).expect("waits");
    assert_eq!(nodes.counters(0).unreachable, 0);
    nodes.pass(3 * SECOND + SECOND / 2);
    assert_eq!(nodes.send(0, &packet(ip_of(0), nobody, 0, 60)), Err(IpError::Unreachable));
    assert!(nodes.counters(0).unreachable >= 1 && nodes.counters(0).arp.failures >= 1);
    // Outside the prefix, without a gateway.
    let far = packet(ip_of(0), Ipv4Addr::new(192, 168, 0, 1), 0, 60);
    assert_eq!(nodes.send(0, &far), Err(IpError::NoRoute));

    let mut arrived = 0;
    for number in 0..200u8 {
        let sent = packet(ip_of(0), ip_of(1), number, 200);
        // An unlucky series of losses makes the neighbour unreachable for a second.
        let _ = nodes.send(0, &sent);
        nodes.pass(SECOND / 20);
        for found in nodes.arrived(1) {
            assert_eq!(found, packet(ip_of(0), ip_of(1), found[5], 200), "no byte is wrong");
            arrived += 1;
        }
    }
    assert!((100..200).contains(&arrived), "{arrived} of 200 with a fifth lost");
}

#[test]
fn broadcast_reaches_everybody_and_multicast_its_members() {
    let mut nodes = Nodes::new(&WorldConfig::new(4), 4);
    let group = Ipv4Addr::new(239, 1, 2, 3);
    for to in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 255, 255)] {
        let sent = packet(ip_of(0), to, 1, 300);
        nodes.send(0, &sent).expect("taken");
        for node in 1..4 {
            assert_eq!(nodes.receive(node), sent);
        }
        assert_eq!(nodes.arrived(0), Vec::<Vec<u8>>::new(), "its own packet came back");
    }
    for node in [1, 2] {
        assert!(nodes.adapters[node].ip().expect("IP").join(group));
    }
    assert!(!nodes.adapters[1].ip().expect("IP").join(ip_of(1)), "not a group");
    nodes.pass(3 * SECOND);
    let sent = packet(ip_of(3), group, 2, 400);
    nodes.send(3, &sent).expect("taken");
    for node in [1, 2] {
        assert_eq!(nodes.receive(node), sent);
    }
    nodes.pass(SECOND / 10);
    assert_eq!(nodes.arrived(0), Vec::<Vec<u8>>::new(), "no member");
    assert!(nodes.adapters[2].ip().expect("IP").leave(group));
    nodes.pass(3 * SECOND);
    nodes.send(3, &sent).expect("taken");
    assert_eq!(nodes.receive(1), sent);
    assert_eq!(nodes.arrived(2), Vec::<Vec<u8>>::new(), "has left");
    for adapter in nodes.adapters {
        adapter.close().expect("closes");
    }
}

#[test]
fn a_cable_pulled_and_a_node_opened_anew_are_found_again() {
    let mut nodes = Nodes::new(&WorldConfig::new(5), 2);
    let sent = packet(ip_of(0), ip_of(1), 1, 100);
    nodes.send(0, &sent).expect("taken");
    assert_eq!(nodes.receive(1), sent);
    nodes.world.set_cable(1, false);
    nodes.pass(SECOND);
    assert!(!nodes.adapters[1].ip().expect("IP").is_up());
    nodes.world.set_cable(1, true);
    nodes.until("IP is up again", |nodes| nodes.adapters[1].ip().expect("IP").is_up());
    nodes.pass(3 * SECOND);
    for (from, to) in [(0, 1), (1, 0)] {
        let sent = packet(ip_of(from), ip_of(to), 2, 100);
        nodes.send(from, &sent).expect("taken");
        assert_eq!(nodes.receive(to), sent);
    }
    assert!(nodes.counters(1).joins >= 2 || usual_card().is_ethernet(), "joined anew");
    // The node starts anew: another queue pair, which it announces.
    let old = nodes.adapters[1].ip().expect("IP").hardware_address();
    let adapter = nodes.adapters.pop().expect("node 1");
    let platform = nodes.world.platform(1);
    adapter.close().expect("closes");
    assert_eq!(nodes.world.census(1).total(), 0);
    let region = nodes.world.memory(1).region_again();
    nodes.adapters.push(open(platform, region));
    nodes.until("IP is up anew", |nodes| nodes.adapters[1].ip().expect("IP").is_up());
    nodes.pass(SECOND / 10);
    let sent = packet(ip_of(0), ip_of(1), 3, 100);
    nodes.send(0, &sent).expect("taken");
    assert_eq!(nodes.receive(1), sent, "from the neighbour that knew {old:?}");
}

#[test]
fn packets_that_nobody_reads_do_not_stop_arp() {
    let mut nodes = Nodes::new(&WorldConfig::new(6), 3);
    for number in 0..250u8 {
        let sent = packet(ip_of(0), ip_of(1), number, 64);
        while nodes.send(0, &sent) == Err(IpError::Full) {
            nodes.round();
        }
        nodes.round();
    }
    nodes.pass(SECOND / 10);
    assert!(nodes.counters(1).overrun > 0);
    // Node 2 has never asked before.
    let sent = packet(ip_of(2), ip_of(1), 7, 64);
    nodes.send(2, &sent).expect("taken");
    nodes.pass(SECOND / 10);
    assert_eq!(nodes.counters(2).arp.replies + nodes.counters(2).arp.moves, 1);
    assert!(nodes.arrived(1).len() >= 90);
}

/// An endpoint of a node without transfers, and the EVD that tells of its connection.
fn endpoint(adapter: &mut ModelAdapter) -> (EpHandle, dat_nostd::EvdHandle, dat_nostd::IaHandle) {
    let (ia, _) = adapter.ia_open("ib0", 8, None).expect("IA");
    let pz = adapter.pz_create(ia).expect("PZ");
    let streams = EvdFlags::CONNECTION | EvdFlags::CR;
    let evd = adapter.evd_create(ia, 16, None, streams).expect("EVD");
    let attributes = EpAttributes { max_recv_dtos: 0, max_request_dtos: 0, ..EpAttributes::DEFAULT };
    let ep = adapter.ep_create(ia, Some(pz), None, None, Some(evd), Some(&attributes)).expect("EP");
    (ep, evd, ia)
}

#[test]
fn dat_connects_by_address_to_a_port_that_only_arp_knows() {
    let mut nodes = Nodes::new(&WorldConfig::new(7), 2);
    let (ep, evd, _) = endpoint(&mut nodes.adapters[0]);
    let (peer, peer_evd, ia) = endpoint(&mut nodes.adapters[1]);
    nodes.adapters[1].psp_create(ia, 7471, peer_evd, PspFlags::Consumer).expect("listens");
    let connect = |nodes: &mut Nodes, to: usize| {
        let flags = ConnectFlags::Default;
        nodes.adapters[0].ep_connect(ep, &address(to), 7471, 20_000_000, b"hello", Qos::BestEffort, flags)
    };
    let event = |nodes: &mut Nodes, node: usize, evd| {
        let mut found = None;
        nodes.until("an event", |nodes| {
            found = nodes.adapters[node].evd_dequeue(evd).ok();
            found.is_some()
        });
        found.expect("arrived").data
    };
    // Nobody has that address: ARP gives up, and so does the connection, before the consumer's time-out.
    connect(&mut nodes, 77).expect("tries");
    let began = nodes.world.now();
    let EventData::Connection { event: ConnectionEvent::Unreachable, .. } = event(&mut nodes, 0, evd) else {
        panic!("not unreachable")
    };
    assert!((2 * SECOND..5 * SECOND).contains(&(nodes.world.now() - began)));
    nodes.adapters[0].ep_reset(ep).expect("reset");

    connect(&mut nodes, 1).expect("connects");
    let EventData::ConnectionRequest { cr, .. } = event(&mut nodes, 1, peer_evd) else {
        panic!("no request")
    };
    let request = nodes.adapters[1].cr_query(cr).expect("lives");
    assert_eq!((request.remote_address, &request.private_data[..5]), (address(0), &b"hello"[..]));
    nodes.adapters[1].cr_accept(cr, Some(peer), b"").expect("accepts");
    for (node, evd) in [(0, evd), (1, peer_evd)] {
        let EventData::Connection { event, .. } = event(&mut nodes, node, evd) else { panic!() };
        assert_eq!(event, ConnectionEvent::Established);
    }
}

/// A port of the switch without an HCA: to it go frames to groups, as to all ports of a switch that does not snoop.
struct Snooper(PortIndex);

/// A report as the snooper sees it: MAC address that it goes to, message type, group.
type Seen = ([u8; 6], u8, Vec<u8>);

impl Snooper {
    fn new(world: &Rc<World>) -> Self {
        world.with_medium(|medium, _| {
            let port = medium.switch_mut().attach("snooper").expect("a port");
            medium.switch_mut().set_link(port, true);
            Self(port)
        })
    }

    fn send(&self, world: &Rc<World>, frame: &[u8]) {
        world.with_medium(|medium, now| medium.switch_mut().send(self.0, Packet::frame(frame.to_vec()), now));
    }

    /// IGMP and MLD messages in the course of a while.
    fn watch(&self, nodes: &mut Nodes, duration: u64) -> Vec<Seen> {
        let end = nodes.world.now() + duration;
        let mut seen = Vec::new();
        while nodes.world.now() < end {
            nodes.round();
            self.take(&nodes.world, &mut seen);
        }
        seen
    }

    /// The messages that have arrived.
    fn take(&self, world: &Rc<World>, seen: &mut Vec<Seen>) {
        while let Some(packet) = world.with_medium(|medium, now| medium.switch_mut().receive(self.0, now)) {
            let (head, packet) = packet.bytes().split_at(14);
            let to = head[..6].try_into().expect("6 bytes");
            let (message, at, group) = match ([head[12], head[13]], packet[9], packet[6]) {
                ([8, 0], 2, _) => (&packet[24..], 4, 4),
                ([0x86, 0xdd], _, 0) => (&packet[48..], 8, 16),
                _ => continue,
            };
            seen.push((to, message[0], message[at..at + group].to_vec()));
        }
    }
}

#[test]
fn groups_are_reported_to_switches_repeated_on_query_and_left() {
    const GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::new(239, 9, 9, 9)];
    let world = World::new(&WorldConfig::new(8));
    let snooper = Snooper::new(&world);
    let mut nodes = Nodes::of(Rc::clone(&world), &CONNECTX_5_EN, 1);
    // The group in which the port's own IPv6 address is asked for.
    let [.., a, b, c] = nodes.adapters[0].port_info().gid.0;
    let solicited = [&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff], &[a, b, c][..]].concat();
    let own = ([0x33, 0x33, 0xff, a, b, c], 131, solicited.clone());
    let done = ([0x33, 0x33, 0, 0, 0, 2], 132, solicited);
    let [first, second] = GROUPS.map(|group| {
        let [_, b, c, d] = group.octets();
        ([1, 0, 0x5e, b, c, d], 0x16, group.octets().to_vec())
    });
    assert_eq!(snooper.watch(&mut nodes, 2 * SECOND), [own.clone(), own.clone()]);
    for to in GROUPS {
        assert!(nodes.adapters[0].ip().expect("IP").join(to));
    }
    let seen = snooper.watch(&mut nodes, 2 * SECOND);
    assert_eq!(seen[..2], [first.clone(), second.clone()]);
    assert!(seen.len() == 4 && seen[2..].contains(&first) && seen[2..].contains(&second), "{seen:x?}");

    // A query for all groups, of which the application sees nothing.
    let query = [
        1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x46, 0xc0, 0, 32, 0, 0, 0x40, 0, 1, 2, 0xfa, 0x0d, 10,
        0, 0, 9, 224, 0, 0, 1, 0x94, 4, 0, 0, 0x11, 100, 0xee, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0,
    ];
    snooper.send(&world, &query);
    let seen = snooper.watch(&mut nodes, 11 * SECOND);
    assert!(seen.len() == 2 && seen.contains(&first) && seen.contains(&second), "{seen:x?}");
    assert_eq!((nodes.arrived(0), nodes.counters(0).other_protocol), (vec![], 0));
    // A damaged one is none.
    let mut damaged = query;
    damaged[39] ^= 1;
    snooper.send(&world, &damaged);
    assert_eq!(snooper.watch(&mut nodes, 11 * SECOND), []);

    assert!(nodes.adapters[0].ip().expect("IP").leave(GROUPS[0]));
    let leave = |n: usize| ([1, 0, 0x5e, 0, 0, 2], 0x17, GROUPS[n].octets().to_vec());
    assert_eq!(snooper.watch(&mut nodes, 2 * SECOND), [leave(0), leave(0)]);
    // The cable may lead to another switch by now.
    world.set_cable(0, false);
    nodes.pass(SECOND);
    world.set_cable(0, true);
    let seen = snooper.watch(&mut nodes, 3 * SECOND);
    assert!(seen.len() == 4 && seen.contains(&own) && seen.contains(&second), "{seen:x?}");
    for adapter in nodes.adapters {
        adapter.close().expect("closes");
    }
    world.idle(world.now() + SECOND);
    let mut seen = Vec::new();
    snooper.take(&world, &mut seen);
    assert!(seen.len() == 2 && seen.contains(&done) && seen.contains(&leave(1)), "{seen:x?}");
}
