//! A path between two ports, as the subnet administrator gives it and the communication manager uses it.

use crate::gid::Gid;
use crate::mad::{GrhAddress, MadAddress, QP1};
use crate::sa::PathRecord;

/// A path from the own port to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The own port's GID.
    pub sgid: Gid,
    /// The other port's GID.
    pub dgid: Gid,
    /// The own port's LID.
    pub slid: u16,
    /// The other port's LID.
    pub dlid: u16,
    /// Partition key.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// MTU code, 1 to 5.
    pub mtu: u8,
    /// Static rate code.
    pub rate: u8,
    /// Packet life time exponent: 4.096 µs · 2^n.
    pub packet_life_time: u8,
    /// Hop limit; above 1 the path crosses a router and packets carry a GRH.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl Path {
    /// All bytes zero, no path at all.
    pub const ZERO: Path = Path {
        sgid: Gid::ZERO,
        dgid: Gid::ZERO,
        slid: 0,
        dlid: 0,
        pkey: 0,
        sl: 0,
        mtu: 0,
        rate: 0,
        packet_life_time: 0,
        hop_limit: 0,
        traffic_class: 0,
        flow_label: 0,
    };

    /// The path of a subnet administrator's record.
    pub fn from_record(record: &PathRecord) -> Path {
        Path {
            sgid: record.sgid(),
            dgid: record.dgid(),
            slid: record.slid(),
            dlid: record.dlid(),
            pkey: record.pkey(),
            sl: record.sl(),
            mtu: record.mtu(),
            rate: record.rate(),
            packet_life_time: record.packet_life_time(),
            hop_limit: record.hop_limit(),
            traffic_class: record.traffic_class(),
            flow_label: record.flow_label(),
        }
    }

    /// Whether packets along this path need a GRH: it crosses a router.
    pub const fn is_routed(&self) -> bool {
        self.hop_limit > 1
    }

    /// The global route to put into packets, if the path needs one.
    pub fn grh(&self) -> Option<GrhAddress> {
        self.is_routed().then_some(GrhAddress {
            local_gid: self.sgid,
            remote_gid: self.dgid,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
        })
    }

    /// QP1 at the end of this path. Path bits are 0: the caller knows the own port's LMC.
    pub fn gsi_address(&self) -> MadAddress {
        MadAddress { lid: self.dlid, qpn: QP1, sl: self.sl, path_bits: 0, pkey: self.pkey, grh: self.grh() }
    }
}
