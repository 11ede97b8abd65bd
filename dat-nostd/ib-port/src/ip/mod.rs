//! IPv4 packets in and out, and the hardware addresses of neighbours: over InfiniBand, or Ethernet.
//!
//! A packet to a neighbour that is not resolved yet waits in its send buffer until ARP has found the hardware address, and on
//! InfiniBand the subnet administrator the path; nothing is lost by being first.

mod config;
mod ethernet;
mod handle;
mod infiniband;
mod membership;
mod way;

use core::net::Ipv4Addr;
use ib_types::{Duration, Gid, Instant, Wake};

use driver_mlx::{Bar, Error, Hca, MacAddress, Platform, PortType};
use ib_mgmt::ethernet::{HEADER_LEN, group_mac};
use ib_mgmt::ipoib::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, HwAddr, NeighbourLookup, Neighbours, broadcast_mgid, multicast_mgid,
};
use ib_mgmt::sa::{McMemberRecord, QueryError, Response};

use crate::frames::{Arrived, Destination, FRAME_LEN, FrameConfig, FrameQueue, REPORTS, Waiting};
use crate::group::{Groups, Kind, Question};
use crate::info::PortInfo;
use crate::path::Resolver;
use crate::storage::IpParts;
use ethernet::{Ethernet, gid_of_ipv4};
use infiniband::Ipoib;
use way::{BATCH, PATIENCE, Way};

pub use config::{AddressResolution, IpConfig, IpCounters, IpError};
pub use handle::Ip;
pub use membership::MemberSlot;

/// Packets that may wait for one neighbour.
const WAITING_EACH: usize = 16;
/// Distance of attempts to make the queue pair or to attach a group, nanoseconds.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of a VLAN tag and of the check sequence, by which a frame may be longer.
const TAG_AND_CHECK: usize = 8;

/// IP on a port.
#[derive(Debug)]
pub(crate) struct Interface<'s, B: Bar> {
    /// The own address; unspecified on an Ethernet port that only finds its peers.
    address: Ipv4Addr,
    config: IpConfig,
    frames: FrameQueue<'s, B>,
    link: Link<'s>,
    packet: &'s mut [u8; FRAME_LEN],
    retry_at: Instant,
    other_protocol: u64,
    unreachable: u64,
    setup_failures: u64,
}

/// State that differs by medium.
#[derive(Debug)]
enum Link<'s> {
    InfiniBand(Ipoib<'s>),
    Ethernet(Ethernet<'s>),
}

impl<'s, B: Bar> Interface<'s, B> {
    /// Begins with IP at an address, or on Ethernet also without.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(crate) fn open<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        parts: IpParts<'s>,
        ip: Option<(Ipv4Addr, IpConfig)>,
        info: &PortInfo,
    ) -> Result<Self, Error> {
        let (address, config) = ip.unwrap_or((Ipv4Addr::UNSPECIFIED, IpConfig::DEFAULT));
        if ip.is_some() && address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            return Err(Error::InvalidArgument("IP address"));
        }
        if config.prefix_len > 32 {
            return Err(Error::InvalidArgument("IP prefix length"));
        }
        let mtu = info.ethernet.map_or(0, |link| usize::from(link.mtu));
        let longest = mtu + HEADER_LEN + TAG_AND_CHECK;
        let frames =
            FrameConfig { medium: info.port_type, has_reader: ip.is_some(), longest, vlan: info.vlan };
        let longest = if info.port_type == PortType::Ethernet { longest } else { FRAME_LEN };
        let frames = FrameQueue::open(hca, parts.tx, FrameConfig { longest, ..frames })?;
        let link = match info.port_type {
            PortType::InfiniBand => {
                let mut groups = Groups::new(parts.groups);
                groups.want(Instant::ORIGIN, broadcast_mgid(info.pkey), Kind::Broadcast);
                let neighbours = Neighbours::new(parts.neighbours, config.neighbour);
                Link::InfiniBand(Ipoib { neighbours, groups, announced: None })
            }
            PortType::Ethernet => {
                let neighbours = Neighbours::new(parts.macs, config.neighbour);
                Link::Ethernet(Ethernet::new(neighbours, parts.members, info))
            }
        };
        Ok(Self {
            address,
            config,
            frames,
            link,
            packet: parts.packet,
            retry_at: Instant::ORIGIN,
            other_protocol: 0,
            unreachable: 0,
            setup_failures: 0,
        })
    }

    /// Begins again after a recovery of the HCA. Groups that were entered are entered again.
    pub(crate) fn reopen<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        self.frames.reopen(hca)?;
        match &mut self.link {
            Link::InfiniBand(link) => {
                link.groups.begin_again(hca.now());
                link.neighbours.doubt_all();
                link.announced = None;
            }
            Link::Ethernet(link) => {
                link.neighbours.doubt_all();
                link.announced = false;
                link.groups.report_all();
            }
        }
        self.retry_at = Instant::ORIGIN;
        Ok(())
    }

    pub(crate) fn close<P: Platform<Bar = B>>(self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        self.frames.close(hca)
    }

    pub(crate) fn counters(&self) -> IpCounters {
        let frames = self.frames.counters;
        let (joins, refused_joins, arp) = match &self.link {
            Link::InfiniBand(link) => (link.groups.joins, link.groups.refused, link.neighbours.counters()),
            Link::Ethernet(link) => (0, 0, link.neighbours.counters()),
        };
        IpCounters {
            received: frames.received,
            sent: frames.sent,
            bad: frames.bad,
            overrun: frames.overrun,
            other_protocol: self.other_protocol,
            unreachable: self.unreachable,
            send_errors: frames.send_errors,
            joins,
            refused_joins,
            setup_failures: self.setup_failures,
            arp,
        }
    }

    /// Returns whether this port has an IP address for packets.
    pub(crate) fn has_ip(&self) -> bool {
        !self.address.is_unspecified()
    }

    /// Whether packets flow.
    pub(crate) fn is_up(&self) -> bool {
        self.frames.qp().is_some()
            && match &self.link {
                Link::InfiniBand(link) => link.groups.is_attached(),
                Link::Ethernet(_) => true,
            }
    }

    pub(crate) fn mtu(&self, info: &PortInfo) -> u16 {
        let link = match &self.link {
            Link::InfiniBand(link) => link.mtu(),
            Link::Ethernet(_) => info.ethernet.map_or(0, |link| link.mtu).min(self.frames.longest_payload()),
        };
        link.min(self.config.max_mtu)
    }

    /// Begins to leave all groups: the port is closed.
    pub(crate) fn leave_all(&mut self) {
        match &mut self.link {
            Link::InfiniBand(link) => link.groups.leave_all(),
            Link::Ethernet(link) if REPORTS => link.groups.leave_all(),
            Link::Ethernet(_) => {}
        }
    }

    /// Returns whether the leaves of [`Interface::leave_all`] are sent, on InfiniBand answered.
    pub(crate) fn all_left(&self) -> bool {
        match &self.link {
            Link::InfiniBand(link) => link.groups.all_left(),
            Link::Ethernet(link) => link.has_left(&self.frames),
        }
    }

    /// The groups of an InfiniBand port.
    pub(crate) fn groups(&mut self) -> Option<&mut Groups<'s>> {
        match &mut self.link {
            Link::InfiniBand(link) => Some(&mut link.groups),
            Link::Ethernet(_) => None,
        }
    }

    fn hardware_address(&self, info: &PortInfo) -> Option<HwAddr> {
        match &self.link {
            Link::InfiniBand(_) => infiniband::hardware_address(&self.frames, info),
            Link::Ethernet(_) => None,
        }
    }

    /// Follows a port that has moved, or a request to register again.
    pub(crate) fn refresh(&mut self, now: Instant, old: &PortInfo, new: &PortInfo) {
        match &mut self.link {
            Link::InfiniBand(link) => link.refresh(&mut self.frames, now, (old, new)),
            Link::Ethernet(link) => link.refresh(new),
        }
    }

    /// The next question for the subnet administrator.
    pub(crate) fn question(&mut self, now: Instant, info: &PortInfo) -> Option<Question> {
        let groups = self.groups()?;
        if info.active { groups.question(now, info.gid, info.pkey) } else { None }
    }

    /// Its answer.
    pub(crate) fn answer(&mut self, now: Instant, index: u32, result: Result<Response, QueryError>) {
        let record = result
            .and_then(|response| response.result)
            .and_then(|mad| McMemberRecord::from_slice(mad.record_data()).ok_or(QueryError::Mismatch));
        if let Some(groups) = self.groups() {
            groups.answer(now, index, record);
        }
    }

    /// Whether [`Interface::service`] has something to do.
    fn wants_service(&self) -> bool {
        match &self.link {
            Link::InfiniBand(link) => link.wants_service(&self.frames),
            Link::Ethernet(link) => link.wants_service(&self.frames),
        }
    }

    /// What takes the HCA's commands: the queue pair, and its groups.
    pub(crate) fn service<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        now: Instant,
        info: &PortInfo,
    ) {
        if now < self.retry_at || !self.wants_service() {
            return;
        }
        let Self { link, frames, .. } = self;
        let served = match link {
            Link::InfiniBand(link) => link.service(frames, hca, info.pkey_index),
            Link::Ethernet(link) => link.service(frames, hca),
        };
        if let Err(error) = served {
            self.setup_failures += 1;
            self.retry_at = now + RETRY;
            // A dead device is told of by other means; there is nobody to hear this one.
            let _ = error;
            return;
        }
        if let Link::InfiniBand(link) = link {
            link.announce(frames, now, (self.address, info));
        }
    }

    /// Takes what has arrived, answers ARP, runs its timers, sends what can be sent. Says when next.
    pub(crate) fn poll(&mut self, now: Instant, info: &PortInfo, paths: &mut Resolver<'_, '_>) -> Wake {
        let mut left = BATCH;
        let own = (info.lid, self.frames.qpn().unwrap_or_default());
        while left > 0
            && let Some(arrived) = self.frames.receive(own, self.packet)
        {
            left -= 1;
            self.frame_arrived(now, info, &arrived);
        }
        let mut wake = Wake::Idle;
        if self.is_up() {
            let Self { link, frames, address, .. } = self;
            wake = match link {
                Link::InfiniBand(link) => link.poll(frames, now, (*address, info)),
                Link::Ethernet(link) => {
                    link.announce(frames, now, info);
                    link.poll(frames, now, info)
                }
            };
        }
        self.dispatch(now, info, paths);
        if left == 0 {
            return Wake::Now;
        }
        if let Some(waiting) = self.frames.next_waiting(0) {
            wake = wake.earliest(Wake::At(waiting.deadline));
        }
        if self.wants_service() {
            wake = wake.earliest(Wake::At(self.retry_at));
        }
        self.groups().map_or(wake, |groups| wake.earliest(groups.poll_at()))
    }

    fn frame_arrived(&mut self, now: Instant, info: &PortInfo, arrived: &Arrived) {
        let Self { link, frames, packet, .. } = self;
        let payload = packet.get(..arrived.len).unwrap_or_default();
        let known = match link {
            Link::InfiniBand(link) => {
                arrived.ether_type == ETHERTYPE_ARP
                    && link.arrived(frames, now, (self.address, info), payload)
            }
            Link::Ethernet(link) => link.arrived(frames, now, info, (arrived, payload)),
        };
        self.other_protocol += u64::from(!known);
    }

    /// Sends every waiting frame whose way is known, drops those that have none.
    fn dispatch(&mut self, now: Instant, info: &PortInfo, paths: &mut Resolver<'_, '_>) {
        let mut from = 0;
        while let Some(waiting) = self.frames.next_waiting(from) {
            from = waiting.sequence + 1;
            match self.way(now, info, &waiting, paths) {
                Way::Known(way) => {
                    if !self.frames.post(waiting.slot, &way) {
                        // The queue is full: completions will make room.
                        return;
                    }
                }
                Way::Pending if now < waiting.deadline => {}
                Way::Pending | Way::None => {
                    self.unreachable += 1;
                    self.frames.drop_waiting(waiting.slot);
                }
            }
        }
    }

    fn way(&mut self, now: Instant, info: &PortInfo, waiting: &Waiting, paths: &mut Resolver<'_, '_>) -> Way {
        match &mut self.link {
            Link::InfiniBand(link) => link.way(now, info, &waiting.destination, paths),
            Link::Ethernet(link) => link.way(now, info, &waiting.destination),
        }
    }

    /// The GID at an IP address.
    pub(crate) fn resolve(&mut self, now: Instant, ip: Ipv4Addr) -> AddressResolution {
        if !self.is_up() {
            return AddressResolution::Pending;
        }
        match &mut self.link {
            Link::InfiniBand(link) => match link.neighbours.lookup(now, ip) {
                NeighbourLookup::Known(hw) => AddressResolution::Known(hw.gid),
                NeighbourLookup::Pending | NeighbourLookup::Full => AddressResolution::Pending,
                NeighbourLookup::Failed => AddressResolution::Failed,
            },
            Link::Ethernet(_) => AddressResolution::Known(gid_of_ipv4(ip)),
        }
    }

    /// On Ethernet the MAC address of the next hop to a GID. Starts a request if it is not resolved.
    pub(crate) fn mac(&mut self, now: Instant, info: &PortInfo, gid: Gid) -> NeighbourLookup<MacAddress> {
        let hop = match gid.ipv4().map(Ipv4Addr::from) {
            Some(ip) if self.has_ip() && !self.is_neighbour(ip) => match self.config.gateway {
                Some(gateway) => gid_of_ipv4(gateway),
                None => return NeighbourLookup::Failed,
            },
            _ => gid,
        };
        match &mut self.link {
            Link::InfiniBand(_) => NeighbourLookup::Failed,
            Link::Ethernet(link) => link.lookup(now, info, hop),
        }
    }

    /// Forgets the MAC address of a peer, because it did not lead there.
    pub(crate) fn forget(&mut self, gid: Gid) {
        if let Link::Ethernet(link) = &mut self.link {
            link.neighbours.forget(gid);
        }
    }

    fn is_subnet_broadcast(&self, ip: Ipv4Addr) -> bool {
        let hosts = u32::MAX.checked_shr(u32::from(self.config.prefix_len)).unwrap_or(0);
        ip.is_broadcast() || hosts > 1 && ip.to_bits() == self.address.to_bits() | hosts
    }

    fn is_neighbour(&self, ip: Ipv4Addr) -> bool {
        let hosts = u32::MAX.checked_shr(u32::from(self.config.prefix_len)).unwrap_or(0);
        ip.to_bits() & !hosts == self.address.to_bits() & !hosts
    }

    fn transmit(
        &mut self,
        now: Instant,
        info: &PortInfo,
        packet: &[u8],
        next_hop: Ipv4Addr,
    ) -> Result<(), IpError> {
        if packet.len() > usize::from(self.mtu(info)) {
            return Err(IpError::TooLong);
        }
        destination(packet).ok_or(IpError::Malformed)?;
        if !self.is_up() {
            return Err(IpError::Down);
        }
        if next_hop.is_unspecified() || next_hop == self.address || next_hop.is_loopback() {
            return Err(IpError::NoRoute);
        }
        let broadcast = self.is_subnet_broadcast(next_hop);
        let to = match &mut self.link {
            Link::InfiniBand(_) if broadcast => Destination::Group(broadcast_mgid(info.pkey)),
            Link::InfiniBand(link) if next_hop.is_multicast() => {
                let mgid = multicast_mgid(info.pkey, next_hop);
                if !link.groups.want(now, mgid, Kind::SendOnly) {
                    return Err(IpError::Full);
                }
                Destination::Group(mgid)
            }
            Link::Ethernet(_) if broadcast => Destination::Mac(MacAddress::BROADCAST),
            Link::Ethernet(_) if next_hop.is_multicast() => {
                Destination::Mac(group_mac(gid_of_ipv4(next_hop)))
            }
            link => {
                if link.is_unreachable(now, next_hop) {
                    return Err(IpError::Unreachable);
                }
                Destination::Ip(next_hop)
            }
        };
        if self.frames.waiting_for(&to) >= WAITING_EACH {
            return Err(IpError::Full);
        }
        let deadline = now + PATIENCE;
        if self.frames.enqueue(ETHERTYPE_IPV4, packet, to, deadline) { Ok(()) } else { Err(IpError::Full) }
    }

    /// Receives what is sent to a multicast group. False if there is no room.
    fn join(&mut self, now: Instant, info: &PortInfo, group: Ipv4Addr) -> bool {
        match &mut self.link {
            Link::InfiniBand(link) => link.groups.want(now, multicast_mgid(info.pkey, group), Kind::Member),
            Link::Ethernet(link) => link.groups.join(gid_of_ipv4(group)),
        }
    }

    /// Ends [`Interface::join`]. False if the group was not joined.
    fn leave(&mut self, info: &PortInfo, group: Ipv4Addr) -> bool {
        match &mut self.link {
            Link::InfiniBand(link) => link.groups.leave(multicast_mgid(info.pkey, group)),
            Link::Ethernet(link) => link.groups.leave(gid_of_ipv4(group)),
        }
    }

    pub(crate) fn frames(&mut self) -> &mut FrameQueue<'s, B> {
        &mut self.frames
    }

    pub(crate) fn frames_ref(&self) -> &FrameQueue<'s, B> {
        &self.frames
    }
}

impl Link<'_> {
    /// Returns whether an address has failed. Starts a request if it is not resolved.
    fn is_unreachable(&mut self, now: Instant, ip: Ipv4Addr) -> bool {
        match self {
            Self::InfiniBand(link) => link.neighbours.lookup(now, ip) == NeighbourLookup::Failed,
            Self::Ethernet(link) => link.neighbours.lookup(now, gid_of_ipv4(ip)) == NeighbourLookup::Failed,
        }
    }
}

/// The destination of an IPv4 packet; `None` if it is none.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let whole = header[0] >> 4 == 4 && (20..=packet.len()).contains(&total);
    whole.then(|| Ipv4Addr::new(header[16], header[17], header[18], header[19]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ipv4_packets_have_a_destination() {
        let mut packet = [0u8; 28];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[16..20].copy_from_slice(&[10, 0, 0, 7]);
        assert_eq!(destination(&packet), Some(Ipv4Addr::new(10, 0, 0, 7)));
        // Padding behind the packet is no harm, a missing piece is.
        assert_eq!(destination(&packet[..27]), None);
        packet[3] = 20;
        assert!(destination(&packet).is_some());
        packet[3] = 19;
        assert_eq!(destination(&packet), None);
        packet[3] = 28;
        packet[0] = 0x65;
        assert_eq!(destination(&packet), None);
        assert_eq!(destination(&packet[..19]), None);
    }
}
