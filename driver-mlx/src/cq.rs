//! Completion queues: polling, looking ahead, arming.

use crate::barrier;
use crate::config::INLINE_RECEIVE;
use crate::dma::DmaSlice;
use crate::platform::Bar;
use crate::ring::{BLOCK_UNITS as CQE_UNITS, DoorbellRecord, Units};
use crate::types::{CqNumber, Lid, PKey, QpNumber, RKey};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use mlx5_prm::datapath::{self, CqArm, CqeFormat, CqeOpcode};
use mlx5_prm::init_seg::uar;
use mlx5_prm::status::CqeSyndrome;

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

/// What a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum CompletionKind {
    /// A work request of the send queue is done, and all before it.
    Send = CqeOpcode::REQ.0,
    /// A peer's RDMA write with immediate arrived; the receive's own memory was not used.
    ReceiveWriteImm = CqeOpcode::RESP_WR_IMM.0,
    /// A peer's send arrived.
    Receive = CqeOpcode::RESP_SEND.0,
    /// A peer's send with immediate arrived.
    ReceiveImm = CqeOpcode::RESP_SEND_IMM.0,
    /// A peer's send with invalidate arrived.
    ReceiveInval = CqeOpcode::RESP_SEND_INV.0,
    /// A work request of the send queue failed.
    SendError = CqeOpcode::REQ_ERR.0,
    /// A work request of the receive queue failed.
    ReceiveError = CqeOpcode::RESP_ERR.0,
}

/// One completion, as the device wrote it; the accessors decode.
#[derive(Clone, Copy)]
pub struct Completion {
    /// Quadwords of the CQE from offset 0x10 on, big-endian as in memory. With inline data, the one from 0x00 on takes the place of
    /// the time stamp.
    words: [u64; 6],
    /// The quadword from offset 0x08 on of a CQE with inline data, else 0.
    inline: u64,
    kind: CompletionKind,
}

/// Places in [`Completion::words`], by offset in the CQE.
const AT_10: usize = 0;
const AT_18: usize = 1;
const AT_20: usize = 2;
const AT_28: usize = 3;
const AT_30: usize = 4;
const AT_38: usize = 5;

impl Completion {
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_be(self.words[at])
    }

    /// What happened.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> CompletionKind {
        self.kind
    }

    /// Whether it belongs to the send queue (else to the receive queue).
    #[must_use]
    #[inline]
    pub fn is_send(&self) -> bool {
        matches!(self.kind, CompletionKind::Send | CompletionKind::SendError)
    }

    /// Why the work request failed, `None` if it did not.
    #[must_use]
    #[inline]
    pub fn error(&self) -> Option<CompletionError> {
        matches!(self.kind, CompletionKind::SendError | CompletionKind::ReceiveError).then(|| {
            CompletionError {
                syndrome: CqeSyndrome(self.word(AT_30) as u8),
                vendor: (self.word(AT_30) >> 8) as u8,
            }
        })
    }

    /// What the owner gave as [`QpConfig::user_index`](crate::QpConfig::user_index).
    #[must_use]
    #[inline]
    pub fn user_index(&self) -> u32 {
        (self.word(AT_20) >> 32) as u32 & 0xff_ffff
    }

    /// The QP.
    #[must_use]
    #[inline]
    pub fn qpn(&self) -> QpNumber {
        QpNumber::new((self.word(AT_38) >> 32) as u32)
    }

    /// Bytes received (for datagrams with the 40 bytes of the GRH area), or read by an RDMA read. As the device claims: the
    /// caller compares it with what it posted.
    #[must_use]
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.word(AT_28) as u32
    }

    /// Immediate data as the number that the peer's network-order bytes spell.
    #[must_use]
    #[inline]
    pub fn imm(&self) -> u32 {
        self.word(AT_20) as u32
    }

    /// The key that the peer invalidated, if the completion is of that kind.
    #[must_use]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        (self.kind == CompletionKind::ReceiveInval).then(|| RKey::new(self.word(AT_20) as u32))
    }

    /// P_Key of a received datagram without immediate (UD, GSI).
    #[must_use]
    #[inline]
    pub fn pkey(&self) -> PKey {
        PKey::new(self.word(AT_20) as u16)
    }

    /// Sender's QP number of a datagram.
    #[must_use]
    #[inline]
    pub fn src_qpn(&self) -> QpNumber {
        QpNumber::new((self.word(AT_18) >> 32) as u32)
    }

    /// Sender's LID of a datagram.
    #[must_use]
    #[inline]
    pub fn slid(&self) -> Lid {
        Lid::new(self.word(AT_10) as u16)
    }

    /// Service level of a datagram.
    #[must_use]
    #[inline]
    pub fn sl(&self) -> u8 {
        (self.word(AT_18) >> 56) as u8 & 0xf
    }

    /// Low bits of the LID that a datagram was sent to.
    #[must_use]
    #[inline]
    pub fn path_bits(&self) -> u8 {
        (self.word(AT_10) >> 48) as u8 & 0x7f
    }

    /// Whether a datagram's first 40 bytes hold its global routing header.
    #[must_use]
    #[inline]
    pub fn has_grh(&self) -> bool {
        (self.word(AT_18) >> 60) & 3 != 0
    }

    /// Index of the work request: in 64-byte blocks for a send queue, in entries for a receive queue.
    #[must_use]
    #[inline]
    pub fn wqe_counter(&self) -> u16 {
        (self.word(AT_38) >> 16) as u16
    }

    /// Opcode of the completed send work request, as the device repeats it.
    #[must_use]
    #[inline]
    pub fn send_opcode(&self) -> datapath::SendOpcode {
        datapath::SendOpcode((self.word(AT_38) >> 56) as u8)
    }

    /// Whether the sender asked for an event.
    #[must_use]
    #[inline]
    pub fn solicited(&self) -> bool {
        self.word(AT_38) & 2 != 0
    }

    /// Time stamp in ticks of the device's clock; 0 with inline data.
    #[must_use]
    #[inline]
    pub fn timestamp(&self) -> u64 {
        if self.is_inline() { 0 } else { self.word(AT_30) }
    }

    /// Whether the received bytes are in the completion.
    #[must_use]
    #[inline]
    pub fn is_inline(&self) -> bool {
        datapath::cqe_format(self.word(AT_38) as u8) == CqeFormat::INLINE_DATA32_SEG
    }

    /// The received bytes, if they are in the completion instead of the posted memory, and how many they are
    /// ([`QpConfig::inline_receive`](crate::QpConfig::inline_receive)).
    #[must_use]
    pub fn inline_data(&self) -> Option<([u8; INLINE_RECEIVE], usize)> {
        if !self.is_inline() {
            return None;
        }
        let mut bytes = [0; INLINE_RECEIVE];
        let words = [self.words[AT_30], self.inline, self.words[AT_10], self.words[AT_18]];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        Some((bytes, (self.byte_len() as usize).min(INLINE_RECEIVE)))
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Completion");
        out.field("kind", &self.kind).field("qpn", &self.qpn()).field("user_index", &self.user_index());
        match self.error() {
            Some(error) => out.field("error", &error),
            None => out.field("byte_len", &self.byte_len()).field("imm", &self.imm()),
        };
        out.field("wqe_counter", &self.wqe_counter()).finish()
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Completion {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} qpn {=u32:#x} wqe {=u16}", self.kind, self.qpn().get(), self.wqe_counter());
    }
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CompletionError {
    /// The architected reason.
    #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
    pub syndrome: CqeSyndrome,
    /// The vendor's own code.
    pub vendor: u8,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, vendor syndrome {:#x}", self.syndrome, self.vendor)
    }
}

impl core::error::Error for CompletionError {}

/// A completion queue entry that cannot be. It has been consumed and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CqError {
    /// An opcode that this driver never causes.
    UnexpectedOpcode(u8),
    /// Inline or compressed data, which was not asked for.
    UnexpectedFormat(u8),
}

impl fmt::Display for CqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedOpcode(opcode) => write!(f, "completion with unexpected opcode {opcode:#x}"),
            Self::UnexpectedFormat(format) => write!(f, "completion with unexpected format {format}"),
        }
    }
}

impl core::error::Error for CqError {}

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
    pub(crate) memory: DmaSlice,
}

impl<B: Bar> Cq<B> {
    /// A queue over `memory`: `64 << log_size` bytes of entries, then the doorbell record.
    pub(crate) fn new(memory: DmaSlice, log_size: u32, bar: B, uar_offset: usize) -> Option<Self> {
        let bytes = 64usize << log_size;
        let mut cq = Self {
            ring: Units::new(memory.slice(0, bytes)?)?,
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
        };
        for index in 0..cq.ring.len() {
            let last = index % CQE_UNITS == CQE_UNITS - 1;
            cq.ring.put(index, 0, if last { u64::from(datapath::CQE_INIT_OP_OWN) } else { 0 });
        }
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

    /// The completion in an entry that the device has handed over.
    #[inline(always)]
    fn load(entry: &[AtomicU64; 8], tail: u64, kind: CompletionKind) -> Completion {
        let [_, _, w10, w18, w20, w28, w30, _] = entry;
        let [w10, w18, w20, w28, w30] = [w10, w18, w20, w28, w30].map(|word| word.load(Ordering::Relaxed));
        Completion { words: [w10, w18, w20, w28, w30, tail.to_be()], inline: 0, kind }
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
        let mut completion = Self::load(entry, tail, kind);
        match datapath::cqe_format(op_own) {
            CqeFormat::NO_INLINE_DATA => {}
            // Whether the QP asked for it is known where the receive is retired.
            CqeFormat::INLINE_DATA32_SEG
                if matches!(
                    kind,
                    CompletionKind::Receive | CompletionKind::ReceiveImm | CompletionKind::ReceiveInval
                ) =>
            {
                completion.words[AT_30] = entry[0].load(Ordering::Relaxed);
                completion.inline = entry[1].load(Ordering::Relaxed);
            }
            other => return Err(CqError::UnexpectedFormat(other.0)),
        }
        Ok(completion)
    }

    /// Takes the next completion; `None` if there is none yet. One call consumes at most one entry.
    ///
    /// # Errors
    /// [`CqError`]: the entry is not one this driver can have caused. It has been consumed.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>, CqError> {
        let entry = self.ring.block(self.ci as usize);
        let tail = u64::from_be(entry[7].load(Ordering::Relaxed));
        // A success of the send queue, without data, has no bit set beside the owner's.
        if tail as u8 != self.owner {
            return self.poll_other();
        }
        barrier::acquire();
        let completion = Self::load(entry, tail, CompletionKind::Send);
        self.advance();
        Ok(Some(completion))
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
        self.advance();
        match result {
            Ok(completion) => Ok(Some(completion)),
            Err(error) => {
                self.errors = self.errors.saturating_add(1);
                Err(error)
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.ci = self.ci.wrapping_add(1);
        if self.ci & (BATCH - 1) == 0 {
            self.turn();
        }
    }

    /// The end of a batch, which may be the end of the ring: it has a multiple of [`BATCH`] entries.
    #[inline(never)]
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
