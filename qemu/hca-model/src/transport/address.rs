//! Address vectors of datagrams (PRM, work queue structure).

use ib_types::MacAddress;
use mlx5_prm::datapath::av;

/// A datagram's destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressVector {
    pub(super) qkey: u32,
    pub(super) dqpn: u32,
    pub(super) sl: u8,
    pub(super) force_loopback: bool,
    pub(super) mlid: u8,
    pub(super) rlid: u16,
    pub(super) tclass: u8,
    pub(super) hop_limit: u8,
    pub(super) grh: bool,
    pub(super) src_addr_index: u8,
    pub(super) flow_label: u32,
    pub(super) rgid: [u8; 16],
    pub(super) rmac: MacAddress,
}

impl AddressVector {
    /// The address vector in an AV segment.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self {
            qkey: av::qkey.get32(bytes),
            dqpn: av::dqp_dct.get32(bytes),
            sl: av::sl.get32(bytes) as u8,
            force_loopback: av::fl.is_set(bytes),
            mlid: av::mlid.get32(bytes) as u8,
            rlid: av::rlid.get32(bytes) as u16,
            tclass: av::tclass.get32(bytes) as u8,
            hop_limit: av::hop_limit.get32(bytes) as u8,
            grh: av::grh.is_set(bytes),
            src_addr_index: av::src_addr_index.get32(bytes) as u8,
            flow_label: av::flow_label.get32(bytes),
            rgid: av::rgid.of(bytes).first_chunk().copied().unwrap_or_default(),
            rmac: MacAddress(av::rmac.of(bytes).first_chunk().copied().unwrap_or_default()),
        }
    }
}
