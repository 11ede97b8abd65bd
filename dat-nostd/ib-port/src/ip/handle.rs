//! IP on a port, for who sends and receives packets.

use core::fmt;
use core::net::Ipv4Addr;
use ib_types::Instant;

use driver_mlx::Bar;
use ib_mgmt::ipoib::{HwAddr, Neighbour};

use super::{AddressResolution, Interface, IpCounters, IpError, Link, destination};
use crate::info::PortInfo;
use crate::path::Resolver;

/// IP on a port, for who sends and receives packets.
pub struct Ip<'a, 's, B: Bar> {
    pub(crate) interface: &'a mut Interface<'s, B>,
    pub(crate) info: &'a PortInfo,
    pub(crate) paths: Resolver<'a, 's>,
    pub(crate) now: Instant,
}

impl<B: Bar> fmt::Debug for Ip<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ip({}, up: {}, MTU {})", self.address(), self.is_up(), self.mtu())
    }
}

impl<B: Bar> Ip<'_, '_, B> {
    /// Whether packets flow: the queue pair is there, on InfiniBand attached to the broadcast group.
    pub fn is_up(&self) -> bool {
        self.info.active && self.interface.is_up()
    }

    /// The own address.
    pub fn address(&self) -> Ipv4Addr {
        self.interface.address
    }

    /// Leading bits of the address that all neighbours share.
    pub fn prefix_len(&self) -> u8 {
        self.interface.config.prefix_len
    }

    /// Who forwards packets for others than neighbours.
    pub fn gateway(&self) -> Option<Ipv4Addr> {
        self.interface.config.gateway
    }

    /// The longest packet, bytes: the broadcast group's MTU less 4, and 2044 before the group was joined; on Ethernet
    /// [`Config::ethernet_mtu`](driver_mlx::Config::ethernet_mtu), or less if the port cannot do that.
    pub fn mtu(&self) -> usize {
        usize::from(self.interface.mtu(self.info))
    }

    /// The own hardware address of IP over InfiniBand, once there is a queue pair; `None` on Ethernet.
    pub fn hardware_address(&self) -> Option<HwAddr> {
        self.interface.hardware_address(self.info)
    }

    /// The next IPv4 packet that arrived, whole. ARP is answered inside and does not appear here.
    pub fn rx(&mut self) -> Option<&[u8]> {
        let len = self.interface.frames.read(self.interface.packet)?;
        self.interface.packet.get(..len)
    }

    /// Whether [`Ip::rx`] has something.
    pub fn has_rx(&self) -> bool {
        self.interface.frames.has_unread()
    }

    /// Sends an IPv4 packet to a neighbour, to the broadcast address or to a multicast group. If the neighbour is not
    /// known yet, the packet waits: at most 16 each do.
    ///
    /// # Errors
    /// [`IpError`]; the packet was not taken.
    pub fn tx(&mut self, packet: &[u8], next_hop: Ipv4Addr) -> Result<(), IpError> {
        if !self.can_tx() {
            // Completions that nobody has looked at yet may make room.
            let _ = self.interface.poll(self.now, self.info, &mut self.paths);
        }
        self.interface.transmit(self.now, self.info, packet, next_hop)?;
        self.interface.dispatch(self.now, self.info, &mut self.paths);
        Ok(())
    }

    /// Sends an IPv4 packet where its destination address says: straight to neighbours, else to the gateway.
    ///
    /// # Errors
    /// As [`Ip::tx`].
    pub fn send(&mut self, packet: &[u8]) -> Result<(), IpError> {
        let to = destination(packet).ok_or(IpError::Malformed)?;
        let direct = to.is_multicast() || to.is_broadcast() || self.interface.is_neighbour(to);
        let next_hop = if direct { Some(to) } else { self.gateway() };
        self.tx(packet, next_hop.ok_or(IpError::NoRoute)?)
    }

    /// Whether there is room for a packet.
    pub fn can_tx(&self) -> bool {
        self.interface.frames.room() > 0
    }

    /// The GID at an IP address; asks for it if it is not known.
    pub fn resolve(&mut self, ip: Ipv4Addr) -> AddressResolution {
        self.interface.resolve(self.now, ip)
    }

    /// Receives what is sent to a multicast group from now on. False when the table of groups is full.
    ///
    /// On Ethernet the feature `multicast` also reports the group by IGMP. Switches may else forward none of its frames, those
    /// for a UD queue pair of this group included.
    pub fn join(&mut self, group: Ipv4Addr) -> bool {
        group.is_multicast() && self.interface.join(self.now, self.info, group)
    }

    /// Ends [`Ip::join`]; false when the group was not joined.
    pub fn leave(&mut self, group: Ipv4Addr) -> bool {
        group.is_multicast() && self.interface.leave(self.info, group)
    }

    /// The neighbours of IP over InfiniBand, resolved or pending.
    pub fn neighbours(&self) -> impl Iterator<Item = Neighbour> + '_ {
        let link = match &self.interface.link {
            Link::InfiniBand(link) => Some(link),
            Link::Ethernet(_) => None,
        };
        link.into_iter().flat_map(|link| link.neighbours.iter())
    }

    /// Counters since the start.
    pub fn counters(&self) -> IpCounters {
        self.interface.counters()
    }
}
