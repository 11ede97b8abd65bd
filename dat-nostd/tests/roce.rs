//! DAT on Ethernet ports: connections by RoCE v2, without a subnet manager.
//!
//! With `RDMA_MEDIUM=ethernet` all other tests here run on such ports as well.

use crate::common;

use common::{Net, Node, Options};
use dat_nostd::*;
use driver_mlx::Gid as PortGid;
use harness::{World, WorldConfig, host_region, keep};
use hca_model::Profile;
use hca_model::card::CONNECTX_5_EN;
use std::net::{IpAddr, Ipv6Addr};

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
        assert_eq!(net.nodes[0].port_info().mtu.bytes(), 1024, "frames of 1500 bytes");
        let sent = net.world.with_fabric(|fabric| fabric.counters().sent);
        assert_eq!((sent, net.nodes[0].port_counters().sa), (0, Default::default()), "no subnet manager");
        net.assert_no_refusals();
    }
}

/// The MAC address of a link-local address that was made of one needs no neighbour discovery.
#[test]
fn link_local_addresses_need_no_table() {
    let world = World::new(&WorldConfig::new(22));
    let attached: Vec<_> =
        profiles().into_iter().map(|profile| world.attach(profile, common::MEMORY)).collect();
    let address = |node: usize| -> IaAddress {
        let PortGid(bytes) = common::gid(&CONNECTX_5_EN, node);
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    let open = |(node, (platform, region))| -> Node {
        let storage: &'static mut common::Storage = keep(common::Storage::new());
        let config = AdapterConfig::new("roce0", address(node), &[], node as u128);
        let mut adapter =
            Adapter::open(platform, region, host_region(), storage.parts(), &config).expect("opens");
        let mut names = [RegistryEntry::EMPTY];
        Registry::with_first_id(&mut names, node as u8)
            .registry_add_provider(&mut adapter, ProviderInfo::new("roce0"))
            .unwrap();
        adapter
    };
    let nodes = attached.into_iter().enumerate().map(open).collect();
    let mut net = Net::of_adapters(world, nodes);
    let options = Options { name: "roce0", ..Options::default() };
    let sides = [net.side(0, &options), net.side(1, &options)];
    let psp = net.nodes[1].psp_create(sides[1].ia, 7, sides[1].cr, PspFlags::Consumer).unwrap();
    let (best, default) = (Qos::BestEffort, ConnectFlags::Default);
    net.nodes[0].ep_connect(sides[0].ep, &address(1), 7, TIMEOUT_INFINITE, b"", best, default).unwrap();
    let EventData::ConnectionRequest { local_address, cr, .. } = net.event(1, sides[1].cr) else {
        panic!("not a request")
    };
    assert_eq!(local_address, address(1));
    net.nodes[1].cr_accept(cr, Some(sides[1].ep), b"").unwrap();
    assert_eq!(net.connection(0, &sides[0]), ConnectionEvent::Established);
    assert_eq!(net.connection(1, &sides[1]), ConnectionEvent::Established);
    net.nodes[1].psp_free(psp).unwrap();
    net.ping(&sides, LEN, 1);
    // No neighbour is found at an address that was not made of a MAC address.
    let ep = net.side(0, &options);
    let to = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    net.nodes[0].ep_connect(ep.ep, &to, 7, TIMEOUT_INFINITE, b"", best, default).unwrap();
    assert_eq!(net.connection(0, &ep), ConnectionEvent::Unreachable);
    net.assert_no_refusals();
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
