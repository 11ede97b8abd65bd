//! IP packets and sockets on the adapter's port, and addresses resolved by it. An extension: DAT 1.2 knows addresses only.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::types::IaAddress;

pub use ib_port::ib_mgmt::ipoib::{
    HwAddr, Neighbour as IpNeighbour, NeighbourConfig, NeighbourCounters, NeighbourState,
};
#[cfg(feature = "net")]
pub use ib_port::net;
pub use ib_port::{AddressResolution, Ip, IpConfig, IpCounters, IpError};

impl<'s, P: Platform> Adapter<'s, P> {
    /// Extension: packets in and out; `None` unless the adapter was opened with [`AdapterConfig::ip`] and an IPv4 address.
    ///
    /// [`AdapterConfig::ip`]: crate::AdapterConfig::ip
    pub fn ip(&mut self) -> Option<Ip<'_, 's, P::Bar>> {
        self.device_mut().ip()
    }

    /// Extension: the port GID that an address is known to have, without asking anybody: this port's own, that of the static table, or
    /// one that ARP confirmed lately.
    pub fn known_gid(&mut self, address: &IaAddress) -> Option<[u8; 16]> {
        self.device_mut().known_gid(address)
    }
}

/// Extension: the adapter is the link of a [`net::Host`].
#[cfg(feature = "net")]
impl<P: Platform> net::PacketLink for Adapter<'_, P> {
    fn config(&mut self) -> Option<net::LinkConfig> {
        self.ip()?.config()
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.ip()?.receive(buffer)
    }

    fn can_send(&mut self) -> bool {
        self.ip().is_some_and(|ip| ip.can_tx())
    }

    fn send(&mut self, packet: &[u8]) {
        if let Some(mut ip) = self.ip() {
            net::PacketLink::send(&mut ip, packet);
        }
    }

    fn join(&mut self, group: core::net::Ipv4Addr) -> bool {
        self.ip().is_some_and(|mut ip| ip.join(group))
    }

    fn leave(&mut self, group: core::net::Ipv4Addr) {
        if let Some(mut ip) = self.ip() {
            ip.leave(group);
        }
    }
}
