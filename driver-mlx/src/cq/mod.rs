//! Completion queues: polling, looking ahead, arming.

mod cqe;

pub use cqe::{CompletionError, CompletionKind, CqError, Cqe, CqeCopy, Datagram, NetworkHeader};

use crate::barrier;
use crate::dma::DmaMemory;
use crate::generation::{Age, Generation, Object};
use crate::platform::{Bar, DoorbellRegister};
use crate::ring::{DoorbellRecord, Entry, EntryRing, Step};
use crate::types::{CqNumber, QpNumber};
use core::sync::atomic::{AtomicU64, Ordering};
use mlx5_prm::datapath::{self, CqArm, CqeOpcode};

/// The consumer index is written back to memory after this many completions.
const BATCH: u32 = EntryRing::BATCH;
/// log2 of the ring that holds `entries` completions; `None` if there is no such ring.
pub(crate) fn log_size_for(entries: u32) -> Option<u32> {
    let ring = entries.max(1).checked_add(BATCH)?.checked_next_power_of_two()?;
    Some(ring.ilog2().max(6))
}

/// The bits of a CQE's last byte in which common completions differ, beside the owner bit: the opcode of an arrival by a send (that of
/// a request done is 0), and whether its sender asked for an event.
const COMMON: u8 = CqeOpcode::RESP_SEND.0 << 4 | 1 << 1;

/// Completions that fit a ring of `1 << log_size` entries: the device may be told of a batch too late.
pub(crate) fn capacity(log_size: u32) -> u32 {
    (1 << log_size) - BATCH
}

/// A completion queue. Owns all it needs to be polled and armed, apart from the [`Hca`](crate::Hca) that made it.
// In this order, so that what a completion touches lies together.
#[derive(Debug)]
#[repr(C)]
pub struct Cq<B: Bar> {
    ring: EntryRing,
    /// Consumer index that the device was told last (the low 24 bits): of an entry in the current batch, so that the place in the batch
    /// gives the rest.
    recorded: u32,
    /// The owner bit of the next entry once it is there.
    owner: u8,
    record: DoorbellRecord,
    /// Arms the queue.
    register: B::DoorbellRegister,
    arm_sn: u32,
    number: CqNumber,
    errors: u32,
    /// The ring, and the doorbell record.
    memory: [DmaMemory; 2],
    eq: u8,
    generation: Generation,
}

/// A ring of entries that the device has not written yet, the first at index `first`. None has the owner bit that it will be written with.
pub(crate) fn empty_ring(memory: DmaMemory, first: u32) -> Option<EntryRing> {
    let mut ring = EntryRing::new(memory)?;
    for index in (0..ring.len()).map(|ahead| first.wrapping_add(ahead)) {
        let mut words = [0; 8];
        words[7] = u64::from(datapath::CQE_INIT_OP_OWN ^ owner(index, &ring)).to_be();
        ring.put(index, words);
    }
    barrier::publish();
    Some(ring)
}

/// The owner bit of an entry at `index` once it is there.
fn owner(index: u32, ring: &EntryRing) -> u8 {
    (index / ring.len()) as u8 & 1
}

/// An entry as it lies in memory, with the owner bit as an entry at `index` of this ring has it.
fn moved(entry: &[AtomicU64; 8], index: u32, ring: &EntryRing) -> [u64; 8] {
    let mut words = [0; 8];
    for (to, word) in words.iter_mut().zip(entry) {
        *to = word.load(Ordering::Relaxed);
    }
    words[7] = (u64::from_be(words[7]) & !1 | u64::from(owner(index, ring))).to_be();
    words
}

impl<B: Bar> Object for Cq<B> {
    type Number = CqNumber;

    fn made(&self, now: Generation) -> Age {
        self.generation.made(now)
    }

    fn name(&self) -> CqNumber {
        self.number
    }
}

impl<B: Bar> Cq<B> {
    /// A queue over a ring and a doorbell record, which reports to the completion event queue `eq`.
    pub(crate) fn new(
        [memory, record]: [DmaMemory; 2],
        register: B::DoorbellRegister,
        eq: u8,
        generation: Generation,
    ) -> Option<Self> {
        let mut cq = Self {
            ring: empty_ring(memory, 0)?,
            owner: 0,
            recorded: 0,
            record: DoorbellRecord::new(record)?,
            register,
            arm_sn: 0,
            number: CqNumber::new(0),
            errors: 0,
            memory: [memory, record],
            eq,
            generation,
        };
        cq.record.store_first(0);
        cq.record.store_second(datapath::CQ_DBR_NEVER_ARMED);
        barrier::publish();
        Some(cq)
    }

    /// The ring and the doorbell record.
    pub(crate) fn memory(&self) -> [DmaMemory; 2] {
        self.memory
    }

    /// Index of the completion event queue that it reports to.
    pub(crate) fn eq(&self) -> u8 {
        self.eq
    }

    pub(crate) fn set_number(&mut self, number: CqNumber) {
        self.number = number;
    }

    /// The queue's number.
    #[inline]
    pub fn number(&self) -> CqNumber {
        self.number
    }

    /// Completions that fit at once.
    pub fn capacity(&self) -> u32 {
        self.ring.len() - BATCH
    }

    /// Impossible entries seen so far.
    pub fn errors(&self) -> u32 {
        self.errors
    }

    /// Whether no completion is there now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entry(self.ci()).is_none()
    }

    /// Consumer index.
    #[inline]
    pub(crate) fn ci(&self) -> u32 {
        (self.recorded & !(BATCH - 1)) + self.ring.place_in_batch()
    }

    /// The entry at `index`, with its last quadword in processor order, if the device has handed it over.
    #[inline]
    fn entry(&self, index: u32) -> Option<(&[AtomicU64; 8], u64)> {
        let entry = self.ring.entry(index);
        let tail = u64::from_be(entry[7].load(Ordering::Relaxed));
        let lap = index / self.ring.len();
        let ours = (tail as u32 ^ lap) & 1 == 0 && (tail as u8) >> 4 != CqeOpcode::INVALID.0;
        ours.then_some((entry, tail))
    }

    /// Takes the next completion and returns what `take` makes of its entry, which is read where it lies; `None` if there is none yet.
    /// One call consumes at most one entry.
    ///
    /// # Errors
    /// [`CqError`]: the entry is not one this driver can have caused. It has been consumed.
    #[inline]
    pub fn poll<T>(&mut self, take: impl FnOnce(&Cqe<'_>) -> T) -> Result<Option<T>, CqError> {
        let entry = self.ring.current();
        let tail = u64::from_be(self.ring.at(entry)[7].load(Ordering::Relaxed));
        let op_own = tail as u8;
        let unlike = (op_own ^ self.owner) & !COMMON;
        if unlike != 0 {
            if unlike & 1 != 0 || op_own >> 4 == CqeOpcode::INVALID.0 {
                return Ok(None);
            }
            if !cqe::is_possible(op_own) {
                return Err(self.refuse(op_own));
            }
        }
        barrier::acquire();
        // First the step, then the look, so that callers have nothing left to do after it. The device does not write to the entry
        // before another lap: it has never more completions outstanding than the ring without a batch.
        self.step(entry);
        Ok(Some(take(&Cqe::new(self.ring.at(entry), tail))))
    }

    /// As [`Cq::poll`] of a common completion: of a request that succeeded, or a message that came by a send without more. Any other, and
    /// one for which `take` returns `None`, is left in its place: `Some(None)`. `None` if the device has not written the entry.
    /// For callers whose cold path polls everything else.
    #[inline(always)]
    pub fn poll_common<T>(&mut self, take: impl FnOnce(&Cqe<'_>) -> Option<T>) -> Option<Option<T>> {
        let entry = self.ring.current();
        let tail = u64::from_be(self.ring.at(entry)[7].load(Ordering::Relaxed));
        let op_own = tail as u8;
        let unlike = (op_own ^ self.owner) & !COMMON;
        if unlike != 0 {
            let is_there = unlike & 1 == 0;
            return is_there.then_some(None);
        }
        barrier::acquire();
        let taken = take(&Cqe::new(self.ring.at(entry), tail));
        if taken.is_some() {
            // Read again, because `take` needs all registers.
            self.step(self.ring.current());
        }
        Some(taken)
    }

    /// Goes to the entry after this one, the current one.
    #[inline]
    fn step(&mut self, entry: Entry) {
        let step = self.ring.step(entry);
        if step != Step::Inside {
            self.turn(step);
        }
    }

    /// Consumes an entry that ends with this byte and cannot be.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, op_own: u8) -> CqError {
        self.step(self.ring.current());
        self.errors = self.errors.saturating_add(1);
        cqe::refusal(op_own)
    }

    /// The end of a batch, which may be the end of the ring.
    #[inline]
    fn turn(&mut self, step: Step) {
        if step == Step::Lap {
            self.owner ^= 1;
        }
        self.report((self.recorded | (BATCH - 1)).wrapping_add(1));
    }

    /// Goes on at consumer index `ci`.
    fn seek(&mut self, ci: u32) {
        self.ring.seek(ci);
        self.owner = owner(ci, &self.ring);
        self.report(ci);
    }

    /// The completion `ahead` entries after the next one (0 for the next), left in place; `None` if there is none there yet.
    ///
    /// # Errors
    /// [`CqError`] as [`Cq::poll`] will return it.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Result<Option<Cqe<'_>>, CqError> {
        if ahead >= self.ring.len() {
            return Ok(None);
        }
        let Some((entry, tail)) = self.entry(self.ci().wrapping_add(ahead)) else { return Ok(None) };
        if !cqe::is_possible(tail as u8) {
            return Err(cqe::refusal(tail as u8));
        }
        barrier::acquire();
        Ok(Some(Cqe::new(entry, tail)))
    }

    /// Tells the device how far completions have been taken. [`Cq::poll`] does it by itself, in batches.
    #[inline]
    pub fn acknowledge(&mut self) {
        self.report(self.ci());
    }

    #[inline]
    fn report(&mut self, ci: u32) {
        self.recorded = ci;
        // The entries have been read; now the device may write there again.
        barrier::publish();
        self.record.store_first(ci & 0xff_ffff);
    }

    /// Asks for one event at the next completion (or, with `solicited_only`, the next that asks for one or failed). If a
    /// completion is there already, the event comes at once; poll once more after arming.
    #[inline]
    pub fn arm(&mut self, solicited_only: bool) {
        let what = if solicited_only { CqArm::Solicited } else { CqArm::Next };
        self.acknowledge();
        let value = datapath::cq_arm_value(self.arm_sn, what, self.recorded);
        self.record.store_second(value);
        barrier::before_doorbell();
        self.register.ring(datapath::cq_doorbell(value, self.number.get()));
        barrier::full();
    }

    /// The event that [`Cq::arm`] asked for has arrived ([`Hca::poll_completions`](crate::Hca::poll_completions) named this
    /// queue): the next arming counts as new.
    #[inline]
    pub fn notified(&mut self) {
        self.arm_sn = self.arm_sn.wrapping_add(1) & 3;
    }

    /// Goes on in the ring that the device has changed to. What it wrote to the old one, up to the entry that says so, moves: that entry
    /// counts in both rings, so each of the others moves one on. Gives the memory that is free now; `None` if the device has not said
    /// that it changed.
    pub(crate) fn change_ring(&mut self, mut ring: EntryRing, memory: DmaMemory) -> Option<DmaMemory> {
        let ci = self.ci();
        let mut index = ci;
        loop {
            if index.wrapping_sub(ci) >= self.ring.len() {
                return None;
            }
            let (entry, tail) = self.entry(index)?;
            if tail as u8 >> 4 == CqeOpcode::RESIZE_CQ.0 {
                break;
            }
            barrier::acquire();
            index = index.wrapping_add(1);
            let words = moved(entry, index, &ring);
            ring.put(index, words);
        }
        self.ring = ring;
        self.seek(ci.wrapping_add(1));
        let [ring, _] = &mut self.memory;
        Some(core::mem::replace(ring, memory))
    }

    /// Removes the completions of a QP that was destroyed or reset, and gives their number.
    pub fn sweep(&mut self, qpn: QpNumber) -> u32 {
        let ci = self.ci();
        let mut end = ci;
        while end.wrapping_sub(ci) < self.ring.len() && self.entry(end).is_some() {
            end = end.wrapping_add(1);
        }
        barrier::acquire();
        // From the newest entry back: those that stay move up over those that go.
        let mut removed = 0;
        let mut index = end;
        while index != ci {
            index = index.wrapping_sub(1);
            let entry = self.ring.entry(index);
            if cqe::qpn(u64::from_be(entry[7].load(Ordering::Relaxed))) == qpn {
                removed += 1;
            } else if removed > 0 {
                let to = index.wrapping_add(removed);
                let words = moved(entry, to, &self.ring);
                self.ring.put(to, words);
            }
        }
        self.seek(ci.wrapping_add(removed));
        removed
    }
}

#[cfg(test)]
mod tests;
