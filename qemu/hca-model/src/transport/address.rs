//! The address vectors of datagrams (PRM, work queue structure).

use crate::object::qp::{GrhRoute, Route};
use ib_types::MacAddress;
use mlx5_prm::datapath::av;

/// A datagram's destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressVector {
    pub(super) qkey: u32,
    pub(super) dqpn: u32,
    pub(super) route: Route,
}

impl AddressVector {
    /// The address vector in an AV segment.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let (sl, rlid) = (av::sl.get32(bytes) as u8, av::rlid.get32(bytes) as u16);
        let grh = GrhRoute {
            src_index: av::src_addr_index.get32(bytes) as u8,
            dgid: av::rgid.of(bytes).first_chunk().copied().unwrap_or_default(),
            traffic_class: av::tclass.get32(bytes) as u8,
            flow_label: av::flow_label.get32(bytes),
            hop_limit: av::hop_limit.get32(bytes) as u8,
        };
        let route = Route {
            sl,
            path_bits: av::mlid.get32(bytes) as u8,
            dlid: rlid,
            force_loopback: av::fl.is_set(bytes),
            is_routed: av::grh.is_set(bytes),
            grh,
            rmac: MacAddress(av::rmac.of(bytes).first_chunk().copied().unwrap_or_default()),
            // In place of the LID.
            udp_sport: rlid,
            priority: sl >> 1 & 7,
        };
        Self { qkey: av::qkey.get32(bytes), dqpn: av::dqp_dct.get32(bytes), route }
    }
}
