//! Sockets over a port's IP packets: ICMP, TCP and UDP by [`smoltcp`], on InfiniBand and Ethernet alike.
//!
//! A [`Host`] takes packets from a [`PacketLink`] and hands it those of its sockets. The
//! owner of the port calls [`Host::poll`] after the port's own poll. The sockets and their buffers are the
//! application's. Addresses and routes are the link's, and so are neighbours: [`Ip`] finds them.

use core::net::Ipv4Addr;

use driver_mlx::Bar;
use ib_mgmt::membership::IGMP;
use ib_types::{Instant, Wake};
pub use smoltcp;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Cidr};

use crate::frames::PROTOCOL_AT;
use crate::{Ip, IpError};

/// Bytes of the longest packet.
pub const MAX_PACKET: usize = 4096;
/// The shortest MTU of a link (RFC 791, section 3.1), bytes.
const MIN_MTU: usize = 68;
/// Packets taken in one poll.
const PACKETS_PER_POLL: usize = 64;

/// Addresses, routes and limits of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The own address.
    pub address: Ipv4Addr,
    /// Leading bits of the address that all neighbours share, at most 32.
    pub prefix_len: u8,
    /// The router to other subnets.
    pub gateway: Option<Ipv4Addr>,
    /// The longest packet, bytes. More than [`MAX_PACKET`] count as that.
    pub mtu: usize,
}

/// Moves complete IP packets.
pub trait PacketLink {
    /// Addresses and limits; `None` while packets cannot be moved.
    fn config(&mut self) -> Option<LinkConfig>;
    /// Copies the next packet to `buffer` and returns its length. A packet longer than the buffer is dropped.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;
    /// Returns whether a packet can be sent.
    fn can_send(&mut self) -> bool;
    /// Sends a packet. If that fails it is lost, as on any network.
    fn send(&mut self, packet: &[u8]);
    /// Receives packets to a multicast group from now on, and reports it to those who forward them. Returns false if there is
    /// no room.
    fn join(&mut self, group: Ipv4Addr) -> bool;
    /// Ends [`PacketLink::join`].
    fn leave(&mut self, group: Ipv4Addr);
}

impl<B: Bar> PacketLink for Ip<'_, '_, B> {
    fn config(&mut self) -> Option<LinkConfig> {
        self.is_up().then(|| LinkConfig {
            address: self.address(),
            prefix_len: self.prefix_len(),
            gateway: self.gateway(),
            mtu: self.mtu(),
        })
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            let packet = self.rx()?;
            if let Some(room) = buffer.get_mut(..packet.len()) {
                room.copy_from_slice(packet);
                return Some(packet.len());
            }
        }
    }

    fn can_send(&mut self) -> bool {
        self.can_tx()
    }

    fn send(&mut self, packet: &[u8]) {
        // Losses are in the port's counters.
        let _ = Ip::send(self, packet);
    }

    fn join(&mut self, group: Ipv4Addr) -> bool {
        Ip::join(self, group)
    }

    fn leave(&mut self, group: Ipv4Addr) {
        Ip::leave(self, group);
    }
}

/// Memory of a [`Host`]: a packet in each direction.
#[derive(Debug)]
pub struct PacketBuffers {
    received: [u8; MAX_PACKET],
    sent: [u8; MAX_PACKET],
}

impl PacketBuffers {
    /// Empty; all bytes zero.
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

/// An IP host, which replies to pings. The application owns the sockets.
#[expect(missing_debug_implementations, reason = "smoltcp's interface has none")]
pub struct Host<'s> {
    interface: Interface,
    buffers: &'s mut PacketBuffers,
    mtu: usize,
}

impl<'s> Host<'s> {
    /// Makes a host with the addresses, the routes and the MTU that `link` has now. `seed` varies port and sequence
    /// numbers.
    ///
    /// # Errors
    /// [`IpError::Down`]: the link does not move packets (yet), or its MTU is shorter than 68 bytes.
    pub fn new(
        link: &mut impl PacketLink,
        buffers: &'s mut PacketBuffers,
        seed: u64,
        now: Instant,
    ) -> Result<Self, IpError> {
        let config = link.config().filter(|config| config.mtu >= MIN_MTU).ok_or(IpError::Down)?;
        let mtu = config.mtu.min(MAX_PACKET);
        let mut settings = Config::new(HardwareAddress::Ip);
        settings.random_seed = seed;
        let mut interface = Interface::new(settings, &mut Phy { link, buffers, mtu }, instant(now));
        let address = IpCidr::Ipv4(Ipv4Cidr::new(config.address, config.prefix_len.min(32)));
        interface.update_ip_addrs(|addresses| {
            // The list is empty.
            let _ = addresses.push(address);
        });
        if let Some(gateway) = config.gateway {
            // So are the routes.
            let _ = interface.routes_mut().add_default_ipv4_route(gateway);
        }
        Ok(Self { interface, buffers, mtu })
    }

    /// Takes packets in, at most 64, and sends what sockets have to send. Returns when to poll again; sockets that are
    /// used in between may have it earlier ([`Host::poll_at`]).
    pub fn poll(&mut self, link: &mut impl PacketLink, sockets: &mut SocketSet<'_>, now: Instant) -> Wake {
        let Self { interface, buffers, mtu } = self;
        let mut phy = Phy { link, buffers, mtu: *mtu };
        let at = instant(now);
        interface.poll_maintenance(at);
        let mut more = true;
        for _ in 0..PACKETS_PER_POLL {
            if interface.poll_ingress_single(at, &mut phy, sockets) == PollIngressSingleResult::None {
                more = false;
                break;
            }
        }
        interface.poll_egress(at, &mut phy, sockets);
        if more { Wake::Now } else { self.poll_at(sockets, now) }
    }

    /// Returns when to poll at the latest, for sockets as they are now.
    pub fn poll_at(&mut self, sockets: &SocketSet<'_>, now: Instant) -> Wake {
        self.interface.poll_at(instant(now), sockets).map(from_smoltcp).into()
    }

    /// Joins a multicast group: UDP sockets receive what is sent to it. Returns false for other addresses, and if there is no
    /// room for another group.
    pub fn join(&mut self, link: &mut impl PacketLink, group: Ipv4Addr) -> bool {
        let joined = self.interface.join_multicast_group(group).is_ok() && link.join(group);
        if !joined {
            self.leave(link, group);
        }
        joined
    }

    /// Leaves a multicast group.
    pub fn leave(&mut self, link: &mut impl PacketLink, group: Ipv4Addr) {
        let _ = self.interface.leave_multicast_group(group);
        link.leave(group);
    }

    /// The interface: [`Interface::context`] is what a TCP socket needs to connect.
    pub fn interface(&mut self) -> &mut Interface {
        &mut self.interface
    }
}

/// A time in smoltcp's form, microseconds.
fn instant(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}

/// A time of smoltcp's, never before it.
fn from_smoltcp(at: smoltcp::time::Instant) -> Instant {
    Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000))
}

/// A link as smoltcp's device.
struct Phy<'a, L> {
    link: &'a mut L,
    buffers: &'a mut PacketBuffers,
    mtu: usize,
}

impl<L: PacketLink> Device for Phy<'_, L> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Sender<'t, L>
    where
        Self: 't;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Sender<'_, L>)> {
        // A packet is taken only when it can be answered.
        if !self.link.can_send() {
            return None;
        }
        let len = self.link.receive(&mut self.buffers.received)?;
        let packet = self.buffers.received.get(..len)?;
        Some((Received(packet), Sender { link: self.link, buffer: &mut self.buffers.sent }))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sender<'_, L>> {
        self.link.can_send().then_some(Sender { link: self.link, buffer: &mut self.buffers.sent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

struct Received<'t>(&'t [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

struct Sender<'t, L> {
    link: &'t mut L,
    buffer: &'t mut [u8; MAX_PACKET],
}

impl<L: PacketLink> TxToken for Sender<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // smoltcp's packets are not longer than the MTU.
        let packet = &mut self.buffer[..len];
        let result = f(packet);
        // The link reports groups itself, also those without a socket.
        if packet.get(PROTOCOL_AT) != Some(&IGMP) {
            self.link.send(packet);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::iface::SocketStorage;
    use smoltcp::socket::udp;
    use smoltcp::wire::IpAddress;
    use std::boxed::Box;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const MTU: usize = 1500;

    /// A link whose other end is the test.
    struct Wire {
        config: Option<LinkConfig>,
        arriving: VecDeque<Vec<u8>>,
        sent: Vec<Vec<u8>>,
        /// Packets that can still be sent.
        room: usize,
        groups: Vec<Ipv4Addr>,
    }

    impl PacketLink for Wire {
        fn config(&mut self) -> Option<LinkConfig> {
            self.config
        }

        fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
            let packet = self.arriving.pop_front()?;
            buffer[..packet.len()].copy_from_slice(&packet);
            Some(packet.len())
        }

        fn can_send(&mut self) -> bool {
            self.room > 0
        }

        fn send(&mut self, packet: &[u8]) {
            self.room -= 1;
            self.sent.push(packet.to_vec());
        }

        fn join(&mut self, group: Ipv4Addr) -> bool {
            self.groups.push(group);
            self.groups.len() < 3
        }

        fn leave(&mut self, group: Ipv4Addr) {
            self.groups.retain(|joined| *joined != group);
        }
    }

    fn wire() -> Wire {
        let config = LinkConfig { address: OWN, prefix_len: 24, gateway: None, mtu: MTU };
        Wire { config: Some(config), arriving: VecDeque::new(), sent: vec![], room: 1000, groups: vec![] }
    }

    fn host(wire: &mut Wire) -> Result<Host<'static>, IpError> {
        Host::new(wire, Box::leak(Box::new(PacketBuffers::new())), 1, Instant::ORIGIN)
    }

    fn no_sockets() -> SocketSet<'static> {
        SocketSet::new(&mut [][..])
    }

    fn sum(bytes: &[u8]) -> [u8; 2] {
        let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!sum as u16).to_be_bytes()
    }

    /// An ICMP echo request with 8 bytes of payload.
    fn ping(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0x40, 0, 64, 1, 0, 0];
        packet.extend([from.octets(), to.octets()].concat());
        let head = sum(&packet);
        packet[10..12].copy_from_slice(&head);
        packet.extend([8, 0, 0, 0, 0, 9, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        let message = sum(&packet[20..]);
        packet[22..24].copy_from_slice(&message);
        packet
    }

    fn is_pong(packet: &[u8]) -> bool {
        packet.len() == 36 && packet[12..20] == [OWN.octets(), PEER.octets()].concat() && packet[20] == 0
    }

    #[test]
    fn a_link_that_is_down_or_too_narrow_has_no_host() {
        let mut wire = wire();
        let config = wire.config.unwrap();
        for bad in [None, Some(LinkConfig { mtu: 67, ..config }), Some(LinkConfig { mtu: 0, ..config })] {
            wire.config = bad;
            assert_eq!(host(&mut wire).err(), Some(IpError::Down));
        }
        // Values beyond the limits are cut.
        wire.config = Some(LinkConfig { mtu: 65_000, prefix_len: 200, ..config });
        assert_eq!(host(&mut wire).ok().map(|host| host.mtu), Some(MAX_PACKET));
    }

    #[test]
    fn pings_are_answered_in_bounded_polls_and_while_there_is_room() {
        let mut wire = wire();
        let mut host = host(&mut wire).ok().unwrap();
        let mut sockets = no_sockets();
        wire.arriving = (0..100).map(|_| ping(PEER, OWN)).collect();
        wire.room = 90;
        assert_eq!(host.poll(&mut wire, &mut sockets, Instant::ORIGIN), Wake::Now);
        assert_eq!((wire.sent.len(), wire.arriving.len()), (64, 36));
        assert_eq!(host.poll(&mut wire, &mut sockets, Instant::ORIGIN), Wake::Idle);
        assert_eq!((wire.sent.len(), wire.arriving.len()), (90, 10), "no room, nothing taken");
        assert!(wire.sent.iter().all(|packet| is_pong(packet)));
        // Pings to others are not answered.
        (wire.arriving, wire.room) = ([ping(PEER, Ipv4Addr::new(10, 0, 0, 3))].into(), 10);
        let _ = host.poll(&mut wire, &mut sockets, Instant::ORIGIN);
        assert_eq!(wire.sent.len(), 90);
    }

    #[test]
    fn datagrams_longer_than_the_mtu_are_not_sent() {
        let mut wire = wire();
        let mut host = host(&mut wire).ok().unwrap();
        let ([mut entries, mut more], [mut bytes, mut more_bytes]) =
            ([[udp::PacketMetadata::EMPTY; 4]; 2], [[0; 8192]; 2]);
        let mut socket = udp::Socket::new(
            udp::PacketBuffer::new(&mut entries[..], &mut bytes[..]),
            udp::PacketBuffer::new(&mut more[..], &mut more_bytes[..]),
        );
        socket.bind(5).unwrap();
        let mut slot = [SocketStorage::EMPTY];
        let mut sockets = SocketSet::new(&mut slot[..]);
        let handle = sockets.add(socket);
        for (len, packets) in [(MTU - 28, 1), (MTU - 27, 1), (5000, 1), (3, 2)] {
            let socket = sockets.get_mut::<udp::Socket<'_>>(handle);
            socket.send_slice(&vec![7; len], (IpAddress::Ipv4(PEER), 6)).unwrap();
            assert!(host.poll_at(&sockets, Instant::ORIGIN).is_due(Instant::ORIGIN));
            assert_eq!(host.poll(&mut wire, &mut sockets, Instant::ORIGIN), Wake::Idle);
            assert_eq!(wire.sent.len(), packets, "{len} bytes");
        }
        assert_eq!(wire.sent.iter().map(Vec::len).collect::<Vec<_>>(), [MTU, 31]);
    }

    /// A datagram to port 5 with 4 bytes of payload and no checksum.
    fn datagram(to: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 32, 0, 1, 0x40, 0, 1, 17, 0, 0];
        packet.extend([PEER.octets(), to.octets()].concat());
        let head = sum(&packet);
        packet[10..12].copy_from_slice(&head);
        packet.extend([0, 9, 0, 5, 0, 12, 0, 0, 1, 2, 3, 4]);
        packet
    }

    #[test]
    fn sockets_receive_the_groups_that_the_host_has_joined() {
        const GROUPS: [Ipv4Addr; 3] =
            [Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::new(239, 1, 2, 4), Ipv4Addr::new(239, 1, 2, 5)];
        let mut wire = wire();
        let mut host = host(&mut wire).ok().unwrap();
        let (mut entries, mut bytes) = ([udp::PacketMetadata::EMPTY; 8], [0; 64]);
        let mut socket = udp::Socket::new(
            udp::PacketBuffer::new(&mut entries[..], &mut bytes[..]),
            udp::PacketBuffer::new(&mut [][..], &mut [][..]),
        );
        socket.bind(5).unwrap();
        let mut slot = [SocketStorage::EMPTY];
        let mut sockets = SocketSet::new(&mut slot[..]);
        let handle = sockets.add(socket);
        let mut arrived = |host: &mut Host<'_>, wire: &mut Wire| {
            wire.arriving = GROUPS.map(datagram).into();
            let _ = host.poll(wire, &mut sockets, Instant::ORIGIN);
            let socket = sockets.get_mut::<udp::Socket<'_>>(handle);
            std::iter::from_fn(|| socket.recv().ok().map(|(data, _)| data.len())).collect::<Vec<_>>()
        };
        assert_eq!(arrived(&mut host, &mut wire), []);
        assert!(host.join(&mut wire, GROUPS[0]) && host.join(&mut wire, GROUPS[1]));
        // The link has no room for the third.
        assert!(!host.join(&mut wire, GROUPS[2]) && !host.join(&mut wire, PEER));
        assert_eq!((arrived(&mut host, &mut wire), &wire.groups[..]), (vec![4, 4], &GROUPS[..2]));
        host.leave(&mut wire, GROUPS[0]);
        assert_eq!((arrived(&mut host, &mut wire), &wire.groups[..]), (vec![4], &GROUPS[1..2]));
        assert_eq!(wire.sent, Vec::<Vec<u8>>::new(), "reports are the link's");
    }

    proptest! {
        #[test]
        fn any_packets(
            junk in proptest::collection::vec(any::<u8>(), 0..80),
            flips in proptest::collection::vec((0..36usize, any::<u8>()), 0..4),
            cut in 0..=36usize,
        ) {
            let mut wire = wire();
            let mut host = host(&mut wire).ok().unwrap();
            let mut damaged = ping(PEER, OWN);
            for (at, byte) in flips {
                damaged[at] ^= byte;
            }
            damaged.truncate(cut);
            wire.arriving = [junk, damaged, ping(PEER, OWN)].into();
            let _ = host.poll(&mut wire, &mut no_sockets(), Instant::ORIGIN);
            prop_assert!(wire.sent.iter().any(|packet| is_pong(packet)), "it goes on");
        }
    }
}
