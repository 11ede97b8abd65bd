//! What the subnet administrator knows and changes, and how its answers are kept.

use crate::infiniband::manager::Manager;
use crate::infiniband::multicast::Groups;
use crate::infiniband::packet::Grh;
use crate::infiniband::switch::{Switch, Tables};
use crate::ports::PortIndex;

/// Records of an answer, or the status that refuses it.
pub(super) type Records = Result<Vec<Vec<u8>>, u16>;

/// Rate code of EDR: 100 Gb/s.
pub(super) const RATE_100G: u8 = 16;
/// The key by which software asks for all that is known: OpenSM's, and that of diagnosis programs.
const SM_KEY: u64 = 1;

/// Where a management datagram came from, and the answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::infiniband) struct Address {
    pub(in crate::infiniband) lid: u16,
    pub(in crate::infiniband) qpn: u32,
    pub(in crate::infiniband) vl: u8,
    pub(in crate::infiniband) sl: u8,
    pub(in crate::infiniband) pkey: u16,
    /// The route of the answer.
    pub(in crate::infiniband) grh: Option<Grh>,
}

/// What the administrator knows and changes.
pub(in crate::infiniband) struct Subnet<'a> {
    pub(in crate::infiniband) manager: &'a Manager,
    pub(in crate::infiniband) switch: &'a Switch,
    pub(in crate::infiniband) routes: &'a [Option<PortIndex>],
    pub(in crate::infiniband) groups: &'a mut Groups,
    /// The key of software that may act for others; 0 where everybody's is that of diagnosis programs.
    pub(in crate::infiniband) m_key: u64,
    /// Packet life time of every path.
    pub(in crate::infiniband) packet_life_time: u8,
}

impl Subnet<'_> {
    /// Whether this key shows software that may know everything.
    pub(super) fn is_curious(&self, key: u64) -> bool {
        key == SM_KEY || self.is_trusted(key)
    }

    /// Whether this key shows software that may act for other ports.
    pub(super) fn is_trusted(&self, key: u64) -> bool {
        key == if self.m_key == 0 { SM_KEY } else { self.m_key }
    }

    pub(super) fn tables(&self) -> Tables<'_> {
        Tables { manager: self.manager, routes: self.routes, groups: self.groups }
    }
}
