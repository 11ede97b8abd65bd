//! Objects of an Ethernet port: send and receive queues, what they send and receive through, and flow tables (PRM,
//! "Raw Ethernet Work Queues" and "Flow Steering").

mod queue;
mod steering;

pub(crate) use queue::{Rq, Sq, Wq};
pub(crate) use steering::{Destination, Entry, FlowTable, Group, Match, Steering};
#[cfg(test)]
pub(crate) use steering::{MAX_COUNTERS, MAX_GROUPS, MAX_TABLES};

use super::table::Table;
use crate::caps::Caps;
use mlx5_prm::caps::cmd_hca_cap as cap;
use mlx5_prm::value::{HashFields, RxHash};

/// First number of a send queue: doorbells name queues and queue pairs in one range.
const FIRST_SQN: u32 = 1 << 20;

/// Transport interface send: the traffic class and the domain that send queues send in.
#[derive(Clone, Debug)]
pub(crate) struct Tis {
    pub(crate) transport_domain: u32,
    /// The context, for queries.
    pub(crate) context: Vec<u8>,
}

/// Transport interface receive: chooses the receive queue of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Tir {
    pub(crate) transport_domain: u32,
    pub(crate) target: Target,
    pub(crate) hash: Hash,
    /// The context, for queries.
    pub(crate) context: Vec<u8>,
}

/// Where a TIR's frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One receive queue.
    Direct(u32),
    /// A table of receive queues, by hash.
    Indirect(u32),
}

/// How a TIR hashes a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash {
    pub(crate) function: RxHash,
    /// Source and destination are exchangeable.
    pub(crate) symmetric: bool,
    pub(crate) key: [u8; 40],
    pub(crate) fields: HashFields,
}

/// Table of receive queues.
#[derive(Clone, Debug)]
pub(crate) struct Rqt {
    /// Maximum entries.
    pub(crate) max_size: u32,
    pub(crate) list: Vec<u32>,
}

impl Rqt {
    /// Host memory that it takes at most.
    pub(crate) fn memory(&self) -> u64 {
        size_of::<Self>() as u64 + 4 * u64::from(self.max_size)
    }

    /// The receive queue for a hash.
    pub(crate) fn choose(&self, hash: u32) -> Option<u32> {
        let index = (hash as usize).checked_rem(self.list.len())?;
        self.list.get(index).copied()
    }
}

/// Objects that a queue refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct References {
    pub(crate) pd: u32,
    pub(crate) cqn: u32,
    pub(crate) uar_page: Option<u32>,
    /// 0 for none.
    pub(crate) counter_set_id: u32,
}

/// All objects of an Ethernet port.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) tises: Table<Tis>,
    pub(crate) tirs: Table<Tir>,
    pub(crate) rqts: Table<Rqt>,
    pub(crate) sqs: Table<Sq>,
    pub(crate) rqs: Table<Rq>,
    pub(crate) steering: Steering,
}

impl Nic {
    /// Empty tables of a device that can do this.
    pub(crate) fn new(caps: &Caps) -> Self {
        Self {
            tises: Table::new(1, caps.table(cap::log_max_tis)),
            tirs: Table::new(1, caps.table(cap::log_max_tir)),
            rqts: Table::new(1, caps.table(cap::log_max_rqt)),
            sqs: Table::new(FIRST_SQN, caps.table(cap::log_max_sq)),
            rqs: Table::new(1, caps.table(cap::log_max_rq)),
            steering: Steering::new(),
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.tises.clear();
        self.tirs.clear();
        self.rqts.clear();
        self.sqs.clear();
        self.rqs.clear();
        self.steering.clear();
    }

    /// Number of queues.
    pub(crate) fn queues(&self) -> usize {
        self.sqs.len() + self.rqs.len()
    }

    /// Steps of work for a look at all entries of the tables of receive queues.
    pub(crate) fn listed(&self) -> u64 {
        const ENTRIES_PER_STEP: u64 = 16;
        self.rqts.iter().map(|(_, rqt)| 1 + rqt.list.len() as u64 / ENTRIES_PER_STEP).sum()
    }

    /// The queue for which `uses` returns true, in words.
    pub(crate) fn user(&self, uses: impl Fn(&References) -> bool) -> Option<String> {
        let sq = self.sqs.iter().find(|(_, sq)| {
            let Sq { wq: Wq { pd, .. }, cqn, uar_page, .. } = **sq;
            uses(&References { pd, cqn, uar_page: Some(uar_page), counter_set_id: 0 })
        });
        let rq = self.rqs.iter().find(|(_, rq)| {
            let Rq { wq: Wq { pd, .. }, cqn, counter_set_id, .. } = **rq;
            uses(&References { pd, cqn, uar_page: None, counter_set_id: counter_set_id.into() })
        });
        sq.map(|(sqn, _)| format!("used by SQ {sqn:#x}"))
            .or_else(|| rq.map(|(rqn, _)| format!("used by RQ {rqn:#x}")))
    }

    /// Returns the object in a transport domain, in words.
    pub(crate) fn user_of_domain(&self, domain: u32) -> Option<String> {
        let tis = self.tises.iter().find(|(_, tis)| tis.transport_domain == domain);
        let tir = self.tirs.iter().find(|(_, tir)| tir.transport_domain == domain);
        tis.map(|(tisn, _)| format!("used by TIS {tisn:#x}"))
            .or_else(|| tir.map(|(tirn, _)| format!("used by TIR {tirn:#x}")))
    }

    /// The TIS's user, if a send queue uses it.
    pub(crate) fn user_of_tis(&self, tisn: u32) -> Option<u32> {
        self.sqs.iter().find(|(_, sq)| sq.tisn == Some(tisn)).map(|(sqn, _)| sqn)
    }

    /// Returns the object that refers to a receive queue, in words.
    pub(crate) fn user_of_rq(&self, rqn: u32) -> Option<String> {
        let tir = self.tirs.iter().find(|(_, tir)| tir.target == Target::Direct(rqn));
        let rqt = self.rqts.iter().find(|(_, rqt)| rqt.list.contains(&rqn));
        tir.map(|(tirn, _)| format!("used by TIR {tirn:#x}"))
            .or_else(|| rqt.map(|(rqtn, _)| format!("used by RQT {rqtn:#x}")))
    }

    /// The TIR that uses a table of receive queues.
    pub(crate) fn user_of_rqt(&self, rqtn: u32) -> Option<u32> {
        self.tirs.iter().find(|(_, tir)| tir.target == Target::Indirect(rqtn)).map(|(tirn, _)| tirn)
    }
}
