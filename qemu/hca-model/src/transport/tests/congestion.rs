//! Congestion of RoCE: marks by the switch, notifications by the receiver, and their counters.

use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::datapath::{CqeOpcode, SendOpcode};
use mlx5_prm::value::{QpState, ServiceType};

use super::addresses::{IPV4, V1, mac, set_path};
use super::bed::{Bed, Options};
use super::requests::Request;
use crate::transport::CongestionCounters;
use rdma_fabric::ethernet::frame::Frame;
use rdma_fabric::infiniband::packet::Opcode;
use rdma_fabric::medium::LinkLayer;

fn counters(bed: &mut Bed) -> [CongestionCounters; 2] {
    [0, 1].map(|node| bed.hca(node).device.transport.congestion)
}

/// Has node 0 write ten packets, over a switch with `faults`.
fn write(faults: &str, options: &Options, latency: u64) -> [CongestionCounters; 2] {
    let mut bed = Bed::on_ethernet(2, latency);
    bed.announce();
    bed.world.medium.set_faults(faults.parse().unwrap());
    let (mut a, _) = bed.pair(options);
    let ((from, lkey), (to, rkey)) = (bed.buffer(0, 0x8000), bed.buffer(1, 0x8000));
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 10 << 10, lkey)]).to(to, rkey));
    assert_eq!(bed.wait(&a).opcode, CqeOpcode::REQ);
    bed.run_for(100_000);
    counters(&mut bed)
}

#[test]
fn marked_packets_are_counted_and_their_sender_is_notified_once() {
    let options = Options { mtu: 3, ..Options::default() };
    // All ten arrive within 4 us. What they cause, the acknowledgement and the notification, is marked, too; a
    // notification is not answered.
    let [sender, receiver] = write("ecn=0", &options, 1_000);
    assert_eq!((receiver.marked, receiver.sent), (10, 1));
    assert_eq!((sender.handled, sender.marked, sender.sent), (1, 1, 1));
    assert_eq!((receiver.handled, receiver.ignored, sender.ignored), (1, 0, 0));
    // The last five of a queue of ten.
    let [sender, receiver] = write("ecn=5", &options, 0);
    assert_eq!((receiver.marked, receiver.sent, sender.handled), (5, 1, 1));
    assert_eq!((sender.marked, sender.sent), (0, 0));
}

#[test]
fn nothing_is_marked_without_congestion_or_network_header() {
    for (faults, address) in [("none", IPV4), ("dup=0.0001%", IPV4), ("ecn=0", V1)] {
        let options = Options { mtu: 3, address, ..Options::default() };
        assert_eq!(write(faults, &options, 1_000), [CongestionCounters::default(); 2], "{faults}");
    }
}

/// A host that is no HCA receives a notification as cards send it, at most one in 4 us.
#[test]
fn notification_on_the_wire_is_that_of_cards() {
    let mut bed = Bed::on_ethernet(2, 0);
    let host = bed.world.medium.attach("host", LinkLayer::Ethernet).unwrap();
    bed.world.medium.cable(host, 0).set_up(true);
    // Node 0's requests reach node 1 with a mark from the beginning, and node 1 responds to the host.
    let (mut a, b) = bed.pair(&Options::default());
    bed.qp(&a).reconfigure(|context| ads::tclass.set(qpc::primary_address_path.of_mut(context), 3u8));
    bed.qp(&b).reconfigure(|context| {
        let path = qpc::primary_address_path.of_mut(context);
        ads::rmac_47_32.set(path, 0x0200u16);
        ads::rmac_31_0.set(path, 0x0909u32);
    });
    let ((from, lkey), (to, rkey)) = (bed.buffer(0, 0x1000), bed.buffer(1, 0x1000));
    for _ in 0..2 {
        bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 64, lkey)]).to(to, rkey));
        bed.run_for(3_000);
    }
    let mut frames = Vec::new();
    while let Some(mut packet) = bed.world.medium.cable(host, bed.now).receive() {
        assert!(packet.is_intact());
        frames.push(packet.sealed_bytes().to_vec());
    }
    let notifications: Vec<_> = frames
        .iter()
        .filter_map(|bytes| Some((bytes, Frame::parse(bytes)?.roce()?)))
        .filter(|(_, roce)| roce.bth().opcode == Opcode::CNP)
        .collect();
    let [(bytes, roce)] = notifications[..] else { panic!("{} notifications", notifications.len()) };
    let bth = roce.bth();
    assert_eq!((bth.dest_qpn, bth.pkey, bth.psn), (a.qpn, 0xffff, 0));
    assert!(bth.becn && !bth.fecn && !bth.mig_req && !bth.ack_req);
    assert_eq!(roce.content(bytes), [0; 16]);
    assert_eq!((bytes[6..12] == mac(1).0, bytes[15], bytes[34..36] == [0, 0]), (true, 0xc2, true));
    bed.run_for(5_000);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 64, lkey)]).to(to, rkey));
    bed.run_for(1_000);
    assert_eq!(counters(&mut bed)[1].sent, 2);
}

/// Datagrams are counted; a notification for no connection of its sender is ignored.
#[test]
fn notifications_for_nobody_are_ignored() {
    let mut bed = Bed::on_ethernet(3, 1_000);
    bed.announce();
    let (mut a, b) = bed.pair(&Options::default());
    // Node 1 takes node 0's packets, and notifies node 2.
    bed.qp(&a).reconfigure(|context| ads::tclass.set(qpc::primary_address_path.of_mut(context), 3u8));
    let datagrams = bed.make_qp(2, ServiceType::UD, &Options::default());
    bed.modify(&datagrams, QpState::RTR);
    bed.set(&b, qpc::remote_qpn, datagrams.qpn);
    let ((from, lkey), (to, rkey)) = (bed.buffer(0, 0x1000), bed.buffer(1, 0x1000));
    bed.qp(&b).reconfigure(|context| {
        let path = qpc::primary_address_path.of_mut(context);
        let dgid: [u8; 16] = ads::rgid_rip.of(path).try_into().unwrap();
        set_path(path, IPV4, 2);
        // Its peer's GID, or it would not take the packets.
        ads::rgid_rip.of_mut(path).copy_from_slice(&dgid);
    });
    let mut entry = super::addresses::address(IPV4, 0);
    let [high, low @ ..] = mac(2).0;
    mlx5_prm::contexts::roce_addr_layout::source_mac_47_32
        .set(&mut entry, u16::from_be_bytes([high, low[0]]));
    mlx5_prm::contexts::roce_addr_layout::source_mac_31_0
        .set(&mut entry, u32::from_be_bytes([low[1], low[2], low[3], low[4]]));
    assert!(bed.hca(2).device.vport.set_roce_address(9, &entry));
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 64, lkey)]).to(to, rkey));
    bed.run_for(50_000);
    assert_eq!(bed.hca(2).device.transport.congestion.ignored, 1);
    assert_eq!(bed.hca(2).device.transport.congestion.handled, 0);
}
