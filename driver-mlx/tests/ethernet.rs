//! Ethernet ports: they come up, connections loop inside the card, and RoCE v2 carries data from card
//! to card.

use crate::common;

use common::World;
use common::node::{Node, filled, from, sound};
use common::recovery::{SECOND, ready, until_fatal};
use driver_mlx::{
    AddressVector, CompletionKind, Config, Duration, Error, Gid, Grh, LinkState, MacAddress, Mtu, Path,
    PortType, Psn, QKey, QpConfig, RtrParams, SendFlags, SendOp, VlanId,
};
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN, Card};
use hca_model::{Habits, Profile};
use mlx5_prm::caps::roce_cap;
use mlx5_prm::status::{CqeSyndrome, HealthSyndrome};
use mlx5_prm::value::{CapType, RegisterId};
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

fn world_of(profiles: impl IntoIterator<Item = Profile>) -> Rc<World> {
    World::new(profiles, FabricConfig::default())
}

fn two() -> Rc<World> {
    world_of([0, 1].map(|index| Profile::of(&CONNECTX_5_EN, index)))
}

fn ipv4(host: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, host])
}

fn mac(node: &mut Node) -> MacAddress {
    node.hca.port().expect("a port").ethernet().expect("Ethernet").mac
}

/// Returns the path from an address of `node` to one of `peer`.
fn roce(node: &mut Node, own: Gid, peer: &mut Node, dgid: Gid, vlan: Option<VlanId>) -> Path {
    let source_gid_index = node.hca.add_roce_address(own, vlan).expect("room");
    let grh = Grh { dgid, source_gid_index, flow_label: 0, hop_limit: 64, traffic_class: 0x68 };
    Path::Roce { dmac: mac(peer), priority: 3, grh }
}

fn to_rtr(path: Path, peer: &Node, psn: u32) -> RtrParams {
    RtrParams {
        path,
        mtu: Mtu::B1024,
        remote_qpn: peer.qp.number(),
        rq_psn: Psn::new(0xff_fff0 + psn),
        responder_resources: 4,
        min_rnr_timer: 12,
    }
}

/// Connects two nodes from and to these addresses.
fn connect(a: &mut Node, b: &mut Node, gids: [Gid; 2], vlan: Option<VlanId>) {
    let [to_b, to_a] = [roce(a, gids[0], b, gids[1], vlan), roce(b, gids[1], a, gids[0], vlan)];
    let rtr = [to_rtr(to_b, b, 1), to_rtr(to_a, a, 0)];
    for (psn, (node, rtr)) in [a, b].into_iter().zip(rtr).enumerate() {
        node.init();
        node.hca.modify_to_rtr(&mut node.qp, &rtr).expect("RTR");
        node.hca.modify_to_rts(&mut node.qp, &from(psn as u32)).expect("RTS");
    }
}

/// Sends, writes and reads from `a` to `b`.
fn moves_data(world: &Rc<World>, a: &mut Node, b: &mut Node) {
    const LEN: usize = 10_000;
    let (raddr, rkey) = b.remote(100_000);
    let ops = [SendOp::Send, SendOp::Write { raddr, rkey }, SendOp::Read { raddr, rkey }];
    for (message, op) in (0..).zip(ops) {
        let sent = filled(1, message, LEN);
        let (from, to) = if message == 2 { (100_000, 200_000) } else { (0, 0) };
        let source = if message == 2 { &*b } else { &*a };
        source.put(from, &sent);
        if message == 0 {
            b.qp.post_recv(&[b.sge(50_000, LEN)], 50).expect("room");
        }
        let doorbell = a.qp.post_send(op, &[a.sge(to, LEN)], 7, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        assert_eq!(a.expect(world, CompletionKind::Send).1, 7);
        let arrived = match message {
            0 => {
                assert_eq!(b.expect(world, CompletionKind::Receive).0.byte_len() as usize, LEN);
                b.get(50_000, LEN)
            }
            1 => b.get(100_000, LEN),
            _ => a.get(200_000, LEN),
        };
        assert!(arrived == sent, "message {message}");
    }
}

#[test]
fn an_ethernet_port_comes_up_and_says_what_it_is() {
    for card in Card::ALL.iter().filter(|card| card.is_ethernet()) {
        let profile = Profile { init_pages: 64, ..Profile::of(card, 0) };
        let world = world_of([profile]);
        let mut hca = world.ready(0);
        assert_eq!(hca.caps().port_type, PortType::Ethernet);
        let roce = hca.caps().roce.expect("RoCE");
        assert!(roce.ipv4 && roce.ipv6 && roce.address_table_size > 16 && hca.caps().force_loopback);
        let port = hca.port().expect("a port");
        let link = *port.ethernet().expect("Ethernet");
        // The function's MAC address is that of its GUID, an EUI-64.
        let [a, b, c, _, _, d, e, f] = port.port_guid.get().to_be_bytes();
        let own = MacAddress([a, b, c, d, e, f]);
        assert_eq!((link.mac, link.mtu, port.mtu), (own, 1500, Mtu::B1024), "{}", card.name);
        assert!(port.speed >= 25_000 && port.infiniband().is_none() && port.lid().get() == 0);
        assert_eq!((hca.pkey(0).map(|key| key.get()), hca.gid(0)), (Ok(0xffff), Ok(Gid::ZERO)));
        assert!(matches!(hca.pkey(1), Err(Error::Limit { what: "pkey_table_size", .. })));
        world.model(0, |m| m.port_mut().set_cable(false));
        assert_eq!(hca.port().map(|port| port.state), Ok(LinkState::Down));
        hca.tear_down().expect("torn down");
        assert_eq!(world.complaints(0), [""; 0], "{}", card.name);
    }
}

#[test]
fn frames_are_as_long_as_asked_for_and_the_port_can() {
    for (ethernet_mtu, mtu) in [
        (1500, Mtu::B1024),
        (2143, Mtu::B1024),
        (2144, Mtu::B2048),
        (9000, Mtu::B4096),
        (u16::MAX, Mtu::B4096),
    ] {
        let world = world_of([Profile::of(&CONNECTX_5_EN, 0)]);
        let config = Config { ethernet_mtu, ..Config::DEFAULT };
        let port = world.ready_with(0, &config).port().expect("a port");
        assert_eq!(port.mtu, mtu, "{ethernet_mtu}");
        assert!(port.ethernet().expect("Ethernet").mtu <= ethernet_mtu);
        assert_eq!(world.complaints(0), [""; 0]);
    }
}

/// A function that owns no port has the frame size of its vport, and touches no register of ports.
#[test]
fn a_virtual_function_reads_its_vport() {
    let refused = vec![RegisterId::HOST_ENDIANNESS, RegisterId::PAOS, RegisterId::PMTU, RegisterId::PTYS];
    let habits = Habits { refused_registers: refused, ..Habits::default() };
    let world = world_of([Profile { habits, ..Profile::of(&CONNECTX_5_EN, 0) }]);
    let config = Config { physical_function: false, ethernet_mtu: 4192, ..Config::DEFAULT };
    let port = world.ready_with(0, &config).port().expect("a port");
    assert_eq!((port.mtu, port.speed), (Mtu::B4096, 0));
}

#[test]
fn connections_loop_inside_the_card_without_a_link() {
    for card in [&CONNECTX_5_EN, &CONNECTX_5] {
        let world = world_of([Profile::of(card, 0)]);
        world.set_cable(0, false);
        let hca = world.bring_up(0, &Config::DEFAULT).expect("comes up");
        let mut a = Node::on(hca, 0, |_| ());
        a.init();
        let rtr = RtrParams { rq_psn: Psn::new(0xff_fff0), ..to_rtr(Path::Loopback, &a, 0) };
        a.hca.modify_to_rtr(&mut a.qp, &rtr).expect("RTR");
        a.hca.modify_to_rts(&mut a.qp, &from(0)).expect("RTS");
        a.put(0, &filled(1, 1, 5000));
        a.qp.post_recv(&[a.sge(100_000, 5000)], 1).expect("room");
        let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 5000)], 2, SendFlags::SIGNALED).expect("room");
        a.qp.ring(doorbell);
        let mut kinds = [a.completion(&world), a.completion(&world)].map(|cqe| {
            assert!(a.qp.retire(&cqe).is_some());
            cqe.kind() as u8
        });
        kinds.sort_unstable();
        assert_eq!(kinds, [CompletionKind::Send as u8, CompletionKind::Receive as u8], "{}", card.name);
        assert!(a.get(100_000, 5000) == filled(1, 1, 5000));
        assert_eq!(world.complaints(0), [""; 0]);
        a.end();
    }
}

#[test]
fn roce_carries_data_over_ipv4_ipv6_and_a_vlan() {
    let local = |node: &mut Node| Gid::link_local(mac(node));
    for case in 0..3 {
        let world = two();
        let [mut a, mut b] = [0, 1].map(|index| Node::new(&world, index, |_| ()));
        let (gids, vlan) = match case {
            0 => ([ipv4(1), ipv4(2)], None),
            1 => ([local(&mut a), local(&mut b)], None),
            _ => ([ipv4(1), ipv4(2)], Some(VlanId::new(7))),
        };
        connect(&mut a, &mut b, gids, vlan);
        moves_data(&world, &mut a, &mut b);
        moves_data(&world, &mut b, &mut a);
        sound(&world);
        a.end();
        b.end();
    }
}

#[test]
fn datagrams_of_roce_show_their_ip_header() {
    let world = two();
    let q_key = QKey::new(0x1234);
    let ud = |config: &mut QpConfig| config.service = driver_mlx::Service::Ud { q_key };
    let [mut a, mut b] = [0, 1].map(|index| Node::new(&world, index, ud));
    for node in [&mut a, &mut b] {
        node.init();
        node.hca.modify_to_rts_datagram(&mut node.qp, Psn::new(0)).expect("RTS");
    }
    let to_b = roce(&mut a, ipv4(1), &mut b, ipv4(2), None);
    let _ = roce(&mut b, ipv4(2), &mut a, ipv4(1), None);
    b.qp.post_recv(&[b.sge(0, 2048)], 1).expect("room");
    a.put(0, b"datagram");
    let vector = AddressVector::new(&to_b, b.qp.number(), q_key, 0);
    let sge = a.sge(0, 8);
    let doorbell = a.qp.post_ud(&vector, SendOp::Send, &[sge], 2, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    a.expect(&world, CompletionKind::Send);
    let (received, _) = b.expect(&world, CompletionKind::Receive);
    let origin = received.datagram();
    assert_eq!((received.byte_len(), origin.src_qpn, origin.slid.get()), (48, a.qp.number(), 0));
    assert!(origin.grh && origin.vlan.is_none());
    assert_eq!(origin.network_header(), Some(driver_mlx::NetworkHeader::Ipv4));
    assert_eq!(b.get(40, 8), b"datagram");
    let header = b.get(20, 20);
    assert_eq!((header[0], header[1], header[8], header[9]), (0x45, 0x6a, 64, 17));
    assert_eq!((&header[12..16], &header[16..20]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
    sound(&world);
}

#[test]
fn addresses_are_found_by_value() {
    let world = two();
    let mut hca = world.ready(0);
    let vlan = Some(VlanId::new(9));
    assert_eq!([hca.add_roce_address(ipv4(1), None), hca.add_roce_address(ipv4(1), vlan)], [Ok(0), Ok(1)]);
    assert_eq!(hca.add_roce_address(ipv4(1), None), Ok(0), "it is there");
    assert_eq!((hca.gid(0), hca.gid(1), hca.gid(2)), (Ok(ipv4(1)), Ok(ipv4(1)), Ok(Gid::ZERO)));
    assert_eq!(hca.remove_roce_address(ipv4(1), None), Ok(true));
    assert_eq!(hca.remove_roce_address(ipv4(1), None), Ok(false));
    assert_eq!(
        (hca.roce_address_index(ipv4(1), None), hca.roce_address_index(ipv4(1), vlan)),
        (None, Some(1))
    );
    // The hole is filled first.
    assert_eq!(hca.add_roce_address(ipv4(2), None), Ok(0));
    for host in 3..17 {
        hca.add_roce_address(ipv4(host), None).expect("room");
    }
    let full = hca.add_roce_address(ipv4(17), None);
    assert!(matches!(full, Err(Error::Limit { what: "roce_address_table_size", limit: 16, .. })), "{full:?}");
    for none in [Gid::ZERO, Gid([0xff; 16]), Gid::from_ipv4([224, 0, 0, 1])] {
        assert_eq!(hca.add_roce_address(none, None), Err(Error::InvalidArgument("gid")));
    }
    assert_eq!(world.complaints(0), [""; 0]);
    // InfiniBand has no such table.
    let world = world_of([Profile::node(0)]);
    let refused = world.ready(0).add_roce_address(ipv4(1), None);
    assert_eq!(refused, Err(Error::MissingCapability("roce")));
}

/// Paths name the medium: firmware would take the fields of the other one for something else.
#[test]
fn paths_of_the_other_medium_are_refused() {
    let infiniband = Path::InfiniBand {
        dlid: driver_mlx::Lid::new(1),
        sl: driver_mlx::ServiceLevel::default(),
        src_path_bits: 0,
        static_rate: 0,
        grh: None,
    };
    let grh = Grh { dgid: ipv4(1), source_gid_index: 0, flow_label: 0, hop_limit: 64, traffic_class: 0 };
    let roce = Path::Roce { dmac: MacAddress::default(), priority: 0, grh };
    for (profile, path) in [(Profile::of(&CONNECTX_5_EN, 0), infiniband), (Profile::node(0), roce)] {
        let world = world_of([profile]);
        let mut a = Node::new(&world, 0, |_| ());
        a.init();
        let rtr = to_rtr(path, &a, 0);
        assert_eq!(a.hca.modify_to_rtr(&mut a.qp, &rtr), Err(Error::InvalidArgument("path")));
        assert_eq!(world.complaints(0), [""; 0]);
    }
}

/// An address of the peer that it does not have: nothing comes back, and the retries end.
#[test]
fn a_packet_for_an_address_that_is_gone_is_not_acknowledged() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| Node::new(&world, index, |_| ()));
    connect(&mut a, &mut b, [ipv4(1), ipv4(2)], None);
    b.hca.remove_roce_address(ipv4(2), None).expect("removed");
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 8)], 7, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    let completion = a.completion(&world);
    let syndrome = completion.error().expect("failed").syndrome;
    assert_eq!(syndrome, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR);
}

#[test]
fn a_reset_leaves_roce_frame_size_and_addresses_as_they_were() {
    let world = two();
    let config = Config { recovery_grace: Duration::ZERO, ethernet_mtu: 4192, ..Config::DEFAULT };
    let mut hca = world.bring_up(0, &config).expect("comes up");
    for host in [1, 9] {
        hca.add_roce_address(ipv4(host), None).expect("room");
    }
    hca.add_roce_address(ipv4(5), Some(VlanId::new(6))).expect("room");
    hca.remove_roce_address(ipv4(9), None).expect("removed");
    let mut a = Node::on(hca, 0, |_| ());
    let mut b = Node::new(&world, 1, |_| ());
    for round in 0..3 {
        connect(&mut a, &mut b, [ipv4(1), ipv4(2)], None);
        moves_data(&world, &mut a, &mut b);
        b.hca.modify_to_reset(&mut b.qp).expect("RESET");
        world.model(0, |m| if round == 1 { m.fail(HealthSyndrome(1)) } else { m.reset() });
        until_fatal(&world, &mut a.hca, 5 * SECOND);
        a.hca.recover().expect("recovers");
        ready(&world, &mut a.hca);
        let port = a.hca.port().expect("a port");
        assert_eq!(port.mtu, Mtu::B4096);
        assert_eq!((a.hca.gid(0), a.hca.gid(1), a.hca.gid(2)), (Ok(ipv4(1)), Ok(Gid::ZERO), Ok(ipv4(5))));
        a.renew();
    }
}

/// A card that is like a ConnectX-5 but for this capability of RoCE.
fn with_roce(field: mlx5_prm::Field, value: u32) -> Profile {
    let other_capabilities = Box::leak(Box::new([(CapType::ROCE, field, value)]));
    Profile::of(Box::leak(Box::new(Card { other_capabilities, ..CONNECTX_5_EN })), 0)
}

/// Packets of another version of RoCE or IP are dropped by the peer without a trace.
#[test]
fn addresses_of_versions_that_the_card_lacks_are_refused() {
    let ipv6 = Gid::link_local(MacAddress([2, 0, 0, 0, 0, 9]));
    // Version 1 only; GRH and IPv6 only; GRH and IPv4 only.
    for (field, value, can) in [
        (roce_cap::roce_version, 1, [false, false]),
        (roce_cap::l3_type, 0b101, [false, true]),
        (roce_cap::l3_type, 0b011, [true, false]),
    ] {
        let world = world_of([with_roce(field, value)]);
        let mut hca = world.ready(0);
        for (gid, can) in [ipv4(1), ipv6].into_iter().zip(can) {
            let refused = Err(Error::MissingCapability("l3_type"));
            assert_eq!(hca.add_roce_address(gid, None).map(|_| ()), if can { Ok(()) } else { refused });
        }
        assert_eq!(world.complaints(0), [""; 0]);
    }
}

#[test]
fn a_short_address_table_is_not_exceeded() {
    let world = world_of([with_roce(roce_cap::roce_address_table_size, 2)]);
    let mut hca = world.ready(0);
    assert_eq!([1, 2].map(|host| hca.add_roce_address(ipv4(host), None)), [Ok(0), Ok(1)]);
    let full = hca.add_roce_address(ipv4(3), None);
    assert!(matches!(full, Err(Error::Limit { limit: 2, .. })), "{full:?}");
    assert_eq!(world.complaints(0), [""; 0]);
}

/// The index of a live connection's address gets another address: the peer does not accept packets
/// from there.
#[test]
fn a_reused_index_reaches_nobody() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| Node::new(&world, index, |_| ()));
    connect(&mut a, &mut b, [ipv4(1), ipv4(2)], None);
    moves_data(&world, &mut a, &mut b);
    let index = a.hca.roce_address_index(ipv4(1), None).expect("in use");
    a.hca.remove_roce_address(ipv4(1), None).expect("removed");
    assert_eq!(a.hca.add_roce_address(ipv4(7), None), Ok(index));
    let doorbell = a.qp.post_send(SendOp::Send, &[a.sge(0, 8)], 7, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    let completion = a.completion(&world);
    let syndrome = completion.error().expect("failed").syndrome;
    assert_eq!(syndrome, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR);
}
