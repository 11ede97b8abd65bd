//! How many objects there are.

use std::fmt;

/// How many objects of each kind exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// UAR pages.
    pub uars: usize,
    /// Event queues.
    pub eqs: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Protection domains.
    pub pds: usize,
    /// Memory keys.
    pub mkeys: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues of all kinds.
    pub srqs: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// Transport domains.
    pub transport_domains: usize,
    /// Q counter sets.
    pub q_counters: usize,
    /// QPs in multicast groups.
    pub multicast: usize,
    /// User contexts.
    pub uctxs: usize,
    /// User memories.
    pub umems: usize,
    /// Allocations of device memory.
    pub memics: usize,
    /// Ranges of QP numbers that are set aside.
    pub reserved_qpns: usize,
}

impl Census {
    /// All objects together.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.uars
            + self.eqs
            + self.cqs
            + self.pds
            + self.mkeys
            + self.qps
            + self.srqs
            + self.xrcds
            + self.transport_domains
            + self.q_counters
            + self.multicast
            + self.uctxs
            + self.umems
            + self.memics
            + self.reserved_qpns
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.uars, "UAR"),
            (self.eqs, "EQ"),
            (self.cqs, "CQ"),
            (self.pds, "PD"),
            (self.mkeys, "memory key"),
            (self.qps, "QP"),
            (self.srqs, "SRQ"),
            (self.xrcds, "XRC domain"),
            (self.transport_domains, "transport domain"),
            (self.q_counters, "Q counter set"),
            (self.multicast, "multicast attachment"),
            (self.uctxs, "user context"),
            (self.umems, "user memory"),
            (self.memics, "allocation of device memory"),
            (self.reserved_qpns, "range of reserved QP numbers"),
        ];
        let mut first = true;
        for (count, name) in counts {
            if count != 0 {
                write!(f, "{}{count} {name}", if first { "" } else { ", " })?;
                first = false;
            }
        }
        if first { f.write_str("nothing") } else { Ok(()) }
    }
}
