//! All objects of a device.

use super::census::Census;
use super::counters::QCounters;
use super::memic::{DeviceMemory, Memic};
use super::mkey::Mkeys;
use super::qp::Qps;
use super::queues::Queues;
use super::srq::Srq;
use super::table::Table;
use super::uar::{FIRST_UAR, Uar};
use super::umem::Umem;
use crate::caps;
use std::sync::Arc;

/// The reserved L_Key.
const RESERVED_LKEY: u32 = 0x0000_0500;

/// The tables of objects.
#[derive(Debug)]
pub struct Objects {
    /// Event and completion queues.
    pub(crate) queues: Queues,
    /// Queue pairs.
    pub(crate) qps: Qps,
    /// Memory keys.
    pub(crate) mkeys: Mkeys,
    /// Protection domains.
    pub(crate) pds: Table<()>,
    /// XRC domains.
    pub(crate) xrcds: Table<()>,
    /// Transport domains.
    pub(crate) transport_domains: Table<()>,
    /// UAR pages.
    pub(crate) uars: Table<Uar>,
    /// User contexts, by uid.
    pub(crate) uctxs: Table<()>,
    /// User memories.
    pub(crate) umems: Table<Umem>,
    /// Shared receive queues of all kinds.
    pub(crate) srqs: Table<Srq>,
    /// Q counter sets.
    pub(crate) q_counters: QCounters,
    /// Device memory.
    pub(crate) memic: Memic,
}

impl Objects {
    /// Empty tables; there can be 2 to the power of `log_max_qp` QPs. `terminator` ends scatter lists, see [`Mkeys`].
    pub(crate) fn new(log_max_qp: u32, terminator: Option<u32>) -> Self {
        Self {
            queues: Queues::new(1 << caps::LOG_MAX_EQ, 1 << caps::LOG_MAX_CQ),
            qps: Qps::new(1 << log_max_qp.min(caps::LOG_MAX_QP)),
            mkeys: Mkeys::new(1 << caps::LOG_MAX_MKEY, RESERVED_LKEY).ending_lists_with(terminator),
            pds: Table::new(1, 1 << caps::LOG_MAX_PD),
            xrcds: Table::new(1, 1 << caps::LOG_MAX_XRCD),
            transport_domains: Table::new(1, 1 << caps::LOG_MAX_TRANSPORT_DOMAIN),
            uars: Table::new(FIRST_UAR, 1 << 12),
            uctxs: Table::new(1, 1 << caps::LOG_MAX_UCTX),
            umems: Table::new(1, 1 << caps::LOG_MAX_UMEM),
            srqs: Table::new(1, 1 << caps::LOG_MAX_SRQ),
            q_counters: QCounters::new(caps::MAX_QP_CNT),
            memic: Memic::new(Arc::new(DeviceMemory::default())),
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.queues.clear();
        self.qps.clear();
        self.mkeys.clear();
        self.pds.clear();
        self.xrcds.clear();
        self.transport_domains.clear();
        self.uars.clear();
        self.uctxs.clear();
        self.umems.clear();
        self.srqs.clear();
        self.q_counters.sets.clear();
        self.memic.clear();
    }

    /// How many objects of each kind exist.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            uars: self.uars.len(),
            eqs: self.queues.eqs.len(),
            cqs: self.queues.cqs.len(),
            pds: self.pds.len(),
            mkeys: self.mkeys.table.len(),
            qps: self.qps.table.len(),
            srqs: self.srqs.len(),
            xrcds: self.xrcds.len(),
            transport_domains: self.transport_domains.len(),
            q_counters: self.q_counters.sets.len(),
            multicast: self.qps.multicast.len(),
            uctxs: self.uctxs.len(),
            umems: self.umems.len(),
            memics: self.memic.len(),
        }
    }

    /// Queues of all kinds that may refer to another object.
    pub(crate) fn queues(&self) -> usize {
        self.queues.cqs.len() + self.qps.table.len() + self.srqs.len()
    }

    /// Objects that live in host pages.
    pub(crate) fn paged(&self) -> usize {
        self.queues() + self.mkeys.table.len()
    }
}
