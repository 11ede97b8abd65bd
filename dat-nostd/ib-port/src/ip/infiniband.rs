//! IP over InfiniBand, datagram mode (RFC 4391, RFC 4392): ARP, neighbours, the broadcast group.

use core::net::Ipv4Addr;
use driver_mlx::{Bar, Error, Grh, Hca, Platform, QpNumber, ServiceLevel};
use ib_mgmt::ipoib::{
    Arp, ArpOperation, ENCAP_LEN, ETHERTYPE_ARP, HwAddr, NeighbourAction, NeighbourLookup, Neighbours,
    broadcast_mgid,
};
use ib_mgmt::sa::McMemberRecord;
use ib_types::{Instant, Mtu, Wake};

use super::way::{BATCH, PATIENCE, Way};
use crate::frames::{Destination, FrameQp, FrameQueue, FrameWay};
use crate::group::{Attachment, Groups};
use crate::info::PortInfo;
use crate::path::{Resolution, Resolver, driver_path};

/// MTU before the broadcast group is joined.
const USUAL_MTU: u16 = 2044;

/// State of IP on an InfiniBand port.
#[derive(Debug)]
pub(crate) struct Ipoib<'s> {
    pub(super) neighbours: Neighbours<'s>,
    pub(crate) groups: Groups<'s>,
    /// The hardware address this port has announced.
    pub(super) announced: Option<HwAddr>,
}

/// The hardware address of a port's queue pair.
pub(super) fn hardware_address<B: Bar>(frames: &FrameQueue<'_, B>, info: &PortInfo) -> Option<HwAddr> {
    frames.qpn().map(|qpn| HwAddr { flags: 0, qpn, gid: info.gid })
}

impl Ipoib<'_> {
    pub(super) fn mtu(&self) -> u16 {
        let group = self.groups.broadcast().and_then(|record| Mtu::from_code(record.mtu()));
        group.map_or(USUAL_MTU, |mtu| (mtu.bytes() - ENCAP_LEN as u32) as u16)
    }

    /// Follows a port that has moved, or a request to register again.
    pub(super) fn refresh<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        (old, new): (&PortInfo, &PortInfo),
    ) {
        if (old.pkey, old.pkey_index) != (new.pkey, new.pkey_index) {
            // Another key makes it another queue pair.
            frames.set_broken();
        }
        if old.pkey.partition() == new.pkey.partition() {
            self.groups.rejoin(now);
        } else {
            self.groups.restart(now, broadcast_mgid(new.pkey));
        }
        self.neighbours.doubt_all();
        self.announced = None;
    }

    pub(super) fn wants_service<B: Bar>(&self, frames: &FrameQueue<'_, B>) -> bool {
        let qkey = self.groups.broadcast().map(McMemberRecord::qkey);
        qkey.is_some_and(|qkey| !frames.serves(qkey))
            || frames.qp().is_some() && self.groups.attachment().is_some()
    }

    /// Makes the queue pair, and attaches it to its groups.
    pub(super) fn service<P: Platform>(
        &mut self,
        frames: &mut FrameQueue<'_, P::Bar>,
        hca: &mut Hca<'_, P>,
        pkey_index: u16,
    ) -> Result<(), Error> {
        if let Some(qkey) = self.groups.broadcast().map(McMemberRecord::qkey)
            && !frames.serves(qkey)
        {
            self.groups.detached();
            frames.make_qp(hca, FrameQp::Datagram { qkey, pkey_index })?;
        }
        while let (Some(qp), Some(attachment)) = (frames.qp(), self.groups.attachment()) {
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

    /// Announces this address (RFC 5227, section 3: an ARP request for the own
    /// address), unless it was announced.
    pub(super) fn announce<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        (own, info): (Ipv4Addr, &PortInfo),
    ) {
        // Neighbours may store another hardware address of this port.
        let hw = hardware_address(frames, info);
        if hw.is_some() && hw != self.announced && self.groups.is_attached() {
            self.announced = hw;
            self.ask(frames, now, (own, info), (own, None));
        }
    }

    /// Runs the timers of neighbours. Says when next.
    pub(super) fn poll<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        own: (Ipv4Addr, &PortInfo),
    ) -> Wake {
        for _ in 0..BATCH {
            match self.neighbours.poll(now) {
                NeighbourAction::Request { ip, to } => self.ask(frames, now, own, (ip, to)),
                NeighbourAction::Idle(wake) => return wake,
            }
        }
        Wake::Idle
    }

    fn ask<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        (own, info): (Ipv4Addr, &PortInfo),
        (ip, to): (Ipv4Addr, Option<HwAddr>),
    ) {
        let Some(sender_hw) = hardware_address(frames, info) else { return };
        let arp =
            Arp { operation: ArpOperation::Request, sender_hw, sender_ip: own, target_hw: to, target_ip: ip };
        let destination = match to {
            Some(hw) => Destination::Hardware(hw),
            None => Destination::Group(broadcast_mgid(info.pkey)),
        };
        // Without room it is lost as if on the wire: the asker repeats.
        frames.enqueue(ETHERTYPE_ARP, &arp.to_bytes(), destination, now + PATIENCE);
    }

    /// Takes an ARP message, and answers it. Returns false for other messages.
    pub(super) fn arrived<B: Bar>(
        &mut self,
        frames: &mut FrameQueue<'_, B>,
        now: Instant,
        (own, info): (Ipv4Addr, &PortInfo),
        payload: &[u8],
    ) -> bool {
        let (Some(arp), Some(hw)) = (Arp::parse(payload), hardware_address(frames, info)) else {
            return false;
        };
        if let Some(reply) = self.neighbours.input(now, &arp, own, &hw) {
            let to = Destination::Hardware(arp.sender_hw);
            frames.enqueue(ETHERTYPE_ARP, &reply.to_bytes(), to, now + PATIENCE);
        }
        true
    }

    /// The way to a destination.
    pub(super) fn way(
        &mut self,
        now: Instant,
        info: &PortInfo,
        destination: &Destination,
        paths: &mut Resolver<'_, '_>,
    ) -> Way {
        let (ip, hw) = match *destination {
            Destination::Group(mgid) => {
                return match self.groups.parameters(now, mgid) {
                    Ok(Some(record)) => Way::datagram(group_path(info, record), QpNumber::new(0xff_ffff)),
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
            Destination::Mac(_) => return Way::None,
        };
        if hw.gid == info.gid {
            // A queue pair of this very port.
            return Way::datagram(own_path(info), hw.qpn);
        }
        match paths.resolve(now, info, hw.gid) {
            Resolution::Known(path) => {
                driver_path(info, &path, None, 0, None).map_or(Way::None, |path| Way::datagram(path, hw.qpn))
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
}

impl Way {
    fn datagram(path: driver_mlx::Path, qpn: QpNumber) -> Self {
        Self::Known(FrameWay::Datagram(path, qpn))
    }
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
    use ib_types::{Lid, PKey};

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
