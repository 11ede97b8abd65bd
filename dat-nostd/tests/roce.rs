//! DAT on Ethernet ports: connections by RoCE v2, without a subnet manager. Peers are found by ARP or neighbour discovery.
//!
//! With `RDMA_MEDIUM=ethernet` all other tests here run on such ports as well.

use crate::common;

use common::{Net, Node, Options};
use dat_nostd::*;
use driver_mlx::{DmaRegion, Gid as PortGid, MacAddress, VlanId};
use harness::seeds::Random;
use harness::{World, WorldConfig, host_region, keep};
use hca_model::Profile;
use hca_model::card::CONNECTX_5_EN;
use ib_port::ib_mgmt::ethernet::{Header, Message, Sender};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SECOND: u64 = 1_000_000_000;
/// Bytes of a message.
const LEN: usize = 9000;

fn profiles() -> Vec<Profile> {
    [0, 1].map(|node| Profile::of(&CONNECTX_5_EN, node)).to_vec()
}

#[test]
fn both_names_connect_by_roce() {
    for name in ["ib0", "ib0-dat"] {
        let mut net = Net::with_profiles(&WorldConfig::new(21), profiles());
        let sides = net.pair(&Options { name, ..Options::default() });
        net.ping(&sides, LEN, 1);
        let (_, attributes, _) = net.nodes[0].ia_query(sides[0].ia).unwrap();
        assert_eq!(
            (attributes.adapter_name, net.nodes[0].name(), net.nodes[0].ip_mtu()),
            ("roce0", "roce0", 1500)
        );
        assert_eq!(net.nodes[0].port_info().mtu.bytes(), 1024, "frames of 1500 bytes");
        let sent = net.world.with_fabric(|fabric| fabric.counters().sent);
        assert_eq!((sent, net.nodes[0].port_counters().sa), (0, Default::default()), "no subnet manager");
        net.assert_no_refusals();
    }
}

/// Nodes at these addresses, without a table of neighbours.
fn nodes_at(seed: u64, addresses: &[IaAddress]) -> Net {
    nodes_on(seed, addresses, &[])
}

/// The same on these VLANs, or on none.
fn nodes_on(seed: u64, addresses: &[IaAddress], vlans: &[u16]) -> Net {
    let world = World::new(&WorldConfig::new(seed));
    let attach = |node: usize| world.attach(Profile::of(&CONNECTX_5_EN, node as u16), common::MEMORY);
    let attached: Vec<_> = (0..addresses.len()).map(attach).collect();
    let vlan = |node: usize| vlans.get(node).copied().map(VlanId::new);
    let open = |(node, (platform, region))| open(platform, region, node, (addresses[node], vlan(node)));
    let nodes = attached.into_iter().enumerate().map(open).collect();
    Net::of_adapters(world, nodes)
}

fn open(
    platform: harness::ModelPlatform,
    region: DmaRegion,
    node: usize,
    (address, vlan): (IaAddress, Option<VlanId>),
) -> Node {
    let storage: &'static mut common::Storage = keep(common::Storage::new());
    let seed = u128::from(platform.world().now()) << 8 | node as u128;
    let config = AdapterConfig { vlan, ..AdapterConfig::new("roce0", address, &[], seed) };
    let mut adapter =
        Adapter::open(platform, region, host_region(), storage.parts(), &config).expect("opens");
    let mut names = [RegistryEntry::EMPTY];
    Registry::with_first_id(&mut names, node as u8)
        .registry_add_provider(&mut adapter, ProviderInfo::new("roce0"))
        .unwrap();
    adapter
}

fn options() -> Options {
    Options { name: "roce0", ..Options::default() }
}

/// Node 0 connects to node 1, at `to`.
fn connects(net: &mut Net, to: IaAddress) -> [common::Side; 2] {
    let sides = [net.side(0, &options()), net.side(1, &options())];
    let psp = net.nodes[1].psp_create(sides[1].ia, 7, sides[1].cr, PspFlags::Consumer).unwrap();
    let (best, default) = (Qos::BestEffort, ConnectFlags::Default);
    net.nodes[0].ep_connect(sides[0].ep, &to, 7, TIMEOUT_INFINITE, b"", best, default).unwrap();
    let EventData::ConnectionRequest { local_address, cr, .. } = net.event(1, sides[1].cr) else {
        panic!("not a request")
    };
    assert_eq!(local_address, to);
    net.nodes[1].cr_accept(cr, Some(sides[1].ep), b"").unwrap();
    assert_eq!(net.connection(0, &sides[0]), ConnectionEvent::Established);
    assert_eq!(net.connection(1, &sides[1]), ConnectionEvent::Established);
    net.nodes[1].psp_free(psp).unwrap();
    net.ping(&sides, LEN, 1);
    sides
}

/// Returns the event of a connection to an unused address.
fn fails(net: &mut Net, to: IaAddress) -> ConnectionEvent {
    let side = net.side(0, &options());
    let (best, default) = (Qos::BestEffort, ConnectFlags::Default);
    net.nodes[0].ep_connect(side.ep, &to, 7, TIMEOUT_INFINITE, b"", best, default).unwrap();
    net.connection(0, &side)
}

/// The MAC address of a link-local address that was made of one needs no neighbour discovery.
#[test]
fn link_local_addresses_need_no_table() {
    let address = |node: usize| -> IaAddress {
        let PortGid(bytes) = common::gid(&CONNECTX_5_EN, node);
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    let mut net = nodes_at(22, &[address(0), address(1)]);
    connects(&mut net, address(1));
    assert_eq!(net.nodes[0].port_counters().ip.arp.requests, 0);
    // An address without a MAC address in it is requested, without reply.
    let to = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    assert_eq!(fails(&mut net, to), ConnectionEvent::Unreachable);
    assert_eq!(net.nodes[0].port_counters().ip.arp.requests, 3, "three tries");
    net.assert_no_refusals();
}

#[test]
fn ipv4_addresses_are_found_by_arp() {
    let addresses = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let mut net = nodes_at(24, &addresses);
    connects(&mut net, addresses[1]);
    connects(&mut net, addresses[1]);
    let [a, b] = [0, 1].map(|node| net.nodes[node].port_counters());
    assert_eq!(a.ip.arp.requests, 1, "asked once");
    // The request's sender is cached, so that no datagram waits for it.
    assert_eq!((b.ip.arp.answered, b.ip.arp.requests, b.unreachable), (1, 0, 0));
    let own = net.nodes[0].port_info();
    assert_eq!(own.address.map(|(gid, _)| gid), Some(PortGid::from_ipv4([10, 0, 0, 1])));
    assert_eq!(net.nodes[0].known_gid(&addresses[1]), Some(PortGid::from_ipv4([10, 0, 0, 2]).0));
    for nobody in [Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 1, 2)] {
        assert_eq!(fails(&mut net, nobody.into()), ConnectionEvent::Unreachable, "{nobody}");
    }
    let asked = net.nodes[0].port_counters().ip.arp.requests;
    assert_eq!(asked, 4, "an address beyond the subnet has no gateway, and is not asked for");
    net.assert_no_refusals();
}

#[test]
fn ipv6_addresses_are_found_by_neighbour_discovery() {
    let addresses = [1, 2].map(|host| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 7, host)));
    let mut net = nodes_at(25, &addresses);
    connects(&mut net, addresses[1]);
    let [a, b] = [0, 1].map(|node| net.nodes[node].port_counters());
    assert_eq!((a.ip.arp.requests, a.ip.arp.replies, b.ip.arp.answered), (1, 1, 1));
    net.assert_no_refusals();
}

/// Requests, ARP, neighbour discovery and data stay on the VLAN.
#[test]
fn ports_reach_those_of_their_vlan_only() {
    let v4 = |host: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
    let v6 = |host: u8| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 7, host.into()));
    for (seed, addresses) in [(31, [1, 2, 3].map(v4)), (32, [1, 2, 3].map(v6))] {
        let mut net = nodes_on(seed, &addresses, &[5, 5, 6]);
        connects(&mut net, addresses[1]);
        assert_eq!(fails(&mut net, addresses[2]), ConnectionEvent::Unreachable);
        assert_eq!(net.nodes[0].port_info().vlan, Some(VlanId::new(5)));
        assert_eq!(net.nodes[2].port_counters().ip.arp.answered, 0, "frames of another VLAN");
        net.assert_no_refusals();
        // Without a tag: not reachable from a VLAN.
        let mut net = nodes_on(seed, &addresses[..2], &[5]);
        assert_eq!(fails(&mut net, addresses[1]), ConnectionEvent::Unreachable);
    }
}

/// A peer whose MAC address was forgotten is asked for before its request is answered.
#[test]
fn requests_wait_until_their_sender_is_found() {
    let addresses = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let mut net = nodes_at(26, &addresses);
    // Node 1 boots again with an empty table. Node 0 keeps its MAC address and sends no request.
    let sides = connects(&mut net, addresses[1]);
    net.nodes[0].ia_close(sides[0].ia, CloseFlags::Abrupt).unwrap();
    net.world.reset(1);
    net.world.enable(1);
    let region = net.world.memory(1).region_again();
    let again = open(net.world.platform(1), region, 1, (addresses[1], None));
    std::mem::forget(std::mem::replace(&mut net.nodes[1], again));
    let asked = net.nodes[0].port_counters().ip.arp.requests;
    let began = net.world.now();
    connects(&mut net, addresses[1]);
    assert!(net.world.now() - began < SECOND / 10, "no message was repeated");
    let [a, b] = [0, 1].map(|node| net.nodes[node].port_counters());
    assert_eq!((a.ip.arp.requests, b.ip.arp.requests, b.unreachable), (asked, 1, 0));
}

/// A port of the same switch that sends frames of any content.
struct Flood {
    hca: driver_mlx::Hca<'static, harness::ModelPlatform>,
    cq: driver_mlx::Cq<harness::ModelBar>,
    qp: driver_mlx::Qp<harness::ModelBar>,
}

impl Flood {
    fn new(world: &std::rc::Rc<World>) -> Self {
        let node = harness::Node::bring_up(
            world,
            Profile::of(&CONNECTX_5_EN, 9),
            common::MEMORY,
            &driver_mlx::Config::DEFAULT,
        );
        let mut hca = node.expect("comes up").hca;
        let pd = hca.alloc_pd().expect("a PD");
        let cq = hca.create_cq(&driver_mlx::CqConfig { entries: 64, eq: 0 }).expect("a CQ");
        let mut qp = hca.create_qp(&driver_mlx::QpConfig::raw_packet(pd, cq.number())).expect("a QP");
        hca.start_raw_packet(&mut qp).expect("starts");
        Self { hca, cq, qp }
    }

    fn send(&mut self, frame: &[u8]) {
        while let Ok(Some(retired)) = self.cq.poll(|cqe| self.qp.retire(cqe)) {
            assert!(retired.is_some());
        }
        let none = driver_mlx::FrameChecksums::empty();
        if let Ok(doorbell) = self.qp.post_frame(frame, &[], none, 1, driver_mlx::SendFlags::SIGNALED) {
            self.qp.ring(doorbell);
        }
        let _ = self.hca.poll(self.hca.now());
    }
}

/// Requests in the name of hosts that do not exist, random bytes, and damaged messages: peers are found all the same, and
/// no table grows.
#[test]
fn hostile_frames_keep_nobody_from_being_found() {
    let addresses = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let mut net = nodes_at(29, &addresses);
    let mut flood = Flood::new(&net.world);
    let mut random = Random::new(29);
    let macs = [0, 1].map(|node| net.nodes[node].port_info().ethernet.expect("Ethernet").mac);
    let groups = [MacAddress::BROADCAST, MacAddress([0x33, 0x33, 0, 0, 0, 1])];
    for round in 0..4000u32 {
        let to = *[macs[0], macs[1], groups[0], groups[1]].get(round as usize % 4).expect("one of four");
        let from = MacAddress([2, 9, 0, 0, (round >> 8) as u8, round as u8]);
        let sender = PortGid::from_ipv4([10, 0, 0, 100 + random.below(150) as u8]);
        let own = Sender { address: sender, mac: from };
        let target = match addresses[random.below(2) as usize] {
            IpAddr::V4(ip) => PortGid::from_ipv4(ip.octets()),
            IpAddr::V6(ip) => PortGid(ip.octets()),
        };
        let message = if random.below(3) == 0 {
            let own = Sender { address: PortGid::link_local(from), ..own };
            Message::request(own, net.nodes[0].port_info().gid)
        } else {
            Message::request(own, target)
        };
        let header = Header { to, from, vlan: None, ether_type: message.ether_type() };
        let (header, header_len) = header.encode();
        let mut frame = header[..header_len].to_vec();
        frame.extend(message.as_bytes().iter().take(68));
        match random.below(4) {
            0 => frame.iter_mut().skip(12).for_each(|byte| *byte = random.below(256) as u8),
            1 => {
                let at = 14 + random.below(frame.len() as u64 - 14) as usize;
                frame[at] ^= 1 << random.below(8);
            }
            2 => frame.truncate(14 + random.below(60) as usize),
            _ => {}
        }
        flood.send(&frame);
        if round % 16 == 0 {
            net.step();
        }
    }
    let sides = connects(&mut net, addresses[1]);
    net.ping(&sides, LEN, 5);
    let counters = [0, 1].map(|node| net.nodes[node].port_counters().ip);
    for ip in counters {
        assert!(ip.arp.answered > 50 && ip.other_protocol > 50 && ip.arp.evicted > 0, "{ip:?}");
        assert_eq!((ip.bad, ip.send_errors, ip.setup_failures), (0, 0, 0), "{ip:?}");
    }
}

/// RoCE and its addresses are gone with each reset, and back with each recovery.
#[test]
fn an_ethernet_hca_is_killed_and_revived_100_times() {
    let mut net = Net::with_profiles(&WorldConfig::new(23), profiles());
    let options = Options::default();
    let mut sides = net.pair(&options);
    for round in 0..100 {
        let victim = round % 2;
        net.ping(&sides, LEN, round as u64 * 100);
        net.world.lose_hca(victim, [3, 10][round / 2 % 2] * SECOND);
        assert_eq!(net.connection(victim, &sides[victim]), ConnectionEvent::Broken);
        net.nodes[victim].recover(std::time::Duration::from_secs(30)).unwrap();
        net.nodes[1 - victim].ia_close(sides[1 - victim].ia, CloseFlags::Abrupt).unwrap();
        sides = [0, 1].map(|node| net.side_over(node, &options, sides[node].memory));
        net.connect(&sides);
        // Another failure at once would be refused.
        net.pass(61 * SECOND);
    }
    net.ping(&sides, LEN, 7777);
}
