//! What is due in an adapter, who waits, and what became ready.

use driver_mlx::Instant;

use core::sync::atomic::AtomicU32;

use crate::adapter::census::AdapterCounters;
use crate::base::list::List;
use crate::conn::pending::Pending;
use crate::ep::WatchedEp;
use crate::evd::cq_map::CqMap;
use crate::evd::waiter::Waits;
use crate::evd::{Looked, ReadyEvd, WaitedEvd};

/// What is due, who waits, and what became ready. The lists go through the objects, so that a poll comes past those that are due and
/// past no others.
#[derive(Debug)]
pub(crate) struct Progress<'s> {
    pub(crate) counters: AdapterCounters,
    /// Objects and completions that polls and waits have looked at.
    pub(crate) visits: u64,
    pub(crate) connections: Pending,
    /// EPs with a high watermark.
    pub(crate) watched: List<WatchedEp>,
    /// EVDs whose CQs are looked at; the others notify.
    pub(crate) looked: List<Looked>,
    /// EVDs of CQs that notify.
    pub(crate) cqs: CqMap<'s>,
    /// Who waits, on what, and the earliest time-out (`Instant::MAX` for none; may be that of a wait that is over).
    pub(crate) waits: Waits<'s>,
    pub(crate) waited_evds: List<WaitedEvd>,
    pub(crate) wait_deadline: Instant,
    /// What became ready and has not been reported.
    pub(crate) ready_evds: List<ReadyEvd>,
    /// Something happened since `prepare_idle` last asked.
    pub(crate) happened: bool,
    /// Dequeues that found nothing, circular.
    empty_dequeues: u8,
}

impl<'s> Progress<'s> {
    pub(crate) fn new(connections: Pending, evd_waits: &'s [AtomicU32], cq_chains: &'s mut [u32]) -> Self {
        Self {
            counters: AdapterCounters::default(),
            visits: 0,
            connections,
            watched: List::default(),
            looked: List::default(),
            cqs: CqMap::new(cq_chains),
            waits: Waits::new(evd_waits),
            waited_evds: List::default(),
            wait_deadline: Instant::MAX,
            ready_evds: List::default(),
            happened: false,
            empty_dequeues: 0,
        }
    }

    /// A dequeue has found nothing. Whether it is to poll the adapter, as one in 256 does, for consumers who do nothing but dequeue.
    #[inline]
    pub(crate) fn is_poll_due(&mut self) -> bool {
        self.empty_dequeues = self.empty_dequeues.wrapping_add(1);
        self.empty_dequeues == 0
    }
}
