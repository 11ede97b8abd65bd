//! The vport of an Ethernet function: addresses, receive filter, MTU, and the table of RoCE addresses.

use crate::object::qp::Route;
use ib_types::MacAddress;
use mlx5_prm::contexts::roce_addr_layout;

/// Entries of the table of RoCE addresses.
pub(crate) const ROCE_ADDRESSES: usize = 256;
/// log2 of the addresses of a list at most.
pub(crate) const LOG_MAX_LIST: u32 = 7;
/// log2 of the VLANs of the list at most.
pub(crate) const LOG_MAX_VLANS: u32 = 12;
/// Bytes of a frame beside its payload: two addresses, a VLAN tag, the type, and the check sequence.
const FRAME_OVERHEAD: u16 = 22;
/// Largest payload.
const MAX_MTU: u16 = 10_000;

/// Version of RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RoceVersion {
    #[default]
    V1,
    V2,
}

/// An entry of the table of RoCE addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoceAddress {
    /// IPv6 address, or IPv4 address mapped to one.
    pub(crate) gid: [u8; 16],
    pub(crate) mac: MacAddress,
    pub(crate) vlan: Option<u16>,
    pub(crate) version: RoceVersion,
}

impl RoceAddress {
    fn parse(entry: &[u8]) -> Self {
        let vlan = roce_addr_layout::vlan_id.get32(entry) as u16;
        Self {
            gid: roce_addr_layout::source_l3_address.of(entry).first_chunk().copied().unwrap_or([0; 16]),
            mac: MacAddress::from_halves(
                roce_addr_layout::source_mac_47_32.get32(entry) as u16,
                roce_addr_layout::source_mac_31_0.get32(entry),
            ),
            vlan: roce_addr_layout::vlan_valid.is_set(entry).then_some(vlan),
            version: match roce_addr_layout::roce_version.get32(entry) {
                2 => RoceVersion::V2,
                _ => RoceVersion::V1,
            },
        }
    }
}

/// State of the vport.
#[derive(Clone, Debug)]
pub(crate) struct NicVport {
    /// The address as the card was made.
    pub(crate) permanent_address: MacAddress,
    /// Unicast addresses that the function receives.
    pub(crate) unicast: Vec<MacAddress>,
    /// Multicast addresses that the function receives.
    pub(crate) multicast: Vec<MacAddress>,
    /// VLANs that the function receives.
    pub(crate) vlans: Vec<u16>,
    /// Receives all unicast, all multicast frames, or all frames.
    pub(crate) promiscuous: Promiscuous,
    /// Largest frame with its check sequence, as the driver set it.
    pub(crate) mtu: u16,
    /// RoCE packets reach queue pairs.
    pub(crate) roce: bool,
    pub(crate) min_inline_mode: u8,
    /// Frames to the function's own addresses do not return.
    pub(crate) no_unicast_loopback: bool,
    pub(crate) no_multicast_loopback: bool,
    /// Entries of the RoCE address table, and as they were set.
    roce_addresses: Vec<Option<(RoceAddress, [u8; roce_addr_layout::SIZE])>>,
}

/// Promiscuous modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promiscuous {
    pub(crate) unicast: bool,
    pub(crate) multicast: bool,
    pub(crate) all: bool,
}

impl NicVport {
    /// Largest frame that the port can be set to, with its check sequence.
    pub(crate) const MAX_FRAME: u16 = MAX_MTU + FRAME_OVERHEAD;
    /// Largest frame at power-on.
    pub(crate) const DEFAULT_FRAME: u16 = 1500 + FRAME_OVERHEAD;

    /// A vport as at power-on.
    pub(crate) fn new(permanent_address: MacAddress) -> Self {
        Self {
            permanent_address,
            unicast: Vec::new(),
            multicast: Vec::new(),
            vlans: Vec::new(),
            promiscuous: Promiscuous::default(),
            mtu: Self::DEFAULT_FRAME,
            roce: false,
            min_inline_mode: 0,
            no_unicast_loopback: false,
            no_multicast_loopback: false,
            roce_addresses: Vec::new(),
        }
    }

    /// The address that packets with source index `index` have.
    pub(crate) fn roce_source(&self, index: usize) -> Option<RoceAddress> {
        self.roce_addresses.get(index)?.map(|(address, _)| address)
    }

    /// All RoCE addresses.
    pub(crate) fn roce_addresses(&self) -> impl Iterator<Item = &RoceAddress> {
        self.roce_addresses.iter().flatten().map(|(address, _)| address)
    }

    /// Returns whether packets of RoCE along `route` return inside the device.
    pub(crate) fn is_own(&self, route: &Route) -> bool {
        self.roce_addresses().any(|own| own.mac == route.rmac && own.gid == route.grh.dgid)
    }

    /// The RoCE address at `index`, all zero where none is set. `None` beyond the table.
    pub(crate) fn roce_address(&self, index: usize) -> Option<[u8; roce_addr_layout::SIZE]> {
        let set = self.roce_addresses.get(index).copied().flatten();
        (index < ROCE_ADDRESSES).then(|| set.map_or([0; roce_addr_layout::SIZE], |(_, entry)| entry))
    }

    /// Sets the RoCE address at `index`. Without an IP address the entry is removed. Returns false beyond the table.
    pub(crate) fn set_roce_address(&mut self, index: usize, entry: &[u8]) -> bool {
        if index >= ROCE_ADDRESSES {
            return false;
        }
        let is_set = roce_addr_layout::source_l3_address.of(entry).iter().any(|byte| *byte != 0);
        self.roce_addresses.resize(self.roce_addresses.len().max(index + 1), None);
        if let Some(place) = self.roce_addresses.get_mut(index) {
            let entry = entry.first_chunk().copied().filter(|_| is_set);
            *place = entry.map(|entry| (RoceAddress::parse(&entry), entry));
        }
        true
    }

    /// Returns whether a frame to `destination` returns to the flow tables of the function that sent it (not verified on a card;
    /// rdma-core's tests need it for frames to an unused address).
    pub(crate) fn loops(&self, destination: MacAddress) -> bool {
        !if destination.is_multicast() { self.no_multicast_loopback } else { self.no_unicast_loopback }
    }

    /// Returns whether a frame to `destination` with this VLAN passes the receive filter.
    pub(crate) fn receives(&self, destination: MacAddress, vlan: Option<u16>) -> bool {
        if self.promiscuous.all {
            return true;
        }
        let passes = if destination.is_multicast() {
            self.promiscuous.multicast || self.multicast.contains(&destination)
        } else {
            self.promiscuous.unicast || self.unicast.contains(&destination)
        };
        // An empty list is no filter: drivers that filter by flow tables leave it empty.
        passes && vlan.is_none_or(|vlan| self.vlans.is_empty() || self.vlans.contains(&vlan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddress = MacAddress([0x50, 0x6b, 0x4b, 0xa0, 0x00, 0x00]);
    const GROUP: MacAddress = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
    const OTHER: MacAddress = MacAddress([2; 6]);

    #[test]
    fn filter_passes_listed_addresses() {
        let mut vport = NicVport::new(OWN);
        assert_eq!(vport.permanent_address, OWN);
        assert!(!vport.receives(OWN, None));
        (vport.unicast, vport.multicast) = (vec![OWN], vec![MacAddress::BROADCAST]);
        assert!(
            vport.receives(OWN, Some(7))
                && vport.receives(MacAddress::BROADCAST, None)
                && !vport.receives(GROUP, None)
        );
        vport.promiscuous.multicast = true;
        assert!(vport.receives(GROUP, None) && !vport.receives(OTHER, None));
        vport.vlans = vec![0, 8];
        assert!(!vport.receives(OWN, Some(7)) && vport.receives(OWN, Some(8)) && vport.receives(OWN, None));
        vport.promiscuous.all = true;
        assert!(vport.receives(OTHER, Some(9)));
    }

    #[test]
    fn addresses_are_set_and_removed() {
        let mut vport = NicVport::new(OWN);
        let mut entry = [0; roce_addr_layout::SIZE];
        entry[15] = 1;
        assert!(vport.set_roce_address(255, &entry) && !vport.set_roce_address(256, &entry));
        assert_eq!((vport.roce_address(255), vport.roce_address(256)), (Some(entry), None));
        assert_eq!(vport.roce_address(3), Some([0; roce_addr_layout::SIZE]));
        // Linux keeps the version of what it removes.
        let mut removed = [0; roce_addr_layout::SIZE];
        roce_addr_layout::roce_version.set(&mut removed, 2u8);
        assert!(vport.set_roce_address(255, &removed));
        assert_eq!(vport.roce_address(255), Some([0; roce_addr_layout::SIZE]));
    }
}
