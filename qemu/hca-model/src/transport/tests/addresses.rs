//! Ethernet ports with RoCE addresses, and paths between them.

use ib_types::MacAddress;
use mlx5_prm::contexts::{ads, roce_addr_layout};
use mlx5_prm::datapath::{EXTENDED_UD_AV, av};

use super::bed::Bed;
use crate::card::{CONNECTX_5_EN, Card};
use crate::port::NicVport;
use rdma_fabric::infiniband::FabricConfig;
use rdma_fabric::packet::Packet;

/// Entries of each node's address table.
pub(super) const IPV4: u8 = 0;
pub(super) const IPV6: u8 = 1;
pub(super) const V1: u8 = 2;
pub(super) const TAGGED: u8 = 3;
/// VLAN of the entry [`TAGGED`].
pub(super) const VLAN: u16 = 5;
/// UDP source port of all paths.
pub(super) const SOURCE_PORT: u16 = 0xc123;

/// Card of a bed whose ports are Ethernet.
pub(super) const ETHERNET: &Card = &CONNECTX_5_EN;

/// A node's MAC address.
pub(super) fn mac(node: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 1, node as u8])
}

/// A node's IPv4 address, mapped to IPv6.
fn mapped(network: u8, node: usize) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, network, node as u8 + 1]
}

/// GID at `entry` of a node's address table.
pub(super) fn gid(entry: u8, node: usize) -> [u8; 16] {
    match entry {
        IPV4 => mapped(0, node),
        TAGGED => mapped(1, node),
        IPV6 => [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, node as u8 + 1],
        _ => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, node as u8 + 1],
    }
}

/// An entry of the address table.
pub(super) fn address(entry: u8, node: usize) -> [u8; roce_addr_layout::SIZE] {
    let mut bytes = [0; roce_addr_layout::SIZE];
    roce_addr_layout::source_l3_address.of_mut(&mut bytes).copy_from_slice(&gid(entry, node));
    let [a, b, rest @ ..] = mac(node).0;
    roce_addr_layout::source_mac_47_32.set(&mut bytes, u16::from_be_bytes([a, b]));
    roce_addr_layout::source_mac_31_0.set(&mut bytes, u32::from_be_bytes(rest));
    roce_addr_layout::roce_version.set(&mut bytes, if entry == V1 { 0u8 } else { 2 });
    roce_addr_layout::vlan_valid.set(&mut bytes, u8::from(entry == TAGGED));
    roce_addr_layout::vlan_id.set(&mut bytes, if entry == TAGGED { VLAN } else { 0 });
    bytes
}

/// Sets a path to the address at `entry` of node `to`, from the same entry.
pub(super) fn set_path(path: &mut [u8], entry: u8, to: usize) {
    let [a, b, rest @ ..] = mac(to).0;
    ads::rmac_47_32.set(path, u16::from_be_bytes([a, b]));
    ads::rmac_31_0.set(path, u32::from_be_bytes(rest));
    ads::rgid_rip.of_mut(path).copy_from_slice(&gid(entry, to));
    ads::src_addr_index.set(path, entry);
    ads::hop_limit.set(path, 64u8);
    ads::udp_sport.set(path, SOURCE_PORT);
}

/// An address vector for QP `dqpn` of node `to` at `entry`.
pub(super) fn vector(entry: u8, to: usize, dqpn: u32, qkey: u32) -> [u8; 48] {
    let mut bytes = [0; 48];
    av::qkey.set(&mut bytes, qkey);
    bytes[8..12].copy_from_slice(&(EXTENDED_UD_AV | dqpn).to_be_bytes());
    av::rlid.set(&mut bytes, SOURCE_PORT);
    av::rmac.of_mut(&mut bytes).copy_from_slice(&mac(to).0);
    av::src_addr_index.set(&mut bytes, entry);
    av::hop_limit.set(&mut bytes, 7u8);
    av::rgid.of_mut(&mut bytes).copy_from_slice(&gid(entry, to));
    bytes
}

impl Bed {
    /// Devices with Ethernet ports, of which each can send to the others from all its addresses.
    pub(super) fn on_ethernet(nodes: u16, latency: u64) -> Self {
        let config = FabricConfig { seed: 1, latency, ..FabricConfig::default() };
        let mut bed = Self::with_card(nodes, config, ETHERNET);
        // The switch brings its ends of the links up.
        bed.step();
        for node in 0..usize::from(nodes) {
            let device = &mut bed.hca(node).device;
            if let Some(port) = &mut device.port.ethernet {
                port.frame_size = NicVport::MAX_FRAME;
            }
            device.vport.roce = true;
            for entry in [IPV4, IPV6, V1, TAGGED] {
                assert!(device.vport.set_roce_address(entry.into(), &address(entry, node)));
            }
        }
        bed
    }

    /// Has the switch learn the nodes' addresses, with and without tag.
    pub(super) fn announce(&mut self) {
        for node in 0..self.guests.len() {
            let [vlan_high, vlan_low] = VLAN.to_be_bytes();
            for rest in [&[8, 6][..], &[0x81, 0, vlan_high, vlan_low, 8, 6]] {
                let frame = [&MacAddress::BROADCAST.0[..], &mac(node).0, rest, &[0; 46]].concat();
                let port = self.world.nodes()[node].port;
                self.world.medium.cable(port, self.now).send(Packet::frame(frame));
            }
        }
        self.run_for(10_000);
    }
}
