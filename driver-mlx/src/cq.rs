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
    kind: CompletionKind,
    /// Quadwords of the CQE as in memory, big-endian, named by their offset.
    at_20: u64,
    /// Of a failed work request the one from 0x30 on, which has the reason.
    at_28: u64,
    at_38: u64,
    /// 0 for a success of the send queue, which has nothing to say there.
    at_10: u64,
    at_18: u64,
    /// The quadwords from 0x00 and 0x08 on, if inline data are there; else 0.
    inline: [u64; 2],
}

/// A success of a send queue: what of a [`Completion`] can be asked of it, for [`Qp::retire_send`](crate::Qp::retire_send).
#[derive(Clone, Copy)]
pub struct SendCompletion {
    at_20: u64,
    at_28: u64,
    at_38: u64,
}

impl SendCompletion {
    /// As [`Completion::user_index`].
    #[must_use]
    #[inline(always)]
    pub fn user_index(&self) -> u32 {
        let [a, b, c, d, ..] = self.at_20.to_ne_bytes();
        u32::from_be_bytes([a, b, c, d]) & 0xff_ffff
    }

    /// As [`Completion::byte_len`].
    #[must_use]
    #[inline(always)]
    pub fn byte_len(&self) -> u32 {
        u64::from_be(self.at_28) as u32
    }

    /// As [`Completion::qpn`].
    #[must_use]
    #[inline(always)]
    pub fn qpn(&self) -> QpNumber {
        QpNumber::new((u64::from_be(self.at_38) >> 32) as u32)
    }

    /// As [`Completion::wqe_counter`].
    #[must_use]
    #[inline(always)]
    pub fn wqe_counter(&self) -> u16 {
        let [_, _, _, _, high, low, ..] = self.at_38.to_ne_bytes();
        u16::from_be_bytes([high, low])
    }

    /// As [`Completion::send_opcode`].
    #[must_use]
    #[inline(always)]
    pub fn send_opcode(&self) -> datapath::SendOpcode {
        datapath::SendOpcode((u64::from_be(self.at_38) >> 56) as u8)
    }

    /// Whether it names this QP, given as the number in the place that an entry has it.
    #[inline(always)]
    pub(crate) fn is_of(&self, qpn: QpnInEntry) -> bool {
        self.at_38 & QPN_MASK == qpn.0
    }
}

impl From<SendCompletion> for Completion {
    #[inline(always)]
    fn from(sent: SendCompletion) -> Self {
        let SendCompletion { at_20, at_28, at_38 } = sent;
        Self { kind: CompletionKind::Send, at_20, at_28, at_38, at_10: 0, at_18: 0, inline: [0; 2] }
    }
}

impl fmt::Debug for SendCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("SendCompletion");
        out.field("qpn", &self.qpn()).field("user_index", &self.user_index());
        out.field("byte_len", &self.byte_len()).field("wqe_counter", &self.wqe_counter()).finish()
    }
}

/// The QP number in the quadword of an entry that has it, as in memory.
const QPN_MASK: u64 = 0x00ff_ffff_0000_0000u64.to_be();

/// A QP number in its place in an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpnInEntry(u64);

impl QpnInEntry {
    pub(crate) fn new(qpn: QpNumber) -> Self {
        Self((u64::from(qpn.get()) << 32).to_be())
    }
}

/// What a completion says of the work request that it is about: all that retiring it takes.
#[derive(Clone, Copy)]
pub(crate) struct CompletedWork {
    kind: CompletionKind,
    at_38: u64,
}

impl CompletedWork {
    #[inline]
    pub(crate) fn is_send(self) -> bool {
        matches!(self.kind, CompletionKind::Send | CompletionKind::SendError)
    }

    #[inline]
    pub(crate) fn qpn(self) -> QpNumber {
        QpNumber::new((u64::from_be(self.at_38) >> 32) as u32)
    }

    #[inline]
    pub(crate) fn wqe_counter(self) -> u16 {
        (u64::from_be(self.at_38) >> 16) as u16
    }

    #[inline]
    pub(crate) fn is_inline(self) -> bool {
        datapath::cqe_format(u64::from_be(self.at_38) as u8) == CqeFormat::INLINE_DATA32_SEG
    }
}

impl Completion {
    #[inline(always)]
    pub(crate) fn work(&self) -> CompletedWork {
        CompletedWork { kind: self.kind, at_38: self.at_38 }
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
        self.work().is_send()
    }

    /// Why the work request failed, `None` if it did not.
    #[must_use]
    #[inline]
    pub fn error(&self) -> Option<CompletionError> {
        matches!(self.kind, CompletionKind::SendError | CompletionKind::ReceiveError).then(|| {
            CompletionError {
                syndrome: CqeSyndrome(u64::from_be(self.at_28) as u8),
                vendor: (u64::from_be(self.at_28) >> 8) as u8,
            }
        })
    }

    /// What the owner gave as [`QpConfig::user_index`](crate::QpConfig::user_index).
    #[must_use]
    #[inline]
    pub fn user_index(&self) -> u32 {
        (u64::from_be(self.at_20) >> 32) as u32 & 0xff_ffff
    }

    /// The QP.
    #[must_use]
    #[inline]
    pub fn qpn(&self) -> QpNumber {
        self.work().qpn()
    }

    /// Bytes received (for datagrams with the 40 bytes of the GRH area), or read by an RDMA read. As the device claims: the
    /// caller compares it with what it posted.
    #[must_use]
    #[inline]
    pub fn byte_len(&self) -> u32 {
        u64::from_be(self.at_28) as u32
    }

    /// Immediate data as the number that the peer's network-order bytes spell.
    #[must_use]
    #[inline]
    pub fn imm(&self) -> u32 {
        u64::from_be(self.at_20) as u32
    }

    /// The key that the peer invalidated, if the completion is of that kind.
    #[must_use]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        (self.kind == CompletionKind::ReceiveInval).then(|| RKey::new(u64::from_be(self.at_20) as u32))
    }

    /// P_Key of a received datagram without immediate (UD, GSI).
    #[must_use]
    #[inline]
    pub fn pkey(&self) -> PKey {
        PKey::new(u64::from_be(self.at_20) as u16)
    }

    /// Sender's QP number of a datagram.
    #[must_use]
    #[inline]
    pub fn src_qpn(&self) -> QpNumber {
        QpNumber::new((u64::from_be(self.at_18) >> 32) as u32)
    }

    /// Sender's LID of a datagram.
    #[must_use]
    #[inline]
    pub fn slid(&self) -> Lid {
        Lid::new(u64::from_be(self.at_10) as u16)
    }

    /// Service level of a datagram.
    #[must_use]
    #[inline]
    pub fn sl(&self) -> u8 {
        (u64::from_be(self.at_18) >> 56) as u8 & 0xf
    }

    /// Low bits of the LID that a datagram was sent to.
    #[must_use]
    #[inline]
    pub fn path_bits(&self) -> u8 {
        (u64::from_be(self.at_10) >> 48) as u8 & 0x7f
    }

    /// Whether a datagram's first 40 bytes hold its global routing header.
    #[must_use]
    #[inline]
    pub fn has_grh(&self) -> bool {
        (u64::from_be(self.at_18) >> 60) & 3 != 0
    }

    /// Index of the work request: in 64-byte blocks for a send queue, in entries for a receive queue.
    #[must_use]
    #[inline]
    pub fn wqe_counter(&self) -> u16 {
        self.work().wqe_counter()
    }

    /// Opcode of the completed send work request, as the device repeats it.
    #[must_use]
    #[inline]
    pub fn send_opcode(&self) -> datapath::SendOpcode {
        datapath::SendOpcode((u64::from_be(self.at_38) >> 56) as u8)
    }

    /// Whether the sender asked for an event.
    #[must_use]
    #[inline]
    pub fn solicited(&self) -> bool {
        u64::from_be(self.at_38) & 2 != 0
    }

    /// Whether the received bytes are in the completion.
    #[must_use]
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.work().is_inline()
    }

    /// The received bytes, if they are in the completion instead of the posted memory, and how many they are
    /// ([`QpConfig::inline_receive`](crate::QpConfig::inline_receive)).
    #[must_use]
    pub fn inline_data(&self) -> Option<([u8; INLINE_RECEIVE], usize)> {
        if !self.is_inline() {
            return None;
        }
        let mut bytes = [0; INLINE_RECEIVE];
        let words = [self.inline[0], self.inline[1], self.at_10, self.at_18];
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
    /// What it was made over, once it has another ring: the doorbell record stays there.
    pub(crate) first_memory: Option<DmaSlice>,
}

/// A ring of entries that the device has not written yet.
pub(crate) fn empty_ring(memory: DmaSlice) -> Option<Units> {
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
    pub(crate) fn new(memory: DmaSlice, log_size: u32, bar: B, uar_offset: usize) -> Option<Self> {
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
        match self.poll_send() {
            Some(sent) => Ok(Some(sent.into())),
            None => self.poll_other(),
        }
    }

    /// Takes the next completion if it is a success of a send queue, the usual case where much is sent; `None` if not, or if there is
    /// none: [`Cq::poll`] tells.
    #[inline(always)]
    pub fn poll_send(&mut self) -> Option<SendCompletion> {
        let ci = self.ci;
        let entry = self.ring.block(ci as usize);
        let at_38 = entry[7].load(Ordering::Relaxed);
        // It has no bit set beside the owner's.
        if u64::from_be(at_38) as u8 != self.owner {
            return None;
        }
        barrier::acquire();
        let (at_20, at_28) = (entry[4].load(Ordering::Relaxed), entry[5].load(Ordering::Relaxed));
        self.advance(ci);
        Some(SendCompletion { at_20, at_28, at_38 })
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
        memory: DmaSlice,
        log_size: u32,
    ) -> Option<Option<DmaSlice>> {
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
