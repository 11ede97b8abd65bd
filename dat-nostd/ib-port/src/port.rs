//! The port: dispatch of datagrams by class, port state, timers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use ib_types::{Duration, Instant, Wake};

use crate::gsi::{Gsi, GsiCounters};
use crate::held::Held;
use crate::info::{HOP_LIMIT, Place, PortInfo, read_info};
use crate::inform::Subscriptions;
use crate::ip::{AddressResolution, Interface, Ip, IpConfig, IpCounters};
use crate::path::{PathCache, Resolution, Resolver, driver_path, local_path};
use crate::queue::Buffers;
use crate::storage::PortParts;
use driver_mlx::{
    Bar, CqNumber, Error, Gid, Grh, Hca, MacAddress, Mtu, Path, Platform, PortType, QpNumber, ServiceLevel,
    VlanId,
};
use ib_mgmt::cm::{Cm, CmConfig};
use ib_mgmt::ipoib::NeighbourLookup;
use ib_mgmt::mad::{GrhAddress, Mad, MadAddress, attr, class, method};
use ib_mgmt::sa::PathRecord;
use ib_mgmt::sa::{Action, Client, ClientConfig, ClientCounters, QueryError, Response};

/// Owner cookie bits of questions about multicast groups, and of subscriptions; all others are about paths.
const GROUP_QUERY: u32 = 1 << 31;
const SUBSCRIPTION: u32 = 1 << 30;
/// Longest wait for groups to be left when a port is closed, and its steps.
const LEAVE_LIMIT: Duration = Duration::from_millis(2500);
const LEAVE_STEP: Duration = Duration::from_micros(50);
/// Interface ID of the GID that leads to the subnet administrator wherever it is (IBTA 1.3, 4.1.1; Linux's IB_SA_WELL_KNOWN_GUID).
const SA_WELL_KNOWN_GUID: u64 = 0x0200_0000_0000_0002;
/// Datagrams handled in one call of [`Port::poll`].
const BATCH: usize = 64;

/// What the owner of a port chooses.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Makes communication and transaction ids differ from those of earlier lives of the node.
    pub seed: u64,
    /// Questions to the subnet administrator.
    pub sa: ClientConfig,
    /// IP: the own address, and how packets use it; `None` for none.
    pub ip: Option<(Ipv4Addr, IpConfig)>,
    /// The own address, by which peers reach an Ethernet port with RoCE; that of `ip` by default. The
    /// link-local one of its MAC address is there in any case.
    pub address: Option<IpAddr>,
    /// VLAN of an Ethernet port: all its frames have the tag, those of others are dropped. `None` for
    /// frames without a tag.
    pub vlan: Option<VlanId>,
}

impl PortConfig {
    /// The address that peers use, and its VLAN.
    fn place(&self) -> Place {
        (self.address.or(self.ip.map(|(address, _)| IpAddr::V4(address))), self.vlan)
    }
}

/// What went by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// QP1.
    pub gsi: GsiCounters,
    /// Subnet administration.
    pub sa: ClientCounters,
    /// Received datagrams of other management classes; they are not answered.
    pub other_class: u64,
    /// Port events seen.
    pub events: u64,
    /// Changes of LID, GID or subnet manager, each of which makes all paths unknown.
    pub moves: u64,
    /// Ports of the subnet that came into service or went out of it: their paths became unknown.
    pub reports: u64,
    /// IP; all zero without it.
    pub ip: IpCounters,
    /// Datagrams whose sender's MAC address was not found.
    pub unreachable: u64,
}

/// A port in operation.
#[derive(Debug)]
pub struct Port<'s, B: Bar> {
    gsi: Gsi<B>,
    sa: Client<'s>,
    cm: Cm<'s>,
    paths: PathCache<'s>,
    subscriptions: Subscriptions,
    ip: Option<Interface<'s, B>>,
    place: Place,
    held: Held,
    info: PortInfo,
    other_class: u64,
    events: u64,
    moves: u64,
    unreachable: u64,
}

impl<'s, B: Bar> Port<'s, B> {
    /// Starts QP1 of port 1. The port need not be active yet.
    ///
    /// # Errors
    /// The driver's; what was begun is undone.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub fn open<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        parts: PortParts<'s>,
        config: &PortConfig,
    ) -> Result<Self, Error> {
        let place = config.place();
        let info = read_info(hca, place)?;
        let gsi = Gsi::open(hca, &info)?;
        // An Ethernet port finds its peers by frames.
        let finds_peers = info.port_type == PortType::Ethernet && hca.caps().raw_packet;
        let ip = if finds_peers || config.ip.is_some() && info.port_type == PortType::InfiniBand {
            match Interface::open(hca, parts.ip, config.ip, &info) {
                Ok(mut interface) => {
                    // On Ethernet at once, so that the port is complete when it is open.
                    interface.service(hca, hca.now(), &info);
                    Some(interface)
                }
                Err(error) => {
                    // Return the first error.
                    let _ = gsi.close(hca);
                    return Err(error);
                }
            }
        } else {
            None
        };
        let cm_config = cm_config(hca, &info, config.seed);
        Ok(Self {
            gsi,
            sa: Client::new(parts.queries, config.sa, config.seed),
            cm: Cm::new(parts.connections, parts.ended, parts.listeners, cm_config),
            paths: PathCache::new(parts.paths),
            subscriptions: Subscriptions::new(),
            ip,
            place,
            held: Held::new(),
            info,
            other_class: 0,
            events: 0,
            moves: 0,
            unreachable: 0,
        })
    }

    /// Begins again after a recovery of the HCA ([`Hca::recover`]), which has lost all that the port had there. Connections, questions,
    /// services listened to and paths are forgotten; multicast groups are entered again. `seed` is another one than before.
    ///
    /// # Errors
    /// The driver's; the port is then of no use, and may be tried again.
    pub fn reopen<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>, seed: u64) -> Result<(), Error> {
        let info = read_info(hca, self.place)?;
        let counters = self.gsi.counters;
        core::mem::replace(&mut self.gsi, Gsi::open(hca, &info)?).close(hca)?;
        self.gsi.counters = counters;
        if let Some(ip) = &mut self.ip {
            ip.reopen(hca)?;
        }
        self.sa.restart(seed);
        self.cm.restart(cm_config(hca, &info, seed));
        self.paths.restart();
        self.subscriptions.restart();
        self.held = Held::new();
        self.info = info;
        Ok(())
    }

    /// Leaves all multicast groups, then destroys QP1 and what belongs to it. Waits up to 2.5 s for the subnet
    /// administrator if it does not answer, or for the frames that say so on Ethernet.
    ///
    /// # Errors
    /// The driver's first; the rest is done all the same.
    pub fn close<P: Platform<Bar = B>>(mut self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        if hca.fatal().is_none() && self.info.active {
            self.leave_groups(hca);
        }
        let ip = self.ip.take().map_or(Ok(()), |ip| ip.close(hca));
        let gsi = self.gsi.close(hca);
        ip.and(gsi)
    }

    fn leave_groups<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>) {
        if let Some(ip) = &mut self.ip {
            ip.leave_all();
        }
        let mut now = hca.now();
        let end = now + LEAVE_LIMIT;
        while now < end && self.ip.as_ref().is_some_and(|ip| !ip.all_left()) {
            self.service(hca, now);
            let _ = self.poll(now);
            hca.idle(now + LEAVE_STEP);
            now = hca.now();
        }
    }

    /// How the port stands.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The connection manager: connect, listen, take its events.
    pub fn cm(&mut self) -> &mut Cm<'s> {
        &mut self.cm
    }

    /// The connection manager, to look at.
    pub fn cm_ref(&self) -> &Cm<'s> {
        &self.cm
    }

    /// Counters since the start.
    pub fn counters(&self) -> PortCounters {
        PortCounters {
            gsi: self.gsi.counters,
            sa: self.sa.counters(),
            other_class: self.other_class,
            events: self.events,
            moves: self.moves,
            reports: self.subscriptions.reports,
            ip: self.ip.as_ref().map_or_else(IpCounters::default, Interface::counters),
            unreachable: self.unreachable,
        }
    }

    /// A port event arrived: reads everything again. Paths are forgotten if the port or the subnet manager moved, or the
    /// subnet manager asks for it (`reregister`).
    ///
    /// # Errors
    /// The driver's; the old state stays.
    pub fn refresh<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        reregister: bool,
    ) -> Result<(), Error> {
        self.events += 1;
        let info = read_info(hca, self.place)?;
        let moved = (info.lid, info.sm_lid, info.gid, info.partitions)
            != (self.info.lid, self.info.sm_lid, self.info.gid, self.info.partitions);
        if moved || reregister || info.active && !self.info.active {
            self.moves += u64::from(moved || reregister);
            self.paths.clear();
            self.subscriptions.renew();
            let now = hca.now();
            if let Some(ip) = &mut self.ip {
                ip.refresh(now, &self.info, &info);
            }
        }
        self.cm.set_port(info.gid, info.mtu.code(), info.route());
        self.cm.set_other_gid(info.address.map_or(Gid::ZERO, |(gid, _)| gid));
        self.gsi.set_port(&info);
        self.info = info;
        Ok(())
    }

    /// The path to a port, or the way there: the subnet administrator is asked if need be, on Ethernet its neighbours by ARP
    /// or neighbour discovery.
    pub fn resolve(&mut self, now: Instant, dgid: Gid) -> Resolution {
        if self.info.port_type == PortType::Ethernet {
            return match self.mac(now, dgid) {
                NeighbourLookup::Known(_) => Resolution::Known(local_path(&self.info, dgid)),
                NeighbourLookup::Pending | NeighbourLookup::Full => Resolution::Pending,
                NeighbourLookup::Failed => Resolution::Failed(QueryError::Timeout),
            };
        }
        let mut resolver = Resolver { paths: &mut self.paths, sa: &mut self.sa };
        resolver.resolve(now, &self.info, dgid)
    }

    /// The MAC address of the next hop to a GID of another Ethernet port.
    fn mac(&mut self, now: Instant, gid: Gid) -> NeighbourLookup<MacAddress> {
        match &mut self.ip {
            Some(ip) => ip.mac(now, &self.info, gid),
            None => gid.link_local_mac().map_or(NeighbourLookup::Failed, NeighbourLookup::Known),
        }
    }

    /// Returns a path in the driver's form, with another service level or traffic class if given. On Ethernet the low bits
    /// of the service level are the priority. `None` there if the path's source is not an address of this port, or the MAC
    /// address of its destination is no longer stored: [`Port::resolve`] finds it.
    pub fn driver_path(
        &mut self,
        now: Instant,
        path: &PathRecord,
        sl: Option<ServiceLevel>,
        traffic_class: u8,
    ) -> Option<Path> {
        let mac = match self.info.port_type {
            PortType::InfiniBand => None,
            PortType::Ethernet => known(self.mac(now, path.dgid())),
        };
        driver_path(&self.info, path, sl, traffic_class, mac)
    }

    /// Sends a datagram to QP1, or `to.qpn`, of another port.
    fn send(&mut self, now: Instant, mad: &Mad, to: &MadAddress) {
        let path = self.path_to(now, to);
        self.gsi.send(mad, to.qpn, path);
    }

    /// The path to the other end of a datagram.
    fn path_to(&mut self, now: Instant, to: &MadAddress) -> Option<Path> {
        let route = |grh: GrhAddress, source_gid_index| Grh {
            dgid: grh.remote_gid,
            source_gid_index,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        };
        match self.info.port_type {
            PortType::InfiniBand => Some(Path::InfiniBand {
                dlid: to.lid,
                sl: to.sl,
                src_path_bits: to.path_bits,
                static_rate: 0,
                grh: to.grh.map(|grh| route(grh, self.info.gid_index)),
            }),
            PortType::Ethernet => {
                let grh = to.grh?;
                let index = self.info.gid_index_of(grh.local_gid)?;
                let dmac = known(self.mac(now, grh.remote_gid))?;
                Some(Path::Roce { dmac, priority: to.sl.get() & 7, grh: route(grh, index) })
            }
        }
    }

    /// The GID of the port that has an IP address: asked for by ARP if need be, failed without IP on this port. On Ethernet
    /// they are the same.
    pub fn resolve_address(&mut self, now: Instant, address: Ipv4Addr) -> AddressResolution {
        if self.info.port_type == PortType::Ethernet {
            return AddressResolution::Known(Gid::from_ipv4(address.octets()));
        }
        self.ip.as_mut().map_or(AddressResolution::Failed, |ip| ip.resolve(now, address))
    }

    /// The GID of the port that has an IPv6 address. On Ethernet they are the same; on InfiniBand
    /// IPv6 is not resolved.
    pub fn resolve_ipv6(&self, address: Ipv6Addr) -> AddressResolution {
        match self.info.port_type {
            PortType::Ethernet => AddressResolution::Known(Gid(address.octets())),
            PortType::InfiniBand => AddressResolution::Failed,
        }
    }

    /// Packets in and out; `None` without IP on this port.
    pub fn ip(&mut self, now: Instant) -> Option<Ip<'_, 's, B>> {
        let Self { ip, paths, sa, info, .. } = self;
        let interface = ip.as_mut().filter(|ip| ip.has_ip())?;
        Some(Ip { interface, info, paths: Resolver { paths, sa }, now })
    }

    /// Does the work that needs HCA commands: QP1 if it has failed, the queue pair of IP, and its
    /// groups. To be called after each [`Port::poll`].
    pub fn service<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>, now: Instant) {
        self.gsi.service(hca, now);
        if let Some(ip) = &mut self.ip {
            ip.service(hca, now, &self.info);
        }
    }

    /// The device gave a queue of the raw-packet queue pair up.
    pub fn raw_packet_failed(&mut self) {
        if let Some(ip) = self.ip.as_mut().filter(|_| self.info.port_type == PortType::Ethernet) {
            ip.frames().set_broken();
        }
    }

    /// The device gave a queue pair up; true if it was one of the port's.
    pub fn qp_failed(&mut self, qpn: QpNumber) -> bool {
        if self.gsi.qp_failed(qpn) {
            return true;
        }
        let ours = self.ip.as_mut().filter(|ip| ip.frames_ref().qpn() == Some(qpn));
        ours.map(|ip| ip.frames().set_broken()).is_some()
    }

    /// Forgets the path to a port, because it did not lead there.
    pub fn forget_path(&mut self, dgid: Gid) {
        self.paths.forget(dgid);
        if let Some(ip) = &mut self.ip {
            ip.forget(dgid);
        }
    }

    /// A peer rejected what came along this path, so it may lead to another port than the one meant. Forgets the path and returns
    /// true, unless the subnet administrator named it a moment ago.
    pub fn doubt_path(&mut self, now: Instant, dgid: Gid) -> bool {
        self.paths.doubt(now, dgid)
    }

    /// Takes what has arrived, runs the timers, sends what is due. Says when it wants to be
    /// called next.
    pub fn poll(&mut self, now: Instant) -> Wake {
        let mut left = BATCH;
        while left > 0
            && let Some((mad, from)) = self.gsi.receive()
        {
            left -= 1;
            if self.is_reachable(now, &from) {
                self.datagram_arrived(now, &mad, &from);
            } else {
                // Replies need the sender's MAC address, which completions lack.
                self.unreachable += u64::from(self.held.add(mad, from));
            }
        }
        self.subscribe(now);
        let mut wake = self.poll_ip(now);
        self.release_held(now);
        wake = wake.earliest(self.gsi.service_at()).earliest(self.subscription_due());
        for _ in 0..BATCH {
            let action = self.sa.poll(now);
            if let Action::Idle(sa) = action {
                wake = wake.earliest(sa);
                break;
            }
            self.carry_out(now, &action);
        }
        for _ in 0..BATCH {
            let Some(outgoing) = self.cm.dispatch(now) else { break };
            self.send(now, &outgoing.mad, &outgoing.dest);
        }
        if left == 0 { Wake::Now } else { wake.earliest(self.cm.poll_at()) }
    }

    /// Returns whether a reply to a datagram could be sent now.
    fn is_reachable(&mut self, now: Instant, from: &MadAddress) -> bool {
        match (self.info.port_type, from.grh) {
            (PortType::Ethernet, Some(grh)) => known(self.mac(now, grh.remote_gid)).is_some(),
            _ => true,
        }
    }

    /// Takes the datagrams whose senders have been found, and drops those whose senders were not.
    fn release_held(&mut self, now: Instant) {
        for _ in 0..self.held.len() {
            let Some((mad, from)) = self.held.take() else { return };
            let sender = from.grh.map(|grh| grh.remote_gid).unwrap_or_default();
            match self.mac(now, sender) {
                NeighbourLookup::Known(_) => self.datagram_arrived(now, &mad, &from),
                NeighbourLookup::Failed => self.unreachable += 1,
                NeighbourLookup::Pending | NeighbourLookup::Full => {
                    self.unreachable += u64::from(self.held.add(mad, from));
                }
            }
        }
    }

    fn datagram_arrived(&mut self, now: Instant, mad: &Mad, from: &MadAddress) {
        match mad.mgmt_class() {
            class::CM => self.cm.process(now, from, mad),
            class::SUBN_ADM if mad.is_response() => {
                if let Some(response) = self.sa.input(mad) {
                    self.administrator_answered(now, response.owner, Ok(response));
                }
            }
            class::SUBN_ADM if mad.method() == method::REPORT && from.lid == self.info.sm_lid => {
                self.reported(now, mad, from);
            }
            _ => self.other_class += 1,
        }
    }

    /// What the client of the subnet administrator wants done.
    // Seldom, and large: apart, so that a poll that finds nothing to do takes no notice of it.
    #[inline(never)]
    fn carry_out(&mut self, now: Instant, action: &Action) {
        match *action {
            Action::Send { ref mad, .. } => {
                let to = MadAddress {
                    lid: self.info.sm_lid,
                    qpn: QpNumber::GSI,
                    sl: self.info.sm_sl,
                    path_bits: 0,
                    pkey: self.info.pkey,
                    grh: self.info.grh_required.then(|| self.route_to_administrator()),
                };
                self.send(now, mad, &to);
            }
            Action::Failed { owner, error, .. } => self.administrator_answered(now, owner, Err(error)),
            Action::Idle(_) => {}
        }
    }

    /// The subnet administrator by its well-known GID, for ports that need one.
    fn route_to_administrator(&self) -> GrhAddress {
        GrhAddress {
            local_gid: self.info.gid,
            remote_gid: Gid::new(self.info.gid.prefix(), SA_WELL_KNOWN_GUID),
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
        }
    }

    /// Hands the outcome of a query to its owner.
    fn administrator_answered(&mut self, now: Instant, owner: u32, result: Result<Response, QueryError>) {
        if owner & GROUP_QUERY != 0 {
            if let Some(ip) = &mut self.ip {
                ip.answer(now, owner & !GROUP_QUERY, result);
            }
        } else if owner & SUBSCRIPTION != 0 {
            let result = result.and_then(|response| response.result);
            self.subscriptions.answer(now, owner & !SUBSCRIPTION, result);
        } else {
            let routed = self.info.grh_required;
            let path = result.and_then(|response| response.path()).and_then(check_path);
            let path = path.map(|path| if routed { with_route(path) } else { path });
            self.paths.answer(now, owner, path);
        }
    }

    /// Returns whether the subnet administrator's notices can reach this port: they carry no route.
    fn can_subscribe(&self) -> bool {
        self.info.active && !self.info.grh_required
    }

    /// Subscribes to ports that come and go.
    fn subscribe(&mut self, now: Instant) {
        if !self.can_subscribe() {
            return;
        }
        while let Some((index, info)) = self.subscriptions.question(now) {
            let owner = SUBSCRIPTION | index;
            let (attribute, record) = (attr::INFORM_INFO, info.as_bytes());
            if self.sa.query(now, method::SET, attribute, 0, record, owner).is_err() {
                self.subscriptions.unask(now, index);
            }
        }
    }

    fn subscription_due(&self) -> Wake {
        if self.can_subscribe() { self.subscriptions.poll_at() } else { Wake::Idle }
    }

    /// The subnet administrator reports a port that came or went: the stored path to it may be
    /// wrong by now.
    fn reported(&mut self, now: Instant, report: &Mad, from: &MadAddress) {
        if let Some(gid) = self.subscriptions.reported(report) {
            self.paths.forget(gid);
        }
        // Also for other notices, or it would be repeated.
        self.send(now, &report.to_response(0), from);
    }

    /// Frames in and out, and questions about groups.
    fn poll_ip(&mut self, now: Instant) -> Wake {
        let Self { ip, paths, sa, info, .. } = self;
        let Some(ip) = ip else { return Wake::Idle };
        let wake = ip.poll(now, info, &mut Resolver { paths, sa });
        while let Some(question) = ip.question(now, info) {
            let owner = GROUP_QUERY | question.index;
            let record = question.record.as_bytes();
            let attribute = attr::MC_MEMBER_RECORD;
            if sa.query(now, question.method, attribute, question.mask, record, owner).is_err() {
                if let Some(groups) = ip.groups() {
                    groups.unask(now, &question);
                }
                break;
            }
        }
        ip.groups().map_or(wake, |groups| wake.earliest(groups.poll_at()))
    }

    /// A completion event arrived; true if it was of a CQ of this port.
    pub fn notified(&mut self, number: CqNumber) -> bool {
        let ip = self.ip.as_mut().map(|ip| ip.frames().queue());
        let mut queues = [Some(self.gsi.queue()), ip].into_iter().flatten();
        queues.find(|queue| queue.cq_number() == number).map(Buffers::notified).is_some()
    }

    /// Asks for an interrupt at the next datagram. Poll once more afterwards.
    pub fn arm(&mut self) {
        self.gsi.queue().arm();
        if let Some(ip) = &mut self.ip {
            ip.frames().queue().arm();
        }
    }

    /// Whether a datagram waits to be taken.
    pub fn has_work(&self) -> bool {
        self.gsi.has_work() || self.ip.as_ref().is_some_and(|ip| ip.frames_ref().has_work())
    }

    /// Whether IP packets have arrived since the last call.
    pub fn take_ip_news(&mut self) -> bool {
        self.ip.as_mut().is_some_and(|ip| ip.frames().take_news())
    }
}

fn cm_config<P: Platform>(hca: &Hca<'_, P>, info: &PortInfo, seed: u64) -> CmConfig {
    let ca_ack_delay = hca.caps().local_ca_ack_delay.min(31);
    CmConfig {
        ca_ack_delay,
        route: info.route(),
        gid: info.gid,
        other_gid: info.address.map_or(Gid::ZERO, |(gid, _)| gid),
        mtu: info.mtu.code(),
        ..CmConfig::new(info.node_guid, seed)
    }
}

fn known(found: NeighbourLookup<MacAddress>) -> Option<MacAddress> {
    match found {
        NeighbourLookup::Known(mac) => Some(mac),
        NeighbourLookup::Pending | NeighbourLookup::Failed | NeighbourLookup::Full => None,
    }
}

/// A path of a port that needs a route though the administrator names none.
fn with_route(mut path: PathRecord) -> PathRecord {
    if !path.is_routed() {
        path.set_hop_limit(HOP_LIMIT);
    }
    path
}

/// An answer that leads nowhere is refused: LID 0, a multicast LID, or no MTU.
fn check_path(path: PathRecord) -> Result<PathRecord, QueryError> {
    let usable = path.dlid().is_unicast() && Mtu::from_code(path.mtu()).is_some();
    if usable { Ok(path) } else { Err(QueryError::Mismatch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver_mlx::Lid;

    #[test]
    fn paths_that_lead_nowhere_are_refused() {
        let path = |dlid, mtu| *PathRecord::zeroed().set_dlid(Lid::new(dlid)).set_mtu(mtu);
        assert_eq!(check_path(path(3, 5)), Ok(path(3, 5)));
        for bad in [path(0, 5), path(0xc000, 5), path(3, 0), path(3, 6)] {
            assert_eq!(check_path(bad), Err(QueryError::Mismatch));
        }
    }
}
