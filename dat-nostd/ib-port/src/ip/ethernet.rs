//! The MAC addresses of peers on an Ethernet port, by ARP and IPv6 neighbour discovery, for RoCE as for IP.

use core::net::Ipv4Addr;
use driver_mlx::{Bar, Error, Hca, MacAddress, Platform};
use ib_mgmt::ethernet::{ALL_NODES, Message, Sender, group_mac, parse, solicited_node};
use ib_mgmt::ipoib::{ETHERTYPE_IPV4, NeighbourAction, NeighbourLookup, Neighbours};
use ib_mgmt::membership::{ALL_HOSTS, IGMP, Query};
use ib_types::{Duration, Gid, Instant, Wake};

use super::membership::{Attachment, MemberSlot, Memberships};
use super::way::{BATCH, PATIENCE, Way};
use crate::frames::{Arrived, Destination, FrameQp, FrameQueue, FrameWay, PROTOCOL_AT, REPORTS};
use crate::info::PortInfo;

/// Distance of attempts to send a report without room in the queue.
const NO_ROOM: Duration = Duration::from_millis(100);

/// State of IP and RoCE on an Ethernet link.
#[derive(Debug)]
pub(crate) struct Ethernet<'s> {
    pub(super) neighbours: Neighbours<'s, Gid, MacAddress>,
    pub(super) groups: Memberships<'s>,
    pub(super) announced: bool,
}

/// The own MAC address; zero on InfiniBand.
fn own_mac(info: &PortInfo) -> MacAddress {
    info.ethernet.map_or(MacAddress::default(), |link| link.mac)
}

/// The own addresses.
fn own_gids(info: &PortInfo) -> ([Gid; 2], usize) {
    let other = info.address.map(|(gid, _)| gid);
    ([info.gid, other.unwrap_or(info.gid)], if other.is_some() { 2 } else { 1 })
}

impl<'s> Ethernet<'s> {
    pub(super) fn new(
        neighbours: Neighbours<'s, Gid, MacAddress>,
        members: &'s mut [MemberSlot],
        info: &PortInfo,
    ) -> Self {
        let groups = Memberships::new(members, own_mac(info));
        let mut ethernet = Self { neighbours, groups, announced: false };
        ethernet.want_own(info);
        ethernet
    }

    /// Joins the groups in which others look for the own addresses.
    fn want_own(&mut self, info: &PortInfo) {
        let (own, count) = own_gids(info);
        for gid in own.into_iter().take(count) {
            let group = if gid.ipv4().is_some() { ALL_HOSTS } else { solicited_node(gid) };
            self.groups.join(group);
        }
        self.groups.join(ALL_NODES);
    }

    /// The link has come up, or the port has other addresses.
    pub(super) fn refresh(&mut self, new: &PortInfo) {
        self.neighbours.doubt_all();
        self.announced = false;
        self.want_own(new);
        self.groups.report_all();
    }

    pub(super) fn wants_service<B: Bar>(&self, frames: &FrameQueue<'_, B>) -> bool {
        !frames.is_at_work() || self.groups.wants_service()
    }

    /// Makes the queue pair, joins and leaves groups.
    pub(super) fn service<P: Platform>(
        &mut self,
        frames: &mut FrameQueue<'_, P::Bar>,
        hca: &mut Hca<'_, P>,
    ) -> Result<(), Error> {
        if !frames.is_at_work() {
            frames.make_qp(hca, FrameQp::RawPacket)?;
        }
        while let Some((index, attachment)) = self.groups.attachment() {
            match attachment {
                Attachment::Join(mac) => _ = hca.join_ethernet_group(mac)?,
                Attachment::Leave(mac) if self.groups.is_shared(index, mac) => {}
                Attachment::Leave(mac) => _ = hca.leave_ethernet_group(mac)?,
            }
            self.groups.set_attached(index);
        }
        Ok(())
    }

    /// Announces the own IPv4 address (RFC 5227, section 3), unless it was announced.
    pub(super) fn announce<B: Bar>(&mut self, frames: &mut FrameQueue<'_, B>, now: Instant, info: &PortInfo) {
        if self.announced || !info.active {
            return;
        }
        self.announced = true;
        if let Some((own, _)) = info.address.filter(|(own, _)| own.ipv4().is_some()) {
            ask(frames, now, info, own, None);
        }
    }

    /// Returns whether no report is left to be sent.
    pub(super) fn has_left<B: Bar>(&self, frames: &FrameQueue<'_, B>) -> bool {
        !REPORTS || self.groups.report_at() == Wake::Idle && !frames.is_sending()
    }

    /// Sends the reports of groups that are due. Says when next.
    fn report<B: Bar>(&mut self, frames: &mut FrameQueue<'_, B>, now: Instant, info: &PortInfo) -> Wake {
        while self.groups.report_at().is_due(now) {
            if frames.room() == 0 {
                return Wake::At(now + NO_ROOM);
            }
            let ipv4 = info.address.map(|(own, _)| own).filter(|own| own.ipv4().is_some());
            if let Some(report) = self.groups.due(now, [ipv4.unwrap_or(Gid::ZERO), info.gid]) {
                let to = Destination::Mac(group_mac(report.to));
                frames.enqueue(report.ether_type, report.as_bytes(), to, now + PATIENCE);
            }
        }
        self.groups.report_at()
    }

    /// Runs the timers of neighbours, and of groups. Says when next.
    pub(super) fn poll<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        info: &PortInfo,
    ) -> Wake {
        let wake = if REPORTS && info.active { self.report(frames, now, info) } else { Wake::Idle };
        for _ in 0..BATCH {
            match self.neighbours.poll(now) {
                NeighbourAction::Request { ip, to } => ask(frames, now, info, ip, to),
                NeighbourAction::Idle(next) => return wake.earliest(next),
            }
        }
        wake
    }

    /// Takes a message of ARP or neighbour discovery, and answers it; and a query for groups. Returns false for other
    /// messages.
    pub(super) fn arrived<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        info: &PortInfo,
        (arrived, payload): (&Arrived, &[u8]),
    ) -> bool {
        let Some(claim) = parse(arrived.ether_type, arrived.from, payload) else {
            let query = if REPORTS { Query::parse(arrived.ether_type, payload) } else { None };
            if let Some(query) = &query {
                self.groups.queried(now, query);
            }
            // Reports of other hosts are of no interest.
            return query.is_some()
                || arrived.ether_type == ETHERTYPE_IPV4 && payload.get(PROTOCOL_AT) == Some(&IGMP);
        };
        let ((own, count), mac) = (own_gids(info), own_mac(info));
        let own = own.get(..count).unwrap_or_default();
        if self.neighbours.claimed(now, &claim, own, &mac) {
            let reply = Message::reply(Sender { address: claim.target, mac }, &claim);
            let is_probe = claim.sender.is_zero() && claim.target.ipv4().is_none();
            let to = if is_probe { group_mac(ALL_NODES) } else { claim.sender_hw };
            frames.enqueue(reply.ether_type(), reply.as_bytes(), Destination::Mac(to), now + PATIENCE);
        }
        true
    }

    /// The MAC address of the next hop to an address. Starts a request if it is not resolved.
    pub(super) fn lookup(&mut self, now: Instant, info: &PortInfo, gid: Gid) -> NeighbourLookup<MacAddress> {
        let (own, _) = own_gids(info);
        if own.contains(&gid) {
            return NeighbourLookup::Known(own_mac(info));
        }
        // RoCE ports have the address of their MAC address in any case.
        match gid.link_local_mac() {
            Some(mac) => NeighbourLookup::Known(mac),
            None if gid.is_multicast() || gid.is_ipv4_multicast() || gid.is_zero() => NeighbourLookup::Failed,
            None => self.neighbours.lookup(now, gid),
        }
    }

    /// The way to a destination.
    pub(super) fn way(&mut self, now: Instant, info: &PortInfo, destination: &Destination) -> Way {
        let to = match *destination {
            Destination::Mac(mac) => mac,
            Destination::Ip(ip) => match self.neighbours.lookup(now, gid_of_ipv4(ip)) {
                NeighbourLookup::Known(mac) => mac,
                NeighbourLookup::Pending | NeighbourLookup::Full => return Way::Pending,
                NeighbourLookup::Failed => return Way::None,
            },
            Destination::Group(_) | Destination::Hardware(_) => return Way::None,
        };
        Way::Known(FrameWay::Ethernet { to, from: own_mac(info) })
    }
}

pub(super) fn gid_of_ipv4(ip: Ipv4Addr) -> Gid {
    Gid::from_ipv4(ip.octets())
}

/// Requests the MAC address of `target`: from the neighbour only, or from everybody.
fn ask<B: Bar>(
    frames: &mut FrameQueue<'_, B>,
    now: Instant,
    info: &PortInfo,
    target: Gid,
    to: Option<MacAddress>,
) {
    let own = Sender { address: info.source_gid(target), mac: own_mac(info) };
    let message = Message::request(own, target);
    let everybody =
        if target.ipv4().is_some() { MacAddress::BROADCAST } else { group_mac(solicited_node(target)) };
    let destination = Destination::Mac(to.unwrap_or(everybody));
    // Without room it is lost as if on the wire: the asker repeats.
    frames.enqueue(message.ether_type(), message.as_bytes(), destination, now + PATIENCE);
}
