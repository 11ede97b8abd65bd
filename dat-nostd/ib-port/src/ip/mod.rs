//! IPv4 over InfiniBand, datagram mode (RFC 4391, RFC 4392): packets in and out, ARP, neighbours, the broadcast group.
//!
//! A packet to a neighbour that is not known yet waits in its send buffer until ARP has found the hardware address and the
//! subnet administrator the path; nothing is lost by being first.

mod config;
mod handle;

use core::net::Ipv4Addr;
use ib_types::{Duration, Instant, Mtu, PKey, ServiceLevel, Wake};

use driver_mlx::{Bar, Error, Grh, Hca, Platform, QpNumber};
use ib_mgmt::ipoib::{
    Arp, ArpOperation, ENCAP_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, HwAddr, NeighbourAction, NeighbourLookup,
    Neighbours, broadcast_mgid, multicast_mgid,
};
use ib_mgmt::sa::{McMemberRecord, QueryError, Response};

use crate::group::{Attachment, Groups, Kind, Question};
use crate::info::PortInfo;
use crate::ipoib::{Destination, FRAME_LEN, FrameQueue, Waiting};
use crate::path::driver_path;
use crate::path::{Resolution, Resolver};
use crate::storage::IpParts;

pub use config::{AddressResolution, IpConfig, IpCounters, IpError};
pub use handle::Ip;

/// Packets that may wait for one neighbour.
const WAITING_EACH: usize = 16;
/// The longest that a packet waits for its neighbour, nanoseconds: ARP and the path have their own, shorter limits.
const PATIENCE: Duration = Duration::from_secs(10);
/// Distance of attempts to make the queue pair or to attach a group, nanoseconds.
const RETRY: Duration = Duration::from_secs(1);
/// MTU before the broadcast group tells it.
const USUAL_MTU: u16 = 2044;
/// Frames handled in one call.
const BATCH: usize = 64;

/// IP on a port.
#[derive(Debug)]
pub(crate) struct Interface<'s, B: Bar> {
    address: Ipv4Addr,
    config: IpConfig,
    frames: FrameQueue<'s, B>,
    neighbours: Neighbours<'s>,
    pub(crate) groups: Groups<'s>,
    packet: &'s mut [u8; FRAME_LEN],
    /// The hardware address this port has announced.
    announced: Option<HwAddr>,
    retry_at: Instant,
    other_protocol: u64,
    unreachable: u64,
    setup_failures: u64,
}

impl<'s, B: Bar> Interface<'s, B> {
    pub(crate) fn open<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        parts: IpParts<'s>,
        address: Ipv4Addr,
        config: IpConfig,
        pkey: PKey,
    ) -> Result<Self, Error> {
        if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            return Err(Error::InvalidArgument("IP address"));
        }
        if config.prefix_len > 32 {
            return Err(Error::InvalidArgument("IP prefix length"));
        }
        let frames = FrameQueue::open(hca, parts.tx)?;
        let mut groups = Groups::new(parts.groups);
        groups.want(Instant::ORIGIN, broadcast_mgid(pkey), Kind::Broadcast);
        Ok(Self {
            address,
            config,
            frames,
            neighbours: Neighbours::new(parts.neighbours, config.neighbour),
            groups,
            packet: parts.packet,
            announced: None,
            retry_at: Instant::ORIGIN,
            other_protocol: 0,
            unreachable: 0,
            setup_failures: 0,
        })
    }

    /// Begins again after a recovery of the HCA. Groups that were entered are entered again.
    pub(crate) fn reopen<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        self.frames.reopen(hca)?;
        self.groups.begin_again(hca.now());
        self.neighbours.doubt_all();
        (self.announced, self.retry_at) = (None, Instant::ORIGIN);
        Ok(())
    }

    pub(crate) fn close<P: Platform<Bar = B>>(self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        self.frames.close(hca)
    }

    pub(crate) fn counters(&self) -> IpCounters {
        let frames = self.frames.counters;
        IpCounters {
            received: frames.received,
            sent: frames.sent,
            bad: frames.bad,
            overrun: frames.overrun,
            other_protocol: self.other_protocol,
            unreachable: self.unreachable,
            send_errors: frames.send_errors,
            joins: self.groups.joins,
            refused_joins: self.groups.refused,
            setup_failures: self.setup_failures,
            arp: self.neighbours.counters(),
        }
    }

    /// Whether packets flow.
    pub(crate) fn is_up(&self) -> bool {
        self.frames.qp().is_some() && self.groups.is_attached()
    }

    pub(crate) fn mtu(&self) -> u16 {
        let group = self.groups.broadcast().and_then(|record| Mtu::from_code(record.mtu()));
        group.map_or(USUAL_MTU, |mtu| (mtu.bytes() - ENCAP_LEN as u32) as u16).min(self.config.max_mtu)
    }

    fn hardware_address(&self, info: &PortInfo) -> Option<HwAddr> {
        self.frames.qpn().map(|qpn| HwAddr { flags: 0, qpn, gid: info.gid })
    }

    /// The port has moved, or the subnet manager asks for everything anew.
    pub(crate) fn refresh(&mut self, now: Instant, old: &PortInfo, new: &PortInfo) {
        if (old.pkey, old.pkey_index) != (new.pkey, new.pkey_index) {
            // Another key makes it another queue pair.
            self.frames.set_broken();
        }
        if old.pkey.partition() == new.pkey.partition() {
            self.groups.rejoin(now);
        } else {
            self.groups.restart(now, broadcast_mgid(new.pkey));
        }
        self.neighbours.doubt_all();
        self.announced = None;
    }

    /// The next question for the subnet administrator.
    pub(crate) fn question(&mut self, now: Instant, info: &PortInfo) -> Option<Question> {
        if info.active { self.groups.question(now, info.gid, info.pkey) } else { None }
    }

    /// Its answer.
    pub(crate) fn answer(&mut self, now: Instant, index: u32, result: Result<Response, QueryError>) {
        let record = result
            .and_then(|response| response.result)
            .and_then(|mad| McMemberRecord::from_slice(mad.record_data()).ok_or(QueryError::Mismatch));
        self.groups.answer(now, index, record);
    }

    /// Whether [`Interface::service`] has something to do.
    fn wants_service(&self) -> bool {
        let qkey = self.groups.broadcast().map(McMemberRecord::qkey);
        qkey.is_some_and(|qkey| !self.frames.serves(qkey))
            || self.frames.qp().is_some() && self.groups.attachment().is_some()
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
        if let Err(error) = self.try_service(hca, info.pkey_index) {
            self.setup_failures += 1;
            self.retry_at = now + RETRY;
            // A dead device is told of by other means; there is nobody to hear this one.
            let _ = error;
            return;
        }
        // Neighbours may know another hardware address for us.
        let own = self.hardware_address(info);
        if self.is_up() && own.is_some() && own != self.announced {
            self.announced = own;
            self.announce(now, info);
        }
    }

    fn try_service<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        pkey_index: u16,
    ) -> Result<(), Error> {
        if let Some(qkey) = self.groups.broadcast().map(McMemberRecord::qkey)
            && !self.frames.serves(qkey)
        {
            self.groups.detached();
            self.frames.make_qp(hca, qkey, pkey_index)?;
        }
        while let (Some(qp), Some(attachment)) = (self.frames.qp(), self.groups.attachment()) {
            match attachment {
                Attachment::Attach(index, gid) => {
                    hca.attach_multicast(qp, driver_mlx::Gid(gid.0))?;
                    self.groups.set_attached(index, true);
                }
                Attachment::Detach(index, gid) => {
                    let detached = hca.detach_multicast(qp, driver_mlx::Gid(gid.0));
                    self.groups.set_attached(index, false);
                    detached?;
                }
            }
        }
        Ok(())
    }

    /// Tells everybody where this address is (RFC 5227, section 3: an ARP request for the own address).
    fn announce(&mut self, now: Instant, info: &PortInfo) {
        let Some(sender_hw) = self.hardware_address(info) else { return };
        let arp = Arp {
            operation: ArpOperation::Request,
            sender_hw,
            sender_ip: self.address,
            target_hw: None,
            target_ip: self.address,
        };
        self.send_arp(now, &arp, Destination::Group(broadcast_mgid(info.pkey)));
    }

    fn send_arp(&mut self, now: Instant, arp: &Arp, to: Destination) {
        let deadline = now + PATIENCE;
        // Without room it is lost as if on the wire: the asker repeats.
        self.frames.enqueue(ETHERTYPE_ARP, &arp.to_bytes(), to, deadline);
    }

    /// Takes what has arrived, answers ARP, runs its timers, sends what can be sent. Says when next.
    pub(crate) fn poll(&mut self, now: Instant, info: &PortInfo, paths: &mut Resolver<'_, '_>) -> Wake {
        let mut left = BATCH;
        let own = (info.lid, self.frames.qpn().unwrap_or_default());
        while left > 0
            && let Some((ethertype, len)) = self.frames.receive(own, self.packet)
        {
            left -= 1;
            self.frame_arrived(now, info, ethertype, len);
        }
        let mut wake = Wake::Idle;
        if self.is_up() {
            for _ in 0..BATCH {
                match self.neighbours.poll(now) {
                    NeighbourAction::Request { ip, to } => self.ask(now, info, ip, to),
                    NeighbourAction::Idle(arp) => {
                        wake = arp;
                        break;
                    }
                }
            }
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
        wake.earliest(self.groups.poll_at())
    }

    fn ask(&mut self, now: Instant, info: &PortInfo, ip: Ipv4Addr, to: Option<HwAddr>) {
        let Some(sender_hw) = self.hardware_address(info) else { return };
        let arp = Arp {
            operation: ArpOperation::Request,
            sender_hw,
            sender_ip: self.address,
            target_hw: to,
            target_ip: ip,
        };
        let destination = match to {
            Some(hw) => Destination::Hardware(hw),
            None => Destination::Group(broadcast_mgid(info.pkey)),
        };
        self.send_arp(now, &arp, destination);
    }

    fn frame_arrived(&mut self, now: Instant, info: &PortInfo, ethertype: u16, len: usize) {
        if ethertype != ETHERTYPE_ARP {
            self.other_protocol += 1;
            return;
        }
        let arp = self.packet.get(..len).and_then(Arp::parse);
        let (Some(arp), Some(own)) = (arp, self.hardware_address(info)) else {
            self.other_protocol += 1;
            return;
        };
        if let Some(reply) = self.neighbours.input(now, &arp, self.address, &own) {
            self.send_arp(now, &reply, Destination::Hardware(arp.sender_hw));
        }
    }

    /// Sends every waiting frame whose way is known, drops those that have none.
    fn dispatch(&mut self, now: Instant, info: &PortInfo, paths: &mut Resolver<'_, '_>) {
        let mut from = 0;
        while let Some(waiting) = self.frames.next_waiting(from) {
            from = waiting.sequence + 1;
            match self.way(now, info, &waiting, paths) {
                Way::Known(path, qpn) => {
                    if !self.frames.post(waiting.slot, &path, qpn) {
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
        let (ip, hw) = match waiting.destination {
            Destination::Group(mgid) => {
                return match self.groups.parameters(now, mgid) {
                    Ok(Some(record)) => Way::Known(group_path(info, record), QpNumber::new(0xff_ffff)),
                    Ok(None) => Way::Pending,
                    Err(()) => Way::None,
                };
            }
            Destination::Hardware(hw) => (None, hw),
            Destination::Ip(ip) => match self.neighbours.lookup(now, ip) {
                NeighbourLookup::Known(hw) => (Some(ip), hw),
                NeighbourLookup::Pending | NeighbourLookup::Full => return Way::Pending,
                NeighbourLookup::Failed => return Way::None,
            },
        };
        if hw.gid == info.gid {
            // A queue pair of this very port.
            return Way::Known(own_path(info), hw.qpn);
        }
        match paths.resolve(now, info, hw.gid) {
            Resolution::Known(path) => {
                driver_path(info, &path, None, 0).map_or(Way::None, |path| Way::Known(path, hw.qpn))
            }
            Resolution::Pending => Way::Pending,
            Resolution::Failed(_) => {
                if let Some(ip) = ip {
                    self.neighbours.forget(ip);
                }
                Way::None
            }
        }
    }

    /// The GID at an IP address.
    pub(crate) fn resolve(&mut self, now: Instant, ip: Ipv4Addr) -> AddressResolution {
        if !self.is_up() {
            return AddressResolution::Pending;
        }
        match self.neighbours.lookup(now, ip) {
            NeighbourLookup::Known(hw) => AddressResolution::Known(hw.gid),
            NeighbourLookup::Pending | NeighbourLookup::Full => AddressResolution::Pending,
            NeighbourLookup::Failed => AddressResolution::Failed,
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
        if packet.len() > usize::from(self.mtu()) {
            return Err(IpError::TooLong);
        }
        destination(packet).ok_or(IpError::Malformed)?;
        if !self.is_up() {
            return Err(IpError::Down);
        }
        if next_hop.is_unspecified() || next_hop == self.address || next_hop.is_loopback() {
            return Err(IpError::NoRoute);
        }
        let to = if self.is_subnet_broadcast(next_hop) {
            Destination::Group(broadcast_mgid(info.pkey))
        } else if next_hop.is_multicast() {
            let mgid = multicast_mgid(info.pkey, next_hop);
            if !self.groups.want(now, mgid, Kind::SendOnly) {
                return Err(IpError::Full);
            }
            Destination::Group(mgid)
        } else {
            if self.neighbours.lookup(now, next_hop) == NeighbourLookup::Failed {
                return Err(IpError::Unreachable);
            }
            Destination::Ip(next_hop)
        };
        if self.frames.waiting_for(&to) >= WAITING_EACH {
            return Err(IpError::Full);
        }
        let deadline = now + PATIENCE;
        if self.frames.enqueue(ETHERTYPE_IPV4, packet, to, deadline) { Ok(()) } else { Err(IpError::Full) }
    }

    pub(crate) fn frames(&mut self) -> &mut FrameQueue<'s, B> {
        &mut self.frames
    }

    pub(crate) fn frames_ref(&self) -> &FrameQueue<'s, B> {
        &self.frames
    }
}

enum Way {
    Known(driver_mlx::Path, QpNumber),
    Pending,
    None,
}

/// The destination of an IPv4 packet; `None` if it is none.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let whole = header[0] >> 4 == 4 && (20..=packet.len()).contains(&total);
    whole.then(|| Ipv4Addr::new(header[16], header[17], header[18], header[19]))
}

/// Multicast packets go to the group's LID and carry its GID (RFC 4391, section 6).
fn group_path(info: &PortInfo, record: &McMemberRecord) -> driver_mlx::Path {
    driver_mlx::Path::InfiniBand {
        dlid: record.mlid(),
        sl: record.sl(),
        src_path_bits: 0,
        static_rate: info.static_rate(record.rate()),
        grh: Some(Grh {
            dgid: driver_mlx::Gid(record.mgid().0),
            source_gid_index: 0,
            flow_label: record.flow_label(),
            hop_limit: record.hop_limit(),
            traffic_class: record.traffic_class(),
        }),
    }
}

fn own_path(info: &PortInfo) -> driver_mlx::Path {
    driver_mlx::Path::InfiniBand {
        dlid: info.lid,
        sl: ServiceLevel::new(0),
        src_path_bits: 0,
        static_rate: 0,
        grh: info.route().map(|hop_limit| Grh {
            dgid: driver_mlx::Gid(info.gid.0),
            source_gid_index: 0,
            flow_label: 0,
            hop_limit,
            traffic_class: 0,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_types::Lid;

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

    #[test]
    fn multicast_packets_carry_the_group() {
        let mut record = McMemberRecord::zeroed();
        let mgid = broadcast_mgid(PKey::DEFAULT);
        record
            .set_mgid(mgid)
            .set_mlid(Lid::new(0xc000))
            .set_sl(ServiceLevel::new(3))
            .set_rate(3)
            .set_hop_limit(9)
            .set_traffic_class(5);
        let driver_mlx::Path::InfiniBand { dlid, sl, static_rate, grh, .. } =
            group_path(&PortInfo::example(0), &record)
        else {
            panic!()
        };
        assert_eq!((dlid.get(), sl.get(), static_rate), (0xc000, 3, 3));
        let grh = grh.expect("a GRH");
        assert_eq!((grh.dgid.0, grh.hop_limit, grh.traffic_class), (mgid.0, 9, 5));
    }
}
