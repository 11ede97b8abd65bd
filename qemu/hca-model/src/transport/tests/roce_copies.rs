//! RoCE requests without frames: where frames go nevertheless.

use mlx5_prm::contexts::{ads, qpc, roce_addr_layout};
use mlx5_prm::datapath::{CqeOpcode, SendOpcode};
use mlx5_prm::status::CqeSyndrome;

use super::addresses::{IPV4, address, set_path};
use super::bed::{Bed, Handle, Options};
use super::requests::Request;
use crate::transport::state::QpProgress;
use rdma_fabric::capture::Capture;

/// What is changed, and how: a bed, its sender and its receiver.
type Change = (&'static str, fn(&mut Bed, &Handle, &Handle));

/// How a WRITE of three packets completed: opcode, syndrome, progress of the receiver, and the number of packets that were never made.
type Outcome = (CqeOpcode, u8, QpProgress, u64);

fn write(packets_only: bool, change: fn(&mut Bed, &Handle, &Handle)) -> Outcome {
    let mut bed = Bed::on_ethernet(3, 0);
    bed.announce();
    bed.world.set_packets_only(packets_only);
    let options = Options { ack_timeout: 8, retry_count: 1, ..Options::default() };
    let (mut sender, receiver) = bed.pair(&options);
    let (from, lkey) = bed.buffer(0, 0x4000);
    let (to, rkey) = bed.buffer(1, 0x4000);
    change(&mut bed, &sender, &receiver);
    bed.post(&mut sender, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x2800, lkey)]).to(to, rkey));
    bed.ring(&sender);
    let completion = bed.wait(&sender);
    let progress = bed.qp(&receiver).transport.progress();
    (completion.opcode, completion.syndrome, progress, bed.world.medium.switch().copied())
}

#[test]
fn nothing_watches_a_write_between_neighbours() {
    assert_eq!(write(false, |_, _, _| {}).3, 4, "three packets and an acknowledgement");
    assert_eq!(write(true, |_, _, _| {}).3, 0);
}

/// Frames go where somebody watches them, or the switch and the receiver look at more than addresses.
#[test]
fn frames_go_where_copies_could_differ() {
    let changes: [Change; 6] = [
        ("faults", |bed, _, _| bed.world.medium.set_faults("dup=0.0001%".parse().unwrap())),
        ("latency", |bed, _, _| bed.world.medium.set_latency(1)),
        ("capture", |bed, _, _| bed.world.medium.switch_mut().set_capture(Box::new(Discarded))),
        ("requests congested from the beginning", |bed, sender, _| {
            bed.qp(sender).reconfigure(|context| {
                ads::tclass.set(qpc::primary_address_path.of_mut(context), 3u8);
            });
        }),
        ("responses congested from the beginning", |bed, _, receiver| {
            bed.qp(receiver).reconfigure(|context| {
                ads::tclass.set(qpc::primary_address_path.of_mut(context), 3u8);
            });
        }),
        ("an address that the switch has forgotten", |bed, _, _| bed.now += 400_000_000_000),
    ];
    for (what, change) in changes {
        let (opcode, _, _, copied) = write(false, change);
        assert_eq!((opcode, copied), (CqeOpcode::REQ, 0), "{what}");
    }
}

/// Discards a capture.
struct Discarded;

impl Capture for Discarded {
    fn interface(&mut self, _: u32, _: &str) {}
    fn packet(&mut self, _: u32, _: u64, _: &[u8], _: Option<&str>) {}
    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Where frames would not reach the peer, or its responses the requester, requests fail with copies as with frames.
#[test]
fn frames_that_nobody_takes_are_not_copied() {
    let changes: [Change; 8] = [
        ("RoCE is off", |bed, _, peer| bed.hca(peer.node).device.vport.roce = false),
        ("no entry", |bed, _, peer| {
            bed.hca(peer.node).device.vport.set_roce_address(0, &[0; roce_addr_layout::SIZE]);
        }),
        ("another version", |bed, _, peer| {
            let mut entry = address(IPV4, peer.node);
            roce_addr_layout::roce_version.set(&mut entry, 0u8);
            bed.hca(peer.node).device.vport.set_roce_address(0, &entry);
        }),
        ("another VLAN", |bed, _, peer| {
            let mut entry = address(IPV4, peer.node);
            roce_addr_layout::vlan_valid.set(&mut entry, 1u8);
            bed.hca(peer.node).device.vport.set_roce_address(0, &entry);
        }),
        ("another address", |bed, _, peer| {
            let mut entry = address(IPV4, peer.node);
            entry[15] += 7;
            bed.hca(peer.node).device.vport.set_roce_address(0, &entry);
        }),
        ("another peer", |bed, _, peer| {
            bed.qp(peer).reconfigure(|context| set_path(qpc::primary_address_path.of_mut(context), IPV4, 2));
        }),
        ("another MAC address of the peer", |bed, _, peer| {
            bed.qp(peer).reconfigure(|context| {
                ads::rmac_31_0.set(qpc::primary_address_path.of_mut(context), 77u32);
            });
        }),
        ("short frames", |bed, _, peer| {
            if let Some(port) = &mut bed.hca(peer.node).device.port.ethernet {
                port.frame_size = 1522;
            }
        }),
    ];
    for (what, change) in changes {
        let frames = write(true, change);
        assert_eq!(frames, write(false, change), "{what}");
        let syndrome = CqeSyndrome::TRANSPORT_RETRY_EXC_ERR.0;
        assert_eq!((frames.0, frames.1), (CqeOpcode::REQ_ERR, syndrome), "{what}");
    }
}
