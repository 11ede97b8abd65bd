//! A packet that arrived, whatever its medium.

use rdma_fabric::infiniband::packet::{Bth, Grh, LNH_GRH, Lrh, Shape};

/// The transport's part of a packet, and the place that it came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound<'a> {
    pub(super) bth: Bth,
    /// Extended headers and payload.
    pub(super) content: &'a [u8],
    pub(super) origin: Origin<'a>,
}

/// The place that a packet came from, as completions show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    pub(super) slid: u16,
    /// `cqe64.sl`: service level of InfiniBand, kind of the network header of RoCE.
    pub(super) sl: u8,
    /// Low bits of the destination LID.
    pub(super) path_bits: u8,
    /// Tag control information of a VLAN tag.
    pub(super) vlan: Option<u16>,
    /// Network header, which a datagram's receive buffer begins with: GRH, IPv6 or IPv4. Empty for
    /// a packet without one.
    pub(super) header: &'a [u8],
}

impl<'a> Inbound<'a> {
    /// Makes the view of an InfiniBand packet. `lmc` is the port's LID mask control.
    #[inline]
    pub(super) fn of(shape: &Shape, packet: &'a [u8], lmc: u8) -> Self {
        let routed = shape.lrh.link_next_header == LNH_GRH;
        let header = packet.get(Lrh::LEN..Lrh::LEN + Grh::LEN).filter(|_| routed);
        Self {
            bth: shape.bth,
            content: shape.content(packet),
            origin: Origin {
                slid: shape.lrh.slid,
                sl: shape.lrh.sl,
                path_bits: (shape.lrh.dlid & ((1 << lmc.min(7)) - 1)) as u8,
                vlan: None,
                header: header.unwrap_or_default(),
            },
        }
    }
}
