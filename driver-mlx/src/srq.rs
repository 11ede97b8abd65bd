//! Shared receive queues: receives that many QPs take from.
//!
//! The device takes entries along a linked list. Which QP takes one, and when it completes, is not known beforehand, so entries come
//! back in any order: a completed one is linked behind the last free one. One entry is always free, the one that the device will find
//! at the end of the list.

use crate::barrier;
use crate::cq::Completion;
use crate::dma::DmaMemory;
use crate::ring::{BLOCK_UNITS, DoorbellRecord, Units};
use crate::types::{Sge, SrqNumber};
use crate::wqe::PostError;
use mlx5_prm::datapath::{DATA_LKEY_TERMINATOR, INLINE_SEG};

/// In a slot's second quadword: the entry is posted.
const POSTED: u64 = 1 << 32;

/// How the ring, the slots and the doorbell record of a shared receive queue share one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqGeometry {
    /// log2 of the entries; one of them is never posted.
    pub(crate) log_size: u32,
    /// log2 of the 16-byte units of an entry: a next segment, then the pieces.
    pub(crate) log_stride: u32,
    /// Bytes of the ring.
    pub(crate) ring_bytes: usize,
    /// Offset of the doorbell record.
    pub(crate) record: usize,
    /// Offset of the slots.
    pub(crate) slots: usize,
    /// Bytes of everything.
    pub(crate) total: usize,
}

impl SrqGeometry {
    /// Sizes for these limits; `None` if they do not fit the 16-bit counters.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Option<Self> {
        let units = (max_sge.max(1) as usize).checked_add(1)?.checked_next_power_of_two()?;
        let entries =
            (max_wr.max(1) as usize).checked_add(1)?.max(BLOCK_UNITS).checked_next_power_of_two()?;
        if entries > 1 << 15 || units > 1 << 7 {
            return None;
        }
        let ring_bytes = entries * units * 16;
        let record = ring_bytes.next_multiple_of(64);
        let slots = record + 64;
        Some(Self {
            log_size: entries.ilog2(),
            log_stride: units.ilog2(),
            ring_bytes,
            record,
            slots,
            total: slots + entries * 16,
        })
    }
}

/// A shared receive queue. Owns all it needs for posting and retiring, apart from the [`Hca`](crate::Hca) that made it.
#[derive(Debug)]
pub struct Srq {
    ring: Units,
    /// One unit for each entry: cookie; in the second quadword the entry after it (bits 15:0) and whether it is posted.
    slots: Units,
    record: DoorbellRecord,
    /// Next entry to post.
    head: u16,
    /// Last free entry: what completes is linked behind it.
    tail: u16,
    /// Entries ever posted, as the device counts.
    posted: u16,
    outstanding: u16,
    /// Entries less one.
    mask: u16,
    log_stride: u8,
    max_sge: u8,
    number: SrqNumber,
    spurious: u32,
    pub(crate) memory: DmaMemory,
}

impl Srq {
    /// Ring and slots over `memory`, all free.
    pub(crate) fn new(memory: DmaMemory, geometry: &SrqGeometry, max_sge: u8) -> Option<Self> {
        let entries = 1usize << geometry.log_size;
        let mut srq = Self {
            ring: Units::new(memory.slice(0, geometry.ring_bytes)?)?,
            slots: Units::new(memory.slice(geometry.slots, entries * 16)?)?,
            record: DoorbellRecord::new(memory.slice(geometry.record, 8)?)?,
            head: 0,
            tail: (entries - 1) as u16,
            posted: 0,
            outstanding: 0,
            mask: (entries - 1) as u16,
            log_stride: geometry.log_stride as u8,
            max_sge,
            number: SrqNumber::new(0),
            spurious: 0,
            memory,
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

    /// Makes `next` the entry after `entry`, which is free.
    fn link(&mut self, entry: u16, next: u16) {
        self.ring.put(usize::from(entry) << self.log_stride, u64::from(next) << 32, 0);
        self.slots.put_native(usize::from(entry), 0, u64::from(next));
    }

    pub(crate) fn set_number(&mut self, number: SrqNumber) {
        self.number = number;
    }

    /// The queue's number.
    #[must_use]
    #[inline]
    pub fn number(&self) -> SrqNumber {
        self.number
    }

    /// Receives that fit at once.
    #[must_use]
    pub fn capacity(&self) -> u16 {
        self.mask
    }

    /// Pieces of memory that a receive may have.
    #[must_use]
    pub fn max_sge(&self) -> u8 {
        self.max_sge
    }

    /// Receives posted and not yet retired, those that a QP has taken and not yet completed among them.
    #[must_use]
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Completions that named an entry which is not posted. Never more than zero with an honest device.
    #[must_use]
    pub fn spurious_completions(&self) -> u32 {
        self.spurious
    }

    /// Writes a receive; [`Srq::ring`] hands it to the device. Pieces of length 0 are left out.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, sges: &[Sge], cookie: u64) -> Result<(), PostError> {
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        if self.outstanding >= self.mask {
            return Err(PostError::Full);
        }
        let entry = usize::from(self.head);
        let first = (entry << self.log_stride) + 1;
        let mut unit = first;
        for sge in sges {
            if sge.length == 0 {
                continue;
            }
            if sge.length & INLINE_SEG != 0 {
                return Err(PostError::TooLong);
            }
            self.ring.put(unit, u64::from(sge.length) << 32 | u64::from(sge.lkey.get()), sge.address);
            unit += 1;
        }
        if unit - first + 1 < 1 << self.log_stride {
            self.ring.put(unit, u64::from(DATA_LKEY_TERMINATOR), 0);
        }
        let (_, meta) = self.slots.get_native(entry);
        self.slots.put_native(entry, cookie, meta | POSTED);
        self.head = meta as u16 & self.mask;
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

    /// The cookie of the receive that `completion` is about, which stays posted.
    #[must_use]
    #[inline]
    pub fn cookie(&self, completion: &Completion) -> Option<u64> {
        let entry = completion.wqe_counter();
        if completion.is_send() || entry > self.mask || self.outstanding == 0 {
            return None;
        }
        let (cookie, meta) = self.slots.get_native(usize::from(entry));
        (meta & POSTED != 0).then_some(cookie)
    }

    /// Frees the entry that `completion`, of a QP that takes from this queue, reports done and gives the cookie of its receive.
    /// Completions may come in any order.
    ///
    /// `None` (and a count in [`Srq::spurious_completions`]) if the completion names no posted receive.
    #[inline]
    pub fn retire(&mut self, completion: &Completion) -> Option<u64> {
        let cookie = self.cookie(completion);
        if cookie.is_none() {
            self.spurious = self.spurious.saturating_add(1);
            return None;
        }
        let entry = completion.wqe_counter();
        // The freed entry keeps its old successor, which is not looked at before something is linked behind it.
        self.link(entry, self.tail);
        self.link(self.tail, entry);
        self.tail = entry;
        self.outstanding -= 1;
        cookie
    }
}

#[cfg(test)]
mod tests;
