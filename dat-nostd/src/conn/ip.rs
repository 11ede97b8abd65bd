//! IP over InfiniBand on the adapter's port, and addresses resolved by it. An extension: DAT 1.2 knows addresses only.

use driver_mlx::{Instant, Platform};
use ib_port::ib_mgmt::cm::ConnId;

use crate::adapter::Adapter;
use crate::adapter::device::Device;
use crate::base::types::IaAddress;

pub use ib_port::ib_mgmt::ipoib::{
    HwAddr, Neighbour as IpNeighbour, NeighbourConfig, NeighbourCounters, NeighbourState,
};
pub use ib_port::{AddressResolution, Ip, IpConfig, IpCounters, IpError};

impl<'s, P: Platform> Adapter<'s, P> {
    /// Extension: packets in and out; `None` unless the adapter was opened with [`AdapterConfig::ip`] and an IPv4 address.
    ///
    /// [`AdapterConfig::ip`]: crate::AdapterConfig::ip
    pub fn ip(&mut self) -> Option<Ip<'_, 's, P::Bar>> {
        if self.device.dead {
            return None;
        }
        let now = self.device.now();
        self.device.port.ip(now)
    }

    /// Extension: the port GID that an address is known to have, without asking anybody: this port's own, that of the static table, or
    /// one that ARP confirmed lately.
    pub fn known_gid(&mut self, address: &IaAddress) -> Option<[u8; 16]> {
        if *address == self.device.address {
            return Some(self.device.port.info().gid.0);
        }
        if let Some(neighbour) = self.device.neighbours.iter().find(|neighbour| neighbour.0 == *address) {
            return Some(neighbour.1.0);
        }
        let IaAddress::V4(address) = *address else { return None };
        let now = self.device.now();
        let ip = self.device.port.ip(now)?;
        let known = ip.neighbours().find(|neighbour| neighbour.ip == address)?;
        known.hw.filter(|_| known.state == NeighbourState::Reachable).map(|hw| hw.gid.0)
    }
}

impl<P: Platform> Device<'_, P> {
    /// The GID at an address: this port's own, that of the static table, or what ARP finds.
    pub(crate) fn resolve_address(&mut self, now: Instant, address: &IaAddress) -> AddressResolution {
        if *address == self.address || address.is_loopback() {
            return AddressResolution::Known(self.port.info().gid);
        }
        if let Some(neighbour) = self.neighbours.iter().find(|neighbour| neighbour.0 == *address) {
            return AddressResolution::Known(neighbour.1);
        }
        match address {
            IaAddress::V4(address) => self.port.resolve_address(now, *address),
            IaAddress::V6(_) => AddressResolution::Failed,
        }
    }

    /// A peer rejected a REQ that may have reached the wrong port. Returns whether its path must be resolved again.
    pub(crate) fn doubt_path(&mut self, now: Instant, conn: ConnId) -> bool {
        let info = self.port.cm_ref().info(conn);
        info.is_some_and(|info| self.port.doubt_path(now, info.path.dgid()))
    }
}
