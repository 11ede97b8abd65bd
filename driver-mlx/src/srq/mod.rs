//! Shared receive queues: receives that many QPs take from.
//!
//! The device takes entries along a linked list. Which QP takes one, and when it completes, is not known beforehand, so entries come
//! back in any order: a completed one is linked after the last free one. One entry is always free, the one that the device will find
//! at the end of the list.

use crate::barrier;
use crate::completion::{Completion, WrId};
use crate::cq::Cqe;
use crate::dma::DmaMemory;
use crate::generation::{Age, Generation, Object};
use crate::qp::put_receive;
use crate::ring::{DoorbellRecord, OCTOWORDS_PER_ENTRY, OctowordRing, Slot, Slots};
use crate::types::{LKey, Sge, SrqNumber};
use crate::wqe::PostError;

/// In the second slot of an entry: it is posted.
const POSTED: u64 = 1 << 32;

/// How the ring of a shared receive queue lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqGeometry {
    /// log2 of the entries; one of them is never posted.
    pub(crate) log_size: u32,
    /// log2 of the octowords of an entry: a next segment, then the SGEs.
    pub(crate) log_stride: u32,
    /// Bytes of the ring.
    pub(crate) ring_bytes: usize,
}

impl SrqGeometry {
    /// Sizes for these limits; `None` if they do not fit the 16-bit counters.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Option<Self> {
        let octowords = (max_sge.max(1) as usize).checked_add(1)?.checked_next_power_of_two()?;
        let entries =
            (max_wr.max(1) as usize).checked_add(1)?.max(OCTOWORDS_PER_ENTRY).checked_next_power_of_two()?;
        if entries > 1 << 15 || octowords > 1 << 7 {
            return None;
        }
        let ring_bytes = entries * octowords * 16;
        Some(Self { log_size: entries.ilog2(), log_stride: octowords.ilog2(), ring_bytes })
    }

    /// Slots beside the ring: two for each entry.
    pub(crate) fn slots(&self) -> usize {
        2 << self.log_size
    }
}

/// A shared receive queue. Owns all it needs for posting and retiring, apart from the [`Hca`](crate::Hca) that made it.
#[derive(Debug)]
pub struct Srq {
    ring: OctowordRing,
    /// Two for each entry: its [`WrId`]; then the entry after it, and whether it is posted.
    slots: Slots,
    record: DoorbellRecord,
    /// Next entry to post.
    head: u16,
    /// Last free entry: what completes is linked after it.
    tail: u16,
    /// Entries ever posted, as the device counts.
    posted: u16,
    outstanding: u16,
    /// Entries less one.
    mask: u16,
    log_stride: u8,
    max_sge: u8,
    /// The key that ends a scatter list.
    terminator: LKey,
    number: SrqNumber,
    spurious: u32,
    /// The ring, and the doorbell record.
    memory: [DmaMemory; 2],
    generation: Generation,
}

impl Object for Srq {
    type Number = SrqNumber;

    fn made(&self, now: Generation) -> Age {
        self.generation.made(now)
    }

    fn name(&self) -> SrqNumber {
        self.number
    }
}

impl Srq {
    /// A ring over `memory`, all free.
    pub(crate) fn new(
        memory: [DmaMemory; 2],
        slots: Slots,
        geometry: &SrqGeometry,
        max_sge: u8,
        terminator: LKey,
        generation: Generation,
    ) -> Option<Self> {
        let entries = 1usize << geometry.log_size;
        let [ring, record] = memory;
        let mut srq = Self {
            ring: OctowordRing::new(ring.slice(0, geometry.ring_bytes)?)?,
            slots,
            record: DoorbellRecord::new(record)?,
            head: 0,
            tail: (entries - 1) as u16,
            posted: 0,
            outstanding: 0,
            mask: (entries - 1) as u16,
            log_stride: geometry.log_stride as u8,
            max_sge,
            terminator,
            number: SrqNumber::new(0),
            spurious: 0,
            memory,
            generation,
        };
        srq.ring.clear();
        srq.slots.clear();
        for entry in 0..=srq.mask {
            srq.link(entry, entry.wrapping_add(1) & srq.mask);
        }
        srq.record.store_first(0);
        srq.record.store_second(0);
        barrier::publish();
        Some(srq)
    }

    /// The ring and the doorbell record.
    pub(crate) fn memory(&self) -> [DmaMemory; 2] {
        self.memory
    }

    /// Slots beside the ring.
    pub(crate) fn into_slots(self) -> Slots {
        self.slots
    }

    /// Makes `next` the entry after `entry`, which is free.
    fn link(&mut self, entry: u16, next: u16) {
        self.ring.put(usize::from(entry) << self.log_stride, u64::from(next) << 32, 0);
        self.slots.set(usize::from(entry) * 2 + 1, Slot { id: u64::from(next), tag: 0 });
    }

    pub(crate) fn set_number(&mut self, number: SrqNumber) {
        self.number = number;
    }

    /// The queue's number.
    #[inline]
    pub fn number(&self) -> SrqNumber {
        self.number
    }

    /// Receives that fit at once.
    pub fn capacity(&self) -> u16 {
        self.mask
    }

    /// SGEs that a receive may have.
    pub fn max_sge(&self) -> u8 {
        self.max_sge
    }

    /// Receives posted and not yet retired, those that a QP has taken and not yet completed among them.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Completions that named an entry which is not posted. Never more than zero with an honest device.
    pub fn spurious_completions(&self) -> u32 {
        self.spurious
    }

    /// Writes a receive; [`Srq::ring`] hands it to the device. SGEs of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, sges: &[Sge], wr_id: impl Into<WrId>) -> Result<(), PostError> {
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        if self.outstanding >= self.mask {
            return Err(PostError::Full);
        }
        let entry = usize::from(self.head);
        let first = entry << self.log_stride;
        // The next segment comes first.
        put_receive(&mut self.ring, first + 1, (1 << self.log_stride) - 1, self.terminator, sges)?;
        let WrId { id, tag } = wr_id.into();
        self.slots.set(entry * 2, Slot { id, tag });
        let next = self.slots.get(entry * 2 + 1).id;
        self.slots.set(entry * 2 + 1, Slot { id: next | POSTED, tag: 0 });
        self.head = next as u16;
        self.posted = self.posted.wrapping_add(1);
        self.outstanding += 1;
        Ok(())
    }

    /// Hands everything posted to the device: once for any number of posts.
    #[inline]
    pub fn ring(&mut self) {
        barrier::publish();
        self.record.store_first(u32::from(self.posted));
    }

    /// The name of the receive that `cqe` reports done, which stays posted.
    #[inline]
    pub fn peek(&self, cqe: &Cqe<'_>) -> Option<WrId> {
        let entry = cqe.wqe_counter();
        if cqe.is_send() || entry > self.mask || self.slots.get(usize::from(entry) * 2 + 1).id & POSTED == 0 {
            return None;
        }
        let Slot { id, tag } = self.slots.get(usize::from(entry) * 2);
        Some(WrId { id, tag })
    }

    /// Retires the receive that `cqe`, of a QP that takes from this queue, reports done. They may come in any order.
    ///
    /// `None` (and a count in [`Srq::spurious_completions`]) if `cqe` names no posted receive.
    #[inline]
    pub fn retire(&mut self, cqe: &Cqe<'_>) -> Option<Completion> {
        let Some(wr_id) = self.peek(cqe) else {
            self.spurious = self.spurious.saturating_add(1);
            return None;
        };
        let entry = cqe.wqe_counter();
        // The freed entry keeps its old successor, which is not looked at before something is linked after it.
        self.link(entry, self.tail);
        self.link(self.tail, entry);
        self.tail = entry;
        self.outstanding -= 1;
        Some(Completion::new(cqe, wr_id, 1))
    }
}

#[cfg(test)]
mod tests;
