//! Address paths (`ads`), and routes of packets in general.

use ib_types::MacAddress;
use mlx5_prm::contexts::ads;
use rdma_fabric::infiniband::packet::Grh;

/// A route as an address path or an AV gives it. Any values are valid.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    /// Service level.
    pub(crate) sl: u8,
    /// Low 7 bits of the source LID.
    pub(crate) path_bits: u8,
    /// Destination LID.
    pub(crate) dlid: u16,
    /// `fl`: packets return inside the device.
    pub(crate) force_loopback: bool,
    /// Packets of InfiniBand have a GRH. Those of RoCE always have a network header.
    pub(crate) is_routed: bool,
    /// The network header's part.
    pub(crate) grh: GrhRoute,
    /// RoCE: MAC address of the next hop.
    pub(crate) rmac: MacAddress,
    /// RoCE v2: UDP source port.
    pub(crate) udp_sport: u16,
    /// RoCE: priority in a VLAN tag.
    pub(crate) priority: u8,
}

impl Route {
    /// Returns whether RoCE packets have the mark of congestion from the beginning.
    pub(crate) const fn is_congested(&self) -> bool {
        self.grh.traffic_class & 3 == 3
    }

    /// Returns the route of notifications of congestion to the peer: DSCP 48, and UDP source port 0, as cards
    /// send them.
    pub(crate) const fn of_notifications(&self) -> Self {
        let grh = GrhRoute { traffic_class: 48 << 2, ..self.grh };
        Self { grh, udp_sport: 0, ..*self }
    }
}

/// A route's network header. Any values are valid.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrhRoute {
    /// Index of the source GID.
    pub(crate) src_index: u8,
    /// Destination GID.
    pub(crate) dgid: [u8; 16],
    /// Traffic class.
    pub(crate) traffic_class: u8,
    /// Flow label, 20 bits.
    pub(crate) flow_label: u32,
    /// Hop limit.
    pub(crate) hop_limit: u8,
}

/// The primary path of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddressPath {
    route: Route,
    pkey_index: u16,
    ack_timeout: u8,
}

impl AddressPath {
    /// Parses an `ads`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let grh = GrhRoute {
            src_index: ads::src_addr_index.get32(bytes) as u8,
            dgid: ads::rgid_rip.of(bytes).first_chunk().copied().unwrap_or_default(),
            traffic_class: ads::tclass.get32(bytes) as u8,
            flow_label: ads::flow_label.get32(bytes),
            hop_limit: ads::hop_limit.get32(bytes) as u8,
        };
        Self {
            route: Route {
                sl: ads::sl.get32(bytes) as u8,
                path_bits: ads::mlid.get32(bytes) as u8,
                dlid: ads::rlid.get32(bytes) as u16,
                force_loopback: ads::fl.is_set(bytes),
                is_routed: ads::grh.is_set(bytes),
                grh,
                rmac: MacAddress::from_halves(
                    ads::rmac_47_32.get32(bytes) as u16,
                    ads::rmac_31_0.get32(bytes),
                ),
                udp_sport: ads::udp_sport.get32(bytes) as u16,
                priority: ads::eth_prio.get32(bytes) as u8,
            },
            pkey_index: ads::pkey_index.get32(bytes) as u16,
            ack_timeout: ads::ack_timeout.get32(bytes) as u8,
        }
    }

    /// The route of packets to the peer.
    #[must_use]
    #[inline]
    pub const fn route(&self) -> &Route {
        &self.route
    }

    /// Index into the port's P_Key table.
    #[must_use]
    #[inline]
    pub const fn pkey_index(&self) -> u16 {
        self.pkey_index
    }

    /// ACK time-out: 4.096 us times 2 to the power of this; 0 is infinite.
    #[must_use]
    pub const fn ack_timeout(&self) -> u8 {
        self.ack_timeout
    }

    /// Returns whether packets from a LID are from the peer's port (IBTA 9.6.1.1.3).
    #[must_use]
    #[inline]
    pub const fn is_peer_lid(&self, slid: u16) -> bool {
        slid == self.route.dlid
    }

    /// Returns whether packets with this GRH are from the peer's GID. Without a GRH in the path every GID
    /// is (IBTA 9.6.1.2.3).
    #[must_use]
    #[inline]
    pub fn is_peer_gid(&self, grh: Option<&Grh>) -> bool {
        !self.route.is_routed || grh.is_some_and(|grh| grh.sgid.0 == self.route.grh.dgid)
    }
}
