//! How a port stands.

use core::net::IpAddr;

use driver_mlx::{
    Error, EthernetLink, Gid, Guid, Hca, InfiniBandLink, Lid, Link, LinkState, Mtu, PKey, Platform, PortType,
    Rate, ServiceLevel, VlanId,
};

use crate::partition::Partitions;

/// Hop limit of routes that stay on the subnet, as far as is known.
pub(crate) const HOP_LIMIT: u8 = 64;

/// The address by which peers reach an Ethernet port, and its VLAN.
pub(crate) type Place = (Option<IpAddr>, Option<VlanId>);

/// How the port stands; read again after every port event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Kind of the port. LIDs, subnet manager and capability mask are 0 on Ethernet.
    pub port_type: PortType,
    /// Data may flow, and the subnet manager has given a LID, or the port is routed by GID.
    pub active: bool,
    /// Own LID.
    pub lid: Lid,
    /// LID mask count: the port has 2^lmc LIDs.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// Service level to it.
    pub sm_sl: ServiceLevel,
    /// Speed of the link in Mb/s; 0 if unknown.
    pub speed: u32,
    /// MTU of the link.
    pub mtu: Mtu,
    /// Own GID: GID 0, on Ethernet the link-local one of the MAC address.
    pub gid: Gid,
    /// Index of `gid` in the table.
    pub gid_index: u8,
    /// On Ethernet the GID of the port's IP address, and its index in the table.
    pub address: Option<(Gid, u8)>,
    /// VLAN of an Ethernet port's addresses and frames; without it they have no tag.
    pub vlan: Option<VlanId>,
    /// MAC address and frame size of an Ethernet port.
    pub ethernet: Option<EthernetLink>,
    /// P_Key of the port's own requests and of IP.
    pub pkey: PKey,
    /// Index of `pkey` in the table.
    pub pkey_index: u16,
    /// The P_Key table.
    pub partitions: Partitions,
    /// GUID of the HCA, which names it in connection management.
    pub node_guid: Guid,
    /// No port is reached without a global routing header: an Ethernet port, or a virtual function
    /// that has no LID of its own.
    pub grh_required: bool,
    /// Capability mask (IBTA 1.3, table 156).
    pub capability_mask: u32,
}

impl PortInfo {
    /// A port whose link has this speed, for tests.
    #[cfg(test)]
    pub(crate) fn example(speed: u32) -> Self {
        Self {
            port_type: PortType::InfiniBand,
            active: true,
            lid: Lid::new(1),
            lmc: 0,
            sm_lid: Lid::new(1),
            sm_sl: ServiceLevel::new(0),
            speed,
            mtu: Mtu::B4096,
            gid: Gid::new(Gid::DEFAULT_PREFIX, 1),
            gid_index: 0,
            address: None,
            vlan: None,
            ethernet: None,
            pkey: PKey::DEFAULT,
            pkey_index: 0,
            partitions: Partitions::default_only(),
            node_guid: Guid::new(1),
            grh_required: false,
            capability_mask: 0,
        }
    }

    /// The static rate for a path or group of rate `rate`: 0, the port's own, unless the link is
    /// faster. A limit that changes nothing may be one that the device cannot keep exactly.
    pub(crate) fn static_rate(&self, rate: u8) -> u8 {
        let slower = Rate::new(rate).megabits().is_some_and(|path| self.speed == 0 || path < self.speed);
        if slower { rate } else { 0 }
    }

    /// Returns the own GID to reach `dgid` from: on Ethernet that of the IP address, unless `dgid`
    /// is link-local.
    pub(crate) fn source_gid(&self, dgid: Gid) -> Gid {
        let is_local = dgid.prefix() == Gid::DEFAULT_PREFIX;
        let fits = |own: &(Gid, u8)| !is_local && own.0.ipv4().is_some() == dgid.ipv4().is_some();
        self.address.filter(fits).map_or(self.gid, |(gid, _)| gid)
    }

    /// Returns the index of an own GID.
    pub(crate) fn gid_index_of(&self, gid: Gid) -> Option<u8> {
        if gid == self.gid {
            return Some(self.gid_index);
        }
        self.address.filter(|(own, _)| *own == gid).map(|(_, index)| index)
    }

    /// The hop limit of the route that every packet of this port needs, if it is such a port.
    pub(crate) fn route(&self) -> Option<u8> {
        self.grh_required.then_some(HOP_LIMIT)
    }
}

/// Returns the GID of an IP address on RoCE.
#[must_use]
pub const fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid::from_ipv4(address.octets()),
        IpAddr::V6(address) => Gid(address.octets()),
    }
}

/// Reads the port. An Ethernet port gets its link-local address and that of `address` on `vlan`, unless
/// it has them.
pub(crate) fn read_info<P: Platform>(
    hca: &mut Hca<'_, P>,
    (address, vlan): Place,
) -> Result<PortInfo, Error> {
    /// An Ethernet port has no subnet manager, and its packets always have a network header.
    const NO_SUBNET: InfiniBandLink = InfiniBandLink {
        lid: Lid::new(0),
        lmc: 0,
        sm_lid: Lid::new(0),
        sm_sl: ServiceLevel::new(0),
        subnet_timeout: 0,
        grh_required: true,
        gid_prefix: Gid::DEFAULT_PREFIX,
        capability_mask: 0,
    };
    let port = hca.port()?;
    let ethernet = port.ethernet().copied();
    let mut own = None;
    let (port_type, link, gid, gid_index) = match port.link {
        Link::InfiniBand(link) => (PortType::InfiniBand, link, hca.gid(0)?, 0),
        Link::Ethernet(link) => {
            let gid = Gid::link_local(link.mac);
            let index = hca.add_roce_address(gid, vlan)?;
            if let Some(address) = address.map(gid_of).filter(|address| *address != gid) {
                own = match hca.add_roce_address(address, vlan) {
                    Ok(index) => Some((address, index)),
                    // A card may lack IPv4, and an embedder may name an address that no port can have.
                    Err(Error::MissingCapability(_) | Error::InvalidArgument(_)) => None,
                    Err(error) => return Err(error),
                };
            }
            (PortType::Ethernet, NO_SUBNET, gid, index)
        }
    };
    let partitions = Partitions::read(|keys| hca.pkeys(keys))?;
    let (pkey_index, pkey) = partitions.preferred();
    let named = link.lid != Lid::new(0) || link.grh_required;
    let active = port.state == LinkState::Active && named;
    Ok(PortInfo {
        port_type,
        active,
        lid: link.lid,
        lmc: link.lmc,
        sm_lid: link.sm_lid,
        sm_sl: link.sm_sl,
        speed: port.speed,
        mtu: port.mtu,
        gid,
        gid_index,
        address: own,
        vlan: vlan.filter(|_| ethernet.is_some()),
        ethernet,
        pkey,
        pkey_index,
        partitions,
        node_guid: port.node_guid,
        grh_required: link.grh_required,
        capability_mask: link.capability_mask,
    })
}
