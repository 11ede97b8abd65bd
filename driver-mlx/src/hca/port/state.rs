//! The state of a port as [`Hca::port`](crate::Hca::port) returns it.

use crate::types::{Lid, MacAddress, Mtu};
use ib_types::{Guid, ServiceLevel};

/// The only port that is used.
pub(super) const PORT: u32 = 1;

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PortState {
    /// State of the link.
    pub state: LinkState,
    /// Largest path MTU: that of an InfiniBand link, 2048 bytes if a virtual function cannot read
    /// it; on Ethernet the largest that fits in a frame with the headers of RoCE.
    pub mtu: Mtu,
    /// Speed of the link in Mb/s; 0 if it is down, or unknown to a virtual function.
    pub speed: u32,
    /// GUID of the port.
    pub port_guid: Guid,
    /// GUID of the HCA.
    pub node_guid: Guid,
    /// Facts of one kind of port.
    pub link: Link,
}

/// Facts of one kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Link {
    /// An InfiniBand port.
    InfiniBand(InfiniBandLink),
    /// An Ethernet port.
    Ethernet(EthernetLink),
}

/// State of an InfiniBand port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InfiniBandLink {
    /// Base LID, assigned by the subnet manager; 0 before.
    pub lid: Lid,
    /// LID mask count: the port has 2^lmc LIDs.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// Service level to reach the subnet manager with.
    pub sm_sl: ServiceLevel,
    /// Largest delay in the subnet: 4.096 us times 2 to this power.
    pub subnet_timeout: u8,
    /// The port has no LID of its own: every packet needs a GRH.
    pub grh_required: bool,
    /// Prefix of GID 0.
    pub gid_prefix: u64,
    /// Capability mask of the port (IBTA 1.3, 14.2.5.6).
    pub capability_mask: u32,
}

/// State of an Ethernet port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EthernetLink {
    /// MAC address of the function; zero if a virtual function was given none.
    pub mac: MacAddress,
    /// Largest payload of a frame, bytes: [`Config::ethernet_mtu`](crate::Config::ethernet_mtu), or
    /// less if the port cannot do that.
    pub mtu: u16,
}

impl PortState {
    /// Returns the InfiniBand part; `None` on Ethernet.
    #[must_use]
    pub const fn infiniband(&self) -> Option<&InfiniBandLink> {
        match &self.link {
            Link::InfiniBand(link) => Some(link),
            Link::Ethernet(_) => None,
        }
    }

    /// Returns the Ethernet part; `None` on InfiniBand.
    #[must_use]
    pub const fn ethernet(&self) -> Option<&EthernetLink> {
        match &self.link {
            Link::Ethernet(link) => Some(link),
            Link::InfiniBand(_) => None,
        }
    }

    /// Returns the base LID: 0 on Ethernet, and before the subnet manager assigned one.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.infiniband().map_or(Lid::default(), |link| link.lid)
    }
}

/// State of a link, by the names of InfiniBand. An Ethernet link is down or active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LinkState {
    /// No link.
    Down,
    /// Link is up; the subnet manager has not configured it.
    Init,
    /// Configured; management datagrams only.
    Armed,
    /// Data may flow.
    Active,
}

/// Returns the largest MTU of at most so many bytes: a register may say anything while the link is
/// down.
pub(super) fn at_most(bytes: u32) -> Mtu {
    [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512]
        .into_iter()
        .find(|mtu| mtu.bytes() <= bytes)
        .unwrap_or(Mtu::B256)
}

/// Returns the meaning of the highest bit of a register's mask; 0 for an empty one.
pub(super) fn highest(mask: u32, meanings: &[u32]) -> u32 {
    mask.checked_ilog2().and_then(|bit| meanings.get(bit as usize)).copied().unwrap_or(0)
}
