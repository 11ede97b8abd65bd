//! All objects of a device.

use super::census::Census;
use super::counters::QCounters;
use super::memic::{DeviceMemory, Memic};
use super::mkey::Mkeys;
use super::nic::Nic;
use super::owners::Owners;
use super::qps::Qps;
use super::queues::Queues;
use super::reserved::Reserved;
use super::srq::Srq;
use super::table::Table;
use super::uars::Uars;
use super::umem::Umem;
use crate::caps::Caps;
use crate::profile::Profile;
use mlx5_prm::caps::cmd_hca_cap as cap;
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
    pub(crate) uars: Uars,
    /// User contexts, by uid.
    pub(crate) uctxs: Table<()>,
    /// User memories.
    pub(crate) umems: Table<Umem>,
    /// Shared receive queues of all kinds.
    pub(crate) srqs: Table<Srq>,
    /// Objects of an Ethernet port.
    pub(crate) nic: Nic,
    /// Q counter sets.
    pub(crate) q_counters: QCounters,
    /// Device memory.
    pub(crate) memic: Memic,
    /// QP numbers that are set aside.
    pub(crate) reserved: Reserved,
    /// Whose they are.
    pub(crate) owners: Owners,
}

impl Objects {
    /// Empty tables of a device that can do this. `terminator` ends scatter lists, see [`Mkeys`].
    pub(crate) fn new(caps: &Caps, profile: &Profile) -> Self {
        Self {
            queues: Queues::new(caps.table(cap::log_max_eq), caps.table(cap::log_max_cq)),
            qps: Qps::new(1 << caps.current(cap::log_max_qp)),
            mkeys: Mkeys::new(caps.table(cap::log_max_mkey), RESERVED_LKEY)
                .ending_lists_with(profile.habits.terminator),
            pds: Table::new(1, caps.table(cap::log_max_pd)),
            xrcds: Table::new(1, caps.table(cap::log_max_xrcd)),
            transport_domains: Table::new(1, caps.table(cap::log_max_transport_domain)),
            uars: uars(caps, profile),
            uctxs: Table::new(1, caps.table(cap::log_max_uctx)),
            umems: Table::new(1, caps.table(cap::log_max_umem)),
            srqs: Table::new(1, caps.table(cap::log_max_srq)),
            nic: Nic::new(caps),
            q_counters: QCounters::new(caps.max(cap::max_qp_cnt)),
            memic: Memic::new(Arc::new(DeviceMemory::default())),
            reserved: Reserved::default(),
            owners: Owners::default(),
        }
    }

    /// Takes up what software set the capabilities to.
    pub(crate) fn initialize(&mut self, caps: &Caps, profile: &Profile) {
        self.qps = Qps::new(1 << caps.current(cap::log_max_qp));
        self.uars = uars(caps, profile);
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
        self.nic.clear();
        self.q_counters.sets.clear();
        self.memic.clear();
        self.reserved.clear();
        self.owners.clear();
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
            qps: self.qps.len(),
            srqs: self.srqs.len(),
            xrcds: self.xrcds.len(),
            transport_domains: self.transport_domains.len(),
            q_counters: self.q_counters.sets.len(),
            tises: self.nic.tises.len(),
            tirs: self.nic.tirs.len(),
            rqts: self.nic.rqts.len(),
            sqs: self.nic.sqs.len(),
            rqs: self.nic.rqs.len(),
            flow_tables: self.nic.steering.tables(),
            flow_counters: self.nic.steering.counters(),
            multicast: self.qps.attachments(),
            uctxs: self.uctxs.len(),
            umems: self.umems.len(),
            memics: self.memic.len(),
            reserved_qpns: self.reserved.len(),
        }
    }

    /// Queues of all kinds that may refer to another object.
    pub(crate) fn queues(&self) -> usize {
        self.queues.cqs.len() + self.qps.len() + self.srqs.len() + self.nic.queues()
    }

    /// Objects that live in host pages.
    pub(crate) fn paged(&self) -> usize {
        self.queues() + self.mkeys.table.len()
    }
}

fn uars(caps: &Caps, profile: &Profile) -> Uars {
    let log_page = caps.current(cap::log_uar_page_sz);
    Uars::new(profile.card.bar_size(), log_page, caps.current(cap::uar_4k) != 0)
}
