//! RoCE: the headers in front of a packet's BTH, and the check of those that arrive (IBTA annexes A16 and A17).

use super::inbound::{Inbound, Origin};
use crate::object::qp::Route;
use crate::port::{NicVport, RoceAddress, RoceVersion};
use crate::run::RoceDestination;
use ib_types::{Gid, MacAddress};
use rdma_fabric::ethernet::RocePath;
use rdma_fabric::ethernet::frame::ether_type::{IPV4, IPV6, ROCE_V1, VLAN};
use rdma_fabric::ethernet::frame::{
    Frame, HEADER_LEN, IPV4_LEN, IPV6_LEN, Network, TAG_LEN, UDP_LEN, UDP_PORT, Version, protocol, sum,
};
use rdma_fabric::infiniband::packet::{GRH_NEXT_HEADER_IBA, Grh};

/// Longest headers before the BTH: addresses, tag, IPv6, UDP.
const LONGEST: usize = HEADER_LEN + TAG_LEN + IPV6_LEN + UDP_LEN;
/// ECN field: the sender supports it (RFC 3168).
const ECT_0: u8 = 2;
/// Network headers as completions show them (`cqe64.sl`).
const SHOWN_GRH: u8 = 0;
const SHOWN_IPV6: u8 = 1;
const SHOWN_IPV4: u8 = 2;

/// Headers before the BTH, without lengths and checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    bytes: [u8; LONGEST],
    len: usize,
    /// Offset of the network header.
    network: usize,
    kind: Kind,
    source: RoceAddress,
    to: (MacAddress, Gid),
    /// The sender's own mark of congestion.
    congested: bool,
}

/// Kind of the network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Grh,
    Ipv4,
    Ipv6,
}

impl Front {
    /// Makes the headers of packets from `source` along `route`.
    pub(super) fn new(source: &RoceAddress, route: &Route) -> Self {
        let mut front = Self {
            bytes: [0; LONGEST],
            len: 0,
            network: 0,
            kind: Kind::Grh,
            source: *source,
            to: (route.rmac, Gid(route.grh.dgid)),
            congested: route.is_congested(),
        };
        let (class, hop_limit, label) = (route.grh.traffic_class, route.grh.hop_limit, route.grh.flow_label);
        front.put(&route.rmac.0);
        front.put(&source.mac.0);
        if let Some(vid) = source.vlan {
            front.put(&VLAN.to_be_bytes());
            front.put(&(u16::from(route.priority) << 13 | vid).to_be_bytes());
        }
        let (own, peer) = (Gid(source.gid), Gid(route.grh.dgid));
        let addresses = own.ipv4().zip(peer.ipv4()).filter(|_| source.version == RoceVersion::V2);
        // Cards send all packets of RoCE v2 as ECN capable: with ECT(0), unless the route has other bits.
        let class = if source.version == RoceVersion::V2 && class & 3 == 0 { class | ECT_0 } else { class };
        let (kind, ether_type) = match (source.version, &addresses) {
            (RoceVersion::V1, _) => (Kind::Grh, ROCE_V1),
            (RoceVersion::V2, Some(_)) => (Kind::Ipv4, IPV4),
            (RoceVersion::V2, None) => (Kind::Ipv6, IPV6),
        };
        front.kind = kind;
        front.put(&ether_type.to_be_bytes());
        front.network = front.len;
        match (kind, addresses) {
            (Kind::Ipv4, Some((own, peer))) => {
                // Not to be fragmented.
                front.put(&[0x45, class, 0, 0, 0, 0, 0x40, 0, hop_limit, protocol::UDP, 0, 0]);
                front.put(&own);
                front.put(&peer);
            }
            (Kind::Grh, _) => {
                let grh = Grh {
                    traffic_class: class,
                    flow_label: label,
                    payload_len: 0,
                    next_header: GRH_NEXT_HEADER_IBA,
                    hop_limit,
                    sgid: own,
                    dgid: peer,
                };
                front.put(&grh.to_bytes());
            }
            _ => {
                front.put(&(6 << 28 | u32::from(class) << 20 | label).to_be_bytes());
                front.put(&[0, 0, protocol::UDP, hop_limit]);
                front.put(&own.0);
                front.put(&peer.0);
            }
        }
        if kind != Kind::Grh {
            front.put(&route.udp_sport.to_be_bytes());
            front.put(&UDP_PORT.to_be_bytes());
            front.put(&[0; 4]);
        }
        front
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// Bytes of the headers.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Kind of the network header as completions show it (`cqe64.sl`).
    pub(super) const fn shown(&self) -> u8 {
        match self.kind {
            Kind::Grh => SHOWN_GRH,
            Kind::Ipv6 => SHOWN_IPV6,
            Kind::Ipv4 => SHOWN_IPV4,
        }
    }

    /// The addresses without headers around them, of frames of at most `longest` bytes. `None` where no entry of
    /// an address table takes the packets, or they arrive as congested.
    pub(super) fn destination(&self, longest: usize) -> Option<RoceDestination> {
        let (source, (mac, gid)) = (&self.source, self.to);
        let vlan = source.vlan.unwrap_or(0);
        (!self.congested && source.vlan != Some(0)).then_some(RoceDestination {
            path: RocePath { source: source.mac, destination: mac, vlan, longest },
            version: source.version,
            source: Gid(source.gid),
            destination: gid,
        })
    }

    /// Writes the headers of a packet with `transport` bytes from the BTH to the ICRC to the front of `frame`.
    pub(super) fn write(&self, frame: &mut [u8], transport: usize) {
        let Some(place) = frame.get_mut(..self.len) else { return };
        place.copy_from_slice(self.bytes.get(..self.len).unwrap_or_default());
        let mut put16 = |at: usize, value: u16| {
            if let Some(place) = place.get_mut(at..at + 2) {
                place.copy_from_slice(&value.to_be_bytes());
            }
        };
        let (start, datagram) = (self.network, (UDP_LEN + transport) as u16);
        match self.kind {
            Kind::Grh => put16(start + 4, transport as u16),
            Kind::Ipv6 => {
                put16(start + 4, datagram);
                put16(start + IPV6_LEN + 4, datagram);
            }
            Kind::Ipv4 => {
                put16(start + 2, IPV4_LEN as u16 + datagram);
                put16(start + IPV4_LEN + 4, datagram);
                let header = place.get(start..start + IPV4_LEN).unwrap_or_default();
                let checksum = !sum(header);
                if let Some(place) = place.get_mut(start + 10..start + 12) {
                    place.copy_from_slice(&checksum.to_be_bytes());
                }
            }
        }
    }
}

impl NicVport {
    /// Returns whether a frame is a RoCE packet for one of the function's addresses.
    pub(crate) fn takes_roce(&self, frame: &Frame<'_>) -> bool {
        if !self.roce {
            return false;
        }
        let Some(roce) = frame.roce() else { return false };
        let version = if roce.is_v2() { RoceVersion::V2 } else { RoceVersion::V1 };
        let to = frame.header().destination();
        if to.is_multicast() {
            return self.receives(to, vlan_of(frame));
        }
        let gid = destination(frame);
        self.roce_addresses().any(|own| {
            own.version == version && own.gid == gid && own.mac == to && own.vlan == vlan_of(frame)
        })
    }
}

/// The VLAN of a frame. Tag 0 names none.
pub(super) fn vlan_of(frame: &Frame<'_>) -> Option<u16> {
    frame.header().tag().map(|tag| tag.vid()).filter(|vid| *vid != 0)
}

/// The destination GID.
pub(super) fn destination(frame: &Frame<'_>) -> [u8; 16] {
    match frame.network() {
        Network::Grh(grh) => grh.dgid.0,
        Network::Ip(ip) => ip.destination_gid().0,
        _ => [0; 16],
    }
}

/// The source GID.
pub(super) fn source(frame: &Frame<'_>) -> [u8; 16] {
    match frame.network() {
        Network::Grh(grh) => grh.sgid.0,
        Network::Ip(ip) => ip.source_gid().0,
        _ => [0; 16],
    }
}

/// Returns the view of a RoCE packet, which `bytes` are. `None` for any other frame.
pub(super) fn inbound<'a>(frame: &Frame<'_>, bytes: &'a [u8]) -> Option<Inbound<'a>> {
    let roce = frame.roce()?;
    let (sl, header) = match frame.network() {
        Network::Grh(_) => (SHOWN_GRH, IPV6_LEN),
        Network::Ip(ip) if ip.version() == Version::V4 => (SHOWN_IPV4, IPV4_LEN),
        _ => (SHOWN_IPV6, IPV6_LEN),
    };
    let start = frame.header().start();
    let header = bytes.get(start..start + header).unwrap_or_default();
    let vlan = frame.header().tag().map(|tag| tag.tci);
    Some(Inbound {
        bth: *roce.bth(),
        content: roce.content(bytes),
        origin: Origin { slid: 0, sl, path_bits: 0, vlan, header },
    })
}
