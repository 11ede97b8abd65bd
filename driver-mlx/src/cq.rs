//! Completion queues: polling, looking ahead, arming.

mod completion;
mod receive;

pub(crate) use completion::{CompletedWork, QpnInEntry};
pub use completion::{Completion, CompletionError, CompletionKind, CqError, SendCompletion};

use crate::barrier;
use crate::dma::DmaMemory;
use crate::platform::Bar;
use crate::ring::{BLOCK_UNITS as CQE_UNITS, DoorbellRecord, Units};
use crate::types::{CqNumber, QpNumber};
use core::sync::atomic::{AtomicU64, Ordering};
use mlx5_prm::datapath::{self, CqArm, CqeFormat, CqeOpcode};
use mlx5_prm::init_seg::uar;

/// The consumer index is written back to memory after this many completions, or when the queue is found empty.
const BATCH: u32 = 16;

/// log2 of the ring that holds `entries` completions; `None` if there is no such ring.
pub(crate) fn log_size_for(entries: u32) -> Option<u32> {
    let ring = entries.max(1).checked_add(BATCH)?.checked_next_power_of_two()?;
    Some(ring.ilog2().max(6))
}

/// Completions that fit a ring of `1 << log_size` entries: the device may be told of a batch too late.
pub(crate) fn capacity(log_size: u32) -> u32 {
    (1 << log_size) - BATCH
}

/// A completion queue. Owns all it needs to be polled and armed, apart from the [`Hca`](crate::Hca) that made it.
#[derive(Debug)]
pub struct Cq<B: Bar> {
    ring: Units,
    record: DoorbellRecord,
    bar: B,
    /// Consumer index, all 32 bits; the device is told the low 24.
    ci: u32,
    recorded: u32,
    /// The owner bit of the next entry once it is there.
    owner: u8,
    log_size: u32,
    /// Offset of the arm register in BAR0.
    arm_register: usize,
    arm_sn: u32,
    number: CqNumber,
    errors: u32,
    pub(crate) memory: DmaMemory,
    /// What it was made over, once it has another ring: the doorbell record stays there.
    pub(crate) first_memory: Option<DmaMemory>,
}

/// A ring of entries that the device has not written yet.
pub(crate) fn empty_ring(memory: DmaMemory) -> Option<Units> {
    let mut ring = Units::new(memory)?;
    for index in 0..ring.len() {
        let last = index % CQE_UNITS == CQE_UNITS - 1;
        ring.put(index, 0, if last { u64::from(datapath::CQE_INIT_OP_OWN) } else { 0 });
    }
    barrier::publish();
    Some(ring)
}

impl<B: Bar> Cq<B> {
    /// A queue over `memory`: `64 << log_size` bytes of entries, then the doorbell record.
    pub(crate) fn new(memory: DmaMemory, log_size: u32, bar: B, uar_offset: usize) -> Option<Self> {
        let bytes = 64usize << log_size;
        let mut cq = Self {
            ring: empty_ring(memory.slice(0, bytes)?)?,
            record: DoorbellRecord::new(memory.slice(bytes, 8)?)?,
            bar,
            ci: 0,
            recorded: 0,
            owner: 0,
            log_size,
            arm_register: uar_offset + uar::CQ_DOORBELL,
            arm_sn: 0,
            number: CqNumber::new(0),
            errors: 0,
            memory,
            first_memory: None,
        };
        cq.record.store_first(0);
        cq.record.store_second(datapath::CQ_DBR_NEVER_ARMED);
        barrier::publish();
        Some(cq)
    }

    pub(crate) fn set_number(&mut self, number: CqNumber) {
        self.number = number;
    }

    /// The queue's number.
    #[must_use]
    #[inline]
    pub fn number(&self) -> CqNumber {
        self.number
    }

    /// Completions that fit at once.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        capacity(self.log_size)
    }

    /// Impossible entries seen so far.
    #[must_use]
    pub fn errors(&self) -> u32 {
        self.errors
    }

    /// The entry at `index`, with its last quadword in processor order, if the device has handed it over.
    #[inline(always)]
    fn entry(&self, index: u32) -> Option<(&[AtomicU64; 8], u64)> {
        let entry = self.ring.block(index as usize);
        let tail = u64::from_be(entry[7].load(Ordering::Relaxed));
        let lap = index >> self.log_size;
        let ours = (tail as u32 ^ lap) & 1 == 0 && (tail as u8) >> 4 != CqeOpcode::INVALID.0;
        ours.then_some((entry, tail))
    }

    fn decode(entry: &[AtomicU64; 8], tail: u64) -> Result<Completion, CqError> {
        barrier::acquire();
        let op_own = tail as u8;
        let kind = match CqeOpcode(op_own >> 4) {
            CqeOpcode::REQ => CompletionKind::Send,
            CqeOpcode::RESP_WR_IMM => CompletionKind::ReceiveWriteImm,
            CqeOpcode::RESP_SEND => CompletionKind::Receive,
            CqeOpcode::RESP_SEND_IMM => CompletionKind::ReceiveImm,
            CqeOpcode::RESP_SEND_INV => CompletionKind::ReceiveInval,
            CqeOpcode::REQ_ERR => CompletionKind::SendError,
            CqeOpcode::RESP_ERR => CompletionKind::ReceiveError,
            other => return Err(CqError::UnexpectedOpcode(other.0)),
        };
        let [_, _, w10, w18, w20, w28, w30, _] = entry;
        let [w10, w18, w20, w28, w30] = [w10, w18, w20, w28, w30].map(|word| word.load(Ordering::Relaxed));
        let mut inline = [0; 2];
        match datapath::cqe_format(op_own) {
            CqeFormat::NO_INLINE_DATA => {}
            // Whether the QP asked for it is known where the receive is retired.
            CqeFormat::INLINE_DATA32_SEG
                if matches!(
                    kind,
                    CompletionKind::Receive | CompletionKind::ReceiveImm | CompletionKind::ReceiveInval
                ) =>
            {
                inline = [entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed)];
            }
            other => return Err(CqError::UnexpectedFormat(other.0)),
        }
        let failed = matches!(kind, CompletionKind::SendError | CompletionKind::ReceiveError);
        let at_28 = if failed { w30 } else { w28 };
        Ok(Completion { kind, at_20: w20, at_28, at_38: tail.to_be(), at_10: w10, at_18: w18, inline })
    }

    /// Takes the next completion; `None` if there is none yet. One call consumes at most one entry.
    ///
    /// # Errors
    /// [`CqError`]: the entry is not one this driver can have caused. It has been consumed.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>, CqError> {
        match self.take_sent::<true>() {
            Some((sent, at_28)) => Ok(Some(Completion { at_28, ..sent.into() })),
            None => self.poll_other(),
        }
    }

    /// Takes the next completion if it is a success of a send queue, the usual case where much is sent; `None` if not, or if there is
    /// none: [`Cq::poll`] tells.
    #[inline(always)]
    pub fn poll_send(&mut self) -> Option<SendCompletion> {
        self.take_sent::<false>().map(|(sent, _)| sent)
    }

    /// The same, with the quadword that has the number of bytes, if asked for.
    #[inline(always)]
    fn take_sent<const LENGTH: bool>(&mut self) -> Option<(SendCompletion, u64)> {
        let ci = self.ci;
        let entry = self.ring.block(ci as usize);
        let at_38 = entry[7].load(Ordering::Relaxed);
        // It has no bit set beside the owner's.
        if u64::from_be(at_38) as u8 != self.owner {
            return None;
        }
        barrier::acquire();
        let at_20 = entry[4].load(Ordering::Relaxed);
        let at_28 = if LENGTH { entry[5].load(Ordering::Relaxed) } else { 0 };
        self.advance(ci);
        Some((SendCompletion { at_20, at_38 }, at_28))
    }

    /// What is not a success of the send queue, or not there yet.
    #[inline(never)]
    fn poll_other(&mut self) -> Result<Option<Completion>, CqError> {
        let Some((entry, tail)) = self.entry(self.ci) else {
            if self.recorded != self.ci {
                self.acknowledge();
            }
            return Ok(None);
        };
        let result = Self::decode(entry, tail);
        self.advance(self.ci);
        match result {
            Ok(completion) => Ok(Some(completion)),
            Err(error) => {
                self.errors = self.errors.saturating_add(1);
                Err(error)
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self, ci: u32) {
        let next = ci.wrapping_add(1);
        self.ci = next;
        if next & (BATCH - 1) == 0 {
            self.turn();
        }
    }

    /// The end of a batch, which may be the end of the ring: it has a multiple of [`BATCH`] entries.
    #[inline(always)]
    fn turn(&mut self) {
        self.owner = (self.ci >> self.log_size) as u8 & 1;
        self.acknowledge();
    }

    /// The completion `ahead` entries after the next one (0 for the next), left in place; `None` if there is none there yet.
    ///
    /// # Errors
    /// [`CqError`] as [`Cq::poll`] will give it.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Result<Option<Completion>, CqError> {
        if ahead >> self.log_size != 0 {
            return Ok(None);
        }
        let index = self.ci.wrapping_add(ahead);
        match self.entry(index) {
            Some((entry, tail)) => Self::decode(entry, tail).map(Some),
            None => Ok(None),
        }
    }

    /// Tells the device how far completions have been taken. [`Cq::poll`] does it by itself, in batches.
    #[inline]
    pub fn acknowledge(&mut self) {
        self.recorded = self.ci;
        // The entries have been read; now the device may write there again.
        barrier::publish();
        self.record.store_first(self.ci & 0xff_ffff);
    }

    /// Asks for one event at the next completion (or, with `solicited_only`, the next that asks for one or failed). If a
    /// completion is there already, the event comes at once; poll once more after arming.
    #[inline]
    pub fn arm(&mut self, solicited_only: bool) {
        let what = if solicited_only { CqArm::Solicited } else { CqArm::Next };
        self.acknowledge();
        let value = datapath::cq_arm_value(self.arm_sn, what, self.ci);
        self.record.store_second(value);
        barrier::before_doorbell();
        self.bar.write64(self.arm_register, datapath::cq_doorbell(value, self.number.get()));
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
    pub(crate) fn change_ring(
        &mut self,
        mut ring: Units,
        memory: DmaMemory,
        log_size: u32,
    ) -> Option<Option<DmaMemory>> {
        let mut index = self.ci;
        loop {
            if index.wrapping_sub(self.ci) >> self.log_size != 0 {
                return None;
            }
            let (_, tail) = self.entry(index)?;
            if tail as u8 >> 4 == CqeOpcode::RESIZE_CQ.0 {
                break;
            }
            barrier::acquire();
            let from = index as usize * CQE_UNITS;
            let to_index = index.wrapping_add(1);
            let to = to_index as usize * CQE_UNITS;
            for part in 0..CQE_UNITS - 1 {
                let (first, second) = self.ring.get(from + part);
                ring.put(to + part, first, second);
            }
            let owner = u64::from(to_index >> log_size) & 1;
            let (first, _) = self.ring.get(from + 3);
            ring.put(to + 3, first, tail & !1 | owner);
            index = to_index;
        }
        self.ring = ring;
        self.log_size = log_size;
        self.ci = self.ci.wrapping_add(1);
        let old = core::mem::replace(&mut self.memory, memory);
        self.turn();
        Some(match self.first_memory {
            None => {
                self.first_memory = Some(old);
                None
            }
            Some(_) => Some(old),
        })
    }

    /// Removes the completions of a QP that was destroyed or reset, and gives their number.
    pub fn sweep(&mut self, qpn: QpNumber) -> u32 {
        let mut end = self.ci;
        while end.wrapping_sub(self.ci) >> self.log_size == 0 && self.entry(end).is_some() {
            end = end.wrapping_add(1);
        }
        barrier::acquire();
        // From the newest entry back: those that stay move up over those that go.
        let mut removed = 0;
        let mut index = end;
        while index != self.ci {
            index = index.wrapping_sub(1);
            let unit = index as usize * CQE_UNITS;
            let tail = self.ring.second(unit + 3);
            if QpNumber::new((tail >> 32) as u32) == qpn {
                removed += 1;
            } else if removed > 0 {
                let to_index = index.wrapping_add(removed);
                let to = to_index as usize * CQE_UNITS;
                for part in 0..CQE_UNITS - 1 {
                    let (first, second) = self.ring.get(unit + part);
                    self.ring.put(to + part, first, second);
                }
                let owner = u64::from(to_index >> self.log_size) & 1;
                let (first, _) = self.ring.get(unit + 3);
                self.ring.put(to + 3, first, tail & !1 | owner);
            }
        }
        self.ci = self.ci.wrapping_add(removed);
        self.turn();
        removed
    }
}

#[cfg(test)]
mod tests;
