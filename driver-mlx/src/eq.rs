//! Event queues.

use crate::barrier;
use crate::control;
use crate::dma::DmaMemory;
use crate::platform::Bar;
use crate::ring::{OCTOWORDS_PER_ENTRY as OCTOWORDS_PER_EQE, OctowordRing};
use crate::types::{CqNumber, EqNumber};
use mlx5_prm::datapath;
use mlx5_prm::event::EventType;
use mlx5_prm::init_seg::uar;

/// The consumer index is reported to the device after this many entries at the latest.
const BATCH: u32 = 64;

/// Entries of a completion event queue that CQs do not get. The device learns of a batch of taken
/// entries late, and the CQs that those entries named may be armed again before.
pub(crate) const SPARE: u32 = BATCH;

/// log2 of the entries of a completion event queue that `cqs` CQs can share, which all complete at
/// once; 16, the most, if there is none.
pub(crate) const fn log_size_for(cqs: u32) -> u8 {
    let mut log_size = 7;
    while log_size < 16 && (1 << log_size) - SPARE < cqs {
        log_size += 1;
    }
    log_size
}

/// An event queue entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eqe {
    pub(crate) event: EventType,
    pub(crate) sub_type: u8,
    /// Offsets 0x20 to 0x3b.
    pub(crate) data: [u8; 32],
}

#[derive(Debug)]
pub(crate) struct Eq {
    ring: OctowordRing,
    log_size: u32,
    ci: u32,
    reported: u32,
    number: EqNumber,
    uar_offset: usize,
    /// CQs that report here.
    cqs: u32,
    /// Upper bound of the entries in the ring that destroyed CQs have left.
    orphans: u32,
    memory: DmaMemory,
}

impl Eq {
    /// A queue of `1 << log_size` entries over `memory`, all owned by the device.
    pub(crate) fn new(memory: DmaMemory, log_size: u32, uar_offset: usize) -> Option<Self> {
        let mut ring = OctowordRing::new(memory.slice(0, 64 << log_size)?)?;
        for index in 0..ring.len() {
            ring.put(index, 0, u64::from(index % OCTOWORDS_PER_EQE == OCTOWORDS_PER_EQE - 1));
        }
        barrier::publish();
        Some(Self {
            ring,
            log_size,
            ci: 0,
            reported: 0,
            number: EqNumber::new(0),
            uar_offset,
            cqs: 0,
            orphans: 0,
            memory,
        })
    }

    pub(crate) fn set_number(&mut self, number: EqNumber) {
        self.number = number;
    }

    pub(crate) fn number(&self) -> EqNumber {
        self.number
    }

    pub(crate) fn memory(&self) -> DmaMemory {
        self.memory
    }

    /// Entries in the ring: the most that one drain takes.
    pub(crate) fn size(&self) -> u32 {
        1 << self.log_size
    }

    /// The last quadword of the next entry, if the device has handed it over.
    #[inline]
    fn ready(&self) -> Option<u64> {
        self.ready_at(self.ci)
    }

    /// The last quadword of the entry at `index`, if the device has handed it over.
    #[inline]
    fn ready_at(&self, index: u32) -> Option<u64> {
        let last = self.ring.second(index as usize * OCTOWORDS_PER_EQE + 3);
        (last & 1 == u64::from(index >> self.log_size) & 1).then_some(last)
    }

    /// Returns whether the device has handed over the next entry.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        self.ready().is_some()
    }

    /// Entries that wait to be taken.
    fn waiting(&self) -> u32 {
        let ahead = |count: &u32| self.ready_at(self.ci.wrapping_add(*count)).is_some();
        (0..self.size()).take_while(ahead).count() as u32
    }

    /// Entries that CQs may have in the ring at once: one for each CQ, and those that destroyed CQs
    /// left there.
    pub(crate) fn expected(&mut self) -> u32 {
        if self.orphans > 0 {
            // An entry precedes the response to DESTROY_CQ, so that each one left is among these.
            self.orphans = self.orphans.min(self.waiting());
        }
        self.cqs.saturating_add(self.orphans)
    }

    /// Counts a CQ in.
    pub(crate) fn add_cq(&mut self) {
        self.cqs += 1;
    }

    /// Counts a CQ out that was destroyed; its last entry may still be in the ring.
    pub(crate) fn remove_cq(&mut self) {
        self.cqs = self.cqs.saturating_sub(1);
        self.orphans = self.orphans.saturating_add(1);
    }

    #[inline]
    fn advance<B: Bar>(&mut self, bar: B) {
        self.ci = self.ci.wrapping_add(1);
        if self.ci.wrapping_sub(self.reported) >= BATCH {
            self.report(bar, uar::EQ_DOORBELL);
        }
    }

    fn report<B: Bar>(&mut self, bar: B, register: usize) {
        self.reported = self.ci;
        barrier::before_doorbell();
        control::write32(bar, self.uar_offset + register, datapath::eq_doorbell(self.number.get(), self.ci));
    }

    /// Takes the next entry.
    pub(crate) fn next<B: Bar>(&mut self, bar: B) -> Option<Eqe> {
        self.ready()?;
        barrier::acquire();
        let octoword = self.ci as usize * OCTOWORDS_PER_EQE;
        let (head, _) = self.ring.get(octoword);
        let mut data = [0; 32];
        for (half, bytes) in data.chunks_exact_mut(16).enumerate() {
            let (first, second) = self.ring.get(octoword + 2 + half);
            bytes.copy_from_slice(&((u128::from(first) << 64) | u128::from(second)).to_be_bytes());
        }
        self.advance(bar);
        Some(Eqe { event: EventType((head >> 48) as u8), sub_type: (head >> 32) as u8, data })
    }

    /// Takes the next entry of a completion queue: the CQ it names, or the type it should not have.
    #[inline]
    pub(crate) fn next_completion<B: Bar>(&mut self, bar: B) -> Option<Result<CqNumber, EventType>> {
        let last = self.ready()?;
        barrier::acquire();
        let (head, _) = self.ring.get(self.ci as usize * OCTOWORDS_PER_EQE);
        self.advance(bar);
        let event = EventType((head >> 48) as u8);
        Some(if event == EventType::COMP { Ok(CqNumber::new((last >> 32) as u32)) } else { Err(event) })
    }

    /// Tells the device what has been taken, if it does not know yet.
    #[inline]
    pub(crate) fn update<B: Bar>(&mut self, bar: B) {
        if self.reported != self.ci {
            self.report(bar, uar::EQ_DOORBELL);
        }
    }

    /// Asks for an interrupt at the next entry, at once if there is one.
    pub(crate) fn arm<B: Bar>(&mut self, bar: B) {
        self.report(bar, uar::EQ_DOORBELL_ARM);
    }
}
