//! An IP host: address, routes, and the answer to pings.

use core::net::Ipv4Addr;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Cidr};

use super::link::{PacketLink, Phy};
use super::{instant, nanos};

/// Bytes of the longest packet that is taken or sent.
pub(super) const MAX_PACKET: usize = 4096;
/// Packets taken in one poll.
const PACKETS_PER_POLL: usize = 64;

/// One packet each way.
#[derive(Debug)]
pub struct PacketBuffers {
    pub(super) received: [u8; MAX_PACKET],
    pub(super) sent: [u8; MAX_PACKET],
}

impl PacketBuffers {
    /// Empty.
    #[must_use]
    pub const fn new() -> Self {
        Self { received: [0; MAX_PACKET], sent: [0; MAX_PACKET] }
    }
}

impl Default for PacketBuffers {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a host is.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// Its address.
    pub address: Ipv4Addr,
    /// Bits of it that name the subnet, at most 32.
    pub prefix_len: u8,
    /// The router to other subnets.
    pub gateway: Option<Ipv4Addr>,
    /// Varies port and sequence numbers.
    pub seed: u64,
}

/// An IP host. Its sockets are the application's; pings are answered here.
pub struct Host<'s> {
    pub(crate) interface: Interface,
    buffers: &'s mut PacketBuffers,
}

impl<'s> Host<'s> {
    /// A host on `link`, whose MTU must be known by now.
    pub fn new<L: PacketLink>(
        link: &mut L,
        buffers: &'s mut PacketBuffers,
        config: &HostConfig,
        now: u64,
    ) -> Self {
        let mut settings = Config::new(HardwareAddress::Ip);
        settings.random_seed = config.seed;
        let mut interface = Interface::new(settings, &mut Phy::new(link, buffers), instant(now));
        let prefix = Ipv4Cidr::new(config.address, config.prefix_len.min(32));
        interface.update_ip_addrs(|addresses| {
            // Room for one is there.
            let _ = addresses.push(IpCidr::Ipv4(prefix));
        });
        if let Some(gateway) = config.gateway {
            // As is for the one route.
            let _ = interface.routes_mut().add_default_ipv4_route(gateway);
        }
        Self { interface, buffers }
    }

    /// Takes packets in and sends what is due. Whether there is more to take in at once.
    pub fn poll<L: PacketLink>(&mut self, link: &mut L, sockets: &mut SocketSet<'_>, now: u64) -> bool {
        let Self { interface, buffers } = self;
        let mut phy = Phy::new(link, buffers);
        let at = instant(now);
        interface.poll_maintenance(at);
        let mut more = true;
        for _ in 0..PACKETS_PER_POLL {
            use smoltcp::iface::PollIngressSingleResult;
            if interface.poll_ingress_single(at, &mut phy, sockets) == PollIngressSingleResult::None {
                more = false;
                break;
            }
        }
        interface.poll_egress(at, &mut phy, sockets);
        more
    }

    /// When to poll again at the latest, nanoseconds; not after `now` if at once.
    pub fn deadline(&mut self, sockets: &SocketSet<'_>, now: u64) -> Option<u64> {
        self.interface.poll_at(instant(now), sockets).map(nanos)
    }
}
