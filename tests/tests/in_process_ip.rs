//! IP over InfiniBand between nodes in one process: the broadcast group, ARP, packets, and addresses that DAT connects to.

use dat_nostd::{AdapterConfig, AdapterStorage, IpConfig, IpCounters, IpError};
use driver_mlx::DmaRegion;
use hca_model::Profile;
use std::net::Ipv4Addr;
use std::rc::Rc;
use tests::dat::{HCA, ModelAdapter, address};
use tests::{ModelBar, ModelPlatform, World, WorldConfig};

const SECOND: u64 = 1_000_000_000;
const MEMORY: usize = 8 << 20;

type Tables = AdapterStorage<ModelBar, { 1 << 12 }, 8, 32, 16, 128, 32>;

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
    ModelAdapter::open(platform, region, storage.parts(), &config).expect("opens")
}

struct Nodes {
    world: Rc<World>,
    adapters: Vec<ModelAdapter>,
}

impl Nodes {
    fn new(config: &WorldConfig, count: usize) -> Self {
        let world = World::new(config);
        let attached: Vec<_> = (0..count).map(|i| world.attach(Profile::node(i as u16), MEMORY)).collect();
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
            next = next.min(adapter.poll(now).unwrap_or(u64::MAX));
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
    assert!(mtu == 2044 || mtu == 4092, "{mtu}");
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
