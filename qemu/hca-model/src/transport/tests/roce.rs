//! RoCE between Ethernet ports: address table, checks of packets, datagrams as completions show them.

use ib_types::MacAddress;
use mlx5_prm::contexts::qpc;
use mlx5_prm::datapath::{CqeOpcode, SendOpcode, av, cqe64};
use mlx5_prm::value::{QpState, ServiceType};

use super::addresses::{IPV4, IPV6, TAGGED, V1, VLAN, gid, mac, vector};
use super::bed::{Bed, Completion, Handle, Options, pattern};
use super::requests::Request;
use rdma_fabric::ethernet::frame::{Frame, Network};
use rdma_fabric::infiniband::packet::QKEY_GSI;
use rdma_fabric::medium::LinkLayer;
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;

const QKEY: u32 = 0x1111;

fn ready(bed: &mut Bed, node: usize, service: ServiceType) -> Handle {
    let qp = bed.make_qp(node, service, &Options::default());
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    qp
}

/// Sends a datagram, and returns its completion at the receiver with the receive buffer, if it arrives.
fn send(
    bed: &mut Bed,
    from: &mut Handle,
    to: &mut Handle,
    address: [u8; 48],
) -> Option<(Completion, Vec<u8>)> {
    let (place, key) = bed.buffer(to.node, 0x1000);
    bed.receive(to, &[(place, 0x1000, key)]);
    let mut request = Request::new(SendOpcode::SEND, &[]);
    request.inline = Some(b"thirteen byte".to_vec());
    bed.post_with_av(from, &request, Some(address));
    bed.ring(from);
    let done = bed.wait(from);
    assert_eq!((done.opcode, done.syndrome), (CqeOpcode::REQ, 0));
    bed.run_for(100_000);
    let received = bed.poll_cq(to.node, to.cqn)?;
    Some((received, bed.guests[to.node].read(place, 53)))
}

/// A port of the switch that belongs to no HCA.
struct Host(PortIndex);

impl Host {
    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 9, 9]);

    fn new(bed: &mut Bed) -> Self {
        let port = bed.world.medium.attach("host", LinkLayer::Ethernet).unwrap();
        bed.world.medium.cable(port, bed.now).set_up(true);
        Self(port)
    }

    fn send(&self, bed: &mut Bed, frame: Packet) {
        bed.world.medium.cable(self.0, bed.now).send(frame);
        bed.run_for(10_000);
    }

    fn receive(&self, bed: &mut Bed) -> Option<Packet> {
        bed.world.medium.cable(self.0, bed.now).receive()
    }
}

#[test]
fn datagrams_show_network_header_vlan_and_source() {
    let mut bed = Bed::on_ethernet(2, 1_000);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    for (entry, kind, start) in [(IPV4, 2, 20), (IPV6, 1, 0), (V1, 0, 0), (TAGGED, 2, 20)] {
        let mut address = vector(entry, 1, b.qpn, QKEY);
        av::tclass.set(&mut address, 0xb8u8);
        av::flow_label.set(&mut address, 0x1_2345u32);
        // Priority 6.
        av::sl.set(&mut address, 6u8 << 1);
        let (got, buffer) = send(&mut bed, &mut a, &mut b, address).expect("it arrives");
        assert_eq!((got.opcode, got.bytes, got.grh), (CqeOpcode::RESP_SEND, 53, 1), "entry {entry}");
        assert_eq!(got.source, (0, a.qpn, kind), "entry {entry}");
        assert_eq!(&buffer[40..], b"thirteen byte");
        let header = &buffer[start..40];
        assert!(buffer[..start].iter().all(|byte| *byte == 0));
        let cqe = got.inline.1;
        let tag = (entry == TAGGED).then_some(u64::from(6u16 << 13 | VLAN));
        assert_eq!(cqe64::l4_l3_hdr_type.get(&cqe) & 1, u64::from(tag.is_some()));
        assert_eq!(cqe64::vlan_info.get(&cqe), tag.unwrap_or(0));
        if kind == 2 {
            // Class with ECT(0); UDP header, BTH, DETH, 16 bytes, ICRC; not to be fragmented; hop limit; UDP.
            assert_eq!(header[..4], [0x45, 0xba, 0, 20 + 8 + 12 + 8 + 16 + 4]);
            assert_eq!((&header[6..10], &header[12..16]), (&[0x40, 0, 7, 17][..], &gid(entry, 0)[12..]));
            assert_eq!(header[16..20], gid(entry, 1)[12..]);
        } else {
            let class = if kind == 1 { [0x6b, 0xa1, 0x23, 0x45] } else { [0x6b, 0x81, 0x23, 0x45] };
            assert_eq!((&header[..4], header[7]), (&class[..], 7));
            assert_eq!(header[6], if kind == 1 { 17 } else { 0x1b });
            assert_eq!((&header[8..24], &header[24..40]), (&gid(entry, 0)[..], &gid(entry, 1)[..]));
        }
    }
}

/// A packet whose MAC address, GID, VLAN or version is not that of one entry reaches no QP.
#[test]
fn packets_for_no_entry_are_dropped() {
    let mut bed = Bed::on_ethernet(3, 1_000);
    bed.announce();
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    let good = vector(IPV4, 1, b.qpn, QKEY);
    let changes: [fn(&mut [u8; 48]); 5] = [
        |address| av::rgid.of_mut(address).copy_from_slice(&gid(IPV4, 2)),
        |address| av::rgid.of_mut(address).copy_from_slice(&gid(TAGGED, 1)),
        |address| av::rmac.of_mut(address).copy_from_slice(&mac(2).0),
        |address| av::src_addr_index.set(address, TAGGED),
        |address| av::src_addr_index.set(address, V1),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut address = good;
        change(&mut address);
        assert!(send(&mut bed, &mut a, &mut b, address).is_none(), "change {index}");
    }
    assert_eq!([1, 2].map(|node| bed.counters(node).packets_received), [0, 0]);
    assert!(send(&mut bed, &mut a, &mut b, good).is_some());
    // Nor does any while RoCE is off, or from a source index without an entry.
    bed.hca(1).device.vport.roce = false;
    assert!(send(&mut bed, &mut a, &mut b, good).is_none());
    bed.hca(1).device.vport.roce = true;
    let mut address = good;
    av::src_addr_index.set(&mut address, 200u8);
    let discards = bed.hca(0).device.port.counters.xmit_discards;
    assert!(send(&mut bed, &mut a, &mut b, address).is_none());
    assert_eq!(bed.hca(0).device.port.counters.xmit_discards, discards + 1);
}

#[test]
fn connections_take_packets_from_their_peers_address_alone() {
    let mut bed = Bed::on_ethernet(3, 1_000);
    let options = Options { ack_timeout: 8, retry_count: 0, ..Options::default() };
    let (mut a, b) = bed.pair(&options);
    // Node 2 has the addresses of node 0, and the same QP number.
    let (mut stranger, _) = bed.pair_on(2, 1, &options);
    bed.set(&stranger, qpc::remote_qpn, b.qpn);
    let (at, key) = bed.buffer(1, 0x1000);
    for (sender, arrives) in [(&mut stranger, false), (&mut a, true)] {
        let (from, lkey) = bed.buffer(sender.node, 0x1000);
        bed.guests[sender.node].write(from, &pattern(sender.node as u32, 1, 500));
        bed.post(sender, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 500, lkey)]).to(at, key));
        bed.ring(sender);
        let done = bed.wait(sender);
        assert_eq!(done.opcode == CqeOpcode::REQ, arrives);
        assert_eq!(bed.guests[1].read(at, 500) == pattern(sender.node as u32, 1, 500), arrives);
    }
    assert_eq!(bed.counters(1).no_qp, 1);
}

#[test]
fn connections_run_from_every_entry() {
    for address in [IPV4, IPV6, V1, TAGGED] {
        let mut bed = Bed::on_ethernet(2, 1_000);
        let (mut a, mut b) = bed.pair(&Options { address, mtu: 3, ..Options::default() });
        let ((from, lkey), (to, rkey)) = (bed.buffer(0, 0x4000), bed.buffer(1, 0x4000));
        let sent = pattern(1, 1, 5_001);
        bed.guests[0].write(from, &sent);
        bed.receive(&mut b, &[(to, 0x4000, rkey)]);
        bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 5_001, lkey)]));
        assert_eq!((bed.wait(&b).bytes, bed.wait(&a).opcode), (5_001, CqeOpcode::REQ), "entry {address}");
        assert_eq!(bed.guests[1].read(to, 5_001), sent);
        bed.send(&mut a, &Request::new(SendOpcode::RDMA_READ, &[(from + 8, 3_000, lkey)]).to(to, rkey));
        assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ);
        assert_eq!(bed.guests[0].read(from + 8, 3_000), sent[..3_000]);
    }
}

/// Frames that leave have a right ICRC, and one with a wrong ICRC changes nothing but a counter.
#[test]
fn wrong_icrc_is_counted_and_dropped() {
    let mut bed = Bed::on_ethernet(2, 1_000);
    let host = Host::new(&mut bed);
    let (mut a, mut b) = (ready(&mut bed, 0, ServiceType::UD), ready(&mut bed, 1, ServiceType::UD));
    for entry in [IPV4, IPV6, V1, TAGGED] {
        // The host sees what node 0 sends to it, and sends it on to node 1.
        let mut address = vector(entry, 1, b.qpn, QKEY);
        av::rmac.of_mut(&mut address).copy_from_slice(&Host::MAC.0);
        assert!(send(&mut bed, &mut a, &mut b, address).is_none());
        let mut frame = std::iter::from_fn(|| host.receive(&mut bed)).last().expect("a frame");
        assert!(frame.is_intact());
        let mut bytes = frame.sealed_bytes().to_vec();
        bytes[..6].copy_from_slice(&mac(1).0);
        bytes[6..12].copy_from_slice(&Host::MAC.0);
        assert!(Packet::frame(bytes.clone()).is_intact(), "it does not cover MAC addresses");
        let errors = bed.counters(1).icrc_errors;
        let end = Frame::parse(&bytes).and_then(|frame| frame.roce()).expect("RoCE").end();
        let mut wrong = bytes.clone();
        wrong[end - 1] ^= 1;
        host.send(&mut bed, Packet::frame(wrong));
        assert_eq!((bed.counters(1).icrc_errors, bed.poll_cq(1, b.cqn)), (errors + 1, None));
        host.send(&mut bed, Packet::frame(bytes));
        assert!(bed.poll_cq(1, b.cqn).is_some(), "entry {entry}");
    }
}

#[test]
fn qp1_sends_and_receives_by_its_own_queue() {
    let mut bed = Bed::on_ethernet(2, 1_000);
    let [mut a, mut b] = [0, 1].map(|node| ready(&mut bed, node, ServiceType::QP1));
    for qp in [&a, &b] {
        bed.set(qp, qpc::q_key, QKEY_GSI);
    }
    let (got, buffer) = send(&mut bed, &mut a, &mut b, vector(IPV4, 1, 1, QKEY_GSI)).expect("it arrives");
    assert_eq!((got.source, got.immediate), ((0, 1, 2), 0xffff), "QP1, and the P_Key");
    assert_eq!(&buffer[40..], b"thirteen byte");
    assert!(send(&mut bed, &mut a, &mut b, vector(IPV4, 1, 1, QKEY)).is_none());
    assert_eq!(bed.counters(1).qkey_mismatches, 1);
}

#[test]
fn multicast_reaches_members_that_receive_its_address() {
    let mut bed = Bed::on_ethernet(3, 1_000);
    let mut sender = ready(&mut bed, 0, ServiceType::UD);
    let mut members = [1, 2].map(|node| ready(&mut bed, node, ServiceType::UD));
    // 239.1.2.3, by IPv4 and by an IPv6 group.
    let group4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
    let group6 = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
    for (entry, group, to) in
        [(IPV4, group4, [1, 0, 0x5e, 1, 2, 3]), (IPV6, group6, [0x33, 0x33, 0, 1, 2, 3])]
    {
        for member in &members {
            bed.hca(member.node).device.objects.qps.attach(group, member.qpn);
        }
        // Node 2 is a member, and does not receive the address.
        bed.hca(1).device.vport.multicast = vec![MacAddress(to)];
        let mut address = vector(entry, 1, 0xff_ffff, QKEY);
        av::rmac.of_mut(&mut address).copy_from_slice(&to);
        av::rgid.of_mut(&mut address).copy_from_slice(&group);
        let (got, buffer) = send(&mut bed, &mut sender, &mut members[0], address).expect("it arrives");
        assert_eq!((got.bytes, got.source.1), (53, sender.qpn));
        assert_eq!(
            buffer[40 - if entry == IPV4 { 4 } else { 16 }..40],
            group[if entry == IPV4 { 12 } else { 0 }..]
        );
        assert_eq!(bed.poll_cq(2, members[1].cqn), None);
    }
}

/// The UDP source port is the path's, and frames of a path without VLAN have no tag whatever its priority.
#[test]
fn frames_have_the_paths_port_class_and_no_tag() {
    let mut bed = Bed::on_ethernet(2, 1_000);
    let host = Host::new(&mut bed);
    let mut a = ready(&mut bed, 0, ServiceType::UD);
    let mut b = ready(&mut bed, 1, ServiceType::UD);
    let mut address = vector(IPV4, 1, b.qpn, QKEY);
    av::rmac.of_mut(&mut address).copy_from_slice(&Host::MAC.0);
    av::sl.set(&mut address, 6u8 << 1);
    av::tclass.set(&mut address, 0x69u8);
    assert!(send(&mut bed, &mut a, &mut b, address).is_none());
    let mut frame = std::iter::from_fn(|| host.receive(&mut bed)).last().expect("a frame");
    let bytes = frame.sealed_bytes();
    let parsed = Frame::parse(bytes).expect("a frame");
    assert!(matches!(parsed.network(), Network::Ip(_)) && parsed.header().tag().is_none());
    assert_eq!((bytes[15], &bytes[34..38]), (0x69, &[0xc1, 0x23, 0x12, 0xb7][..]), "ECT(1) stays");
}
