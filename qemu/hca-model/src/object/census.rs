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
    /// Transport interfaces for sending.
    pub tises: usize,
    /// Transport interfaces for receiving.
    pub tirs: usize,
    /// Tables of receive queues.
    pub rqts: usize,
    /// Send queues of raw Ethernet.
    pub sqs: usize,
    /// Receive queues of raw Ethernet.
    pub rqs: usize,
    /// Flow tables.
    pub flow_tables: usize,
    /// Flow counters.
    pub flow_counters: usize,
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
            + self.tises
            + self.tirs
            + self.rqts
            + self.sqs
            + self.rqs
            + self.flow_tables
            + self.flow_counters
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
            (self.tises, "TIS"),
            (self.tirs, "TIR"),
            (self.rqts, "table of receive queues"),
            (self.sqs, "send queue"),
            (self.rqs, "receive queue"),
            (self.flow_tables, "flow table"),
            (self.flow_counters, "flow counter"),
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
