//! What completions say: of which work request, how it ended, what came with it.

use crate::config::INLINE_RECEIVE;
use crate::types::{Lid, PKey, QpNumber, RKey};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use mlx5_prm::datapath::{self, CqeFormat, CqeOpcode};
use mlx5_prm::status::CqeSyndrome;

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

/// A completion queue entry, as the device wrote it; the accessors decode. [`Qp::retire`](crate::Qp::retire) makes a
/// [`Completion`](crate::Completion) of it.
#[derive(Clone, Copy)]
pub struct Cqe {
    /// Quadwords of the entry as in memory, big-endian, named by their offset.
    pub(crate) at_20: u64,
    /// Of a failed work request the one from 0x30 on, which has the reason.
    pub(crate) at_28: u64,
    /// The last quadword, from 0x38 on, in processor order.
    pub(crate) tail: u64,
}

/// An ordinary completion where it lies in its queue: the success of a request, or the arrival of a message by a send without immediate
/// data. [`Cq::poll_ordinary`](crate::Cq::poll_ordinary) shows them.
#[derive(Clone, Copy, Debug)]
pub struct OrdinaryCqe<'q> {
    pub(super) entry: &'q [AtomicU64; 8],
    /// The last quadword, in processor order.
    pub(crate) tail: u64,
}

impl OrdinaryCqe<'_> {
    /// As [`Cqe::user_index`].
    #[inline(always)]
    pub fn user_index(&self) -> u32 {
        user_index(self.entry[4].load(Ordering::Relaxed))
    }

    /// As [`Cqe::byte_len`].
    #[inline(always)]
    pub fn byte_len(&self) -> u32 {
        u64::from_be(self.entry[5].load(Ordering::Relaxed)) as u32
    }

    /// As [`Cqe::qpn`].
    #[inline]
    pub fn qpn(&self) -> QpNumber {
        qpn(self.tail)
    }

    /// As [`Cqe::is_send`].
    #[inline]
    pub fn is_send(&self) -> bool {
        self.tail as u8 >> 4 == CqeOpcode::REQ.0
    }
}

/// The user index in the quadword at 0x20, as it lies in memory.
#[inline(always)]
fn user_index(at_20: u64) -> u32 {
    let [a, b, c, d, ..] = at_20.to_ne_bytes();
    u32::from_be_bytes([a, b, c, d]) & 0xff_ffff
}

/// QP number in the last quadword of an entry.
#[inline(always)]
pub(super) fn qpn(tail: u64) -> QpNumber {
    QpNumber::new((tail >> 32) as u32)
}

/// Whether an entry that ends with this byte is one this driver can have caused.
#[inline(always)]
pub(super) fn check(op_own: u8) -> Result<(), CqError> {
    const RECEIVES: [u8; 3] =
        [CqeOpcode::RESP_SEND.0, CqeOpcode::RESP_SEND_IMM.0, CqeOpcode::RESP_SEND_INV.0];
    let opcode = op_own >> 4;
    let others = [CqeOpcode::REQ.0, CqeOpcode::RESP_WR_IMM.0, CqeOpcode::REQ_ERR.0, CqeOpcode::RESP_ERR.0];
    if !RECEIVES.contains(&opcode) && !others.contains(&opcode) {
        return Err(CqError::UnexpectedOpcode(opcode));
    }
    match datapath::cqe_format(op_own) {
        CqeFormat::NO_INLINE_DATA => Ok(()),
        // Whether the QP asked for it is known where the receive is retired.
        CqeFormat::INLINE_DATA32_SEG if RECEIVES.contains(&opcode) => Ok(()),
        other => Err(CqError::UnexpectedFormat(other.0)),
    }
}

/// Whether an entry that ends with this byte says that a work request failed.
#[inline(always)]
pub(super) fn is_failure(op_own: u8) -> bool {
    matches!(CqeOpcode(op_own >> 4), CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR)
}

impl Cqe {
    /// What happened.
    #[inline]
    pub fn kind(&self) -> CompletionKind {
        match CqeOpcode(self.tail as u8 >> 4) {
            CqeOpcode::REQ => CompletionKind::Send,
            CqeOpcode::RESP_WR_IMM => CompletionKind::ReceiveWriteImm,
            CqeOpcode::RESP_SEND => CompletionKind::Receive,
            CqeOpcode::RESP_SEND_IMM => CompletionKind::ReceiveImm,
            CqeOpcode::RESP_SEND_INV => CompletionKind::ReceiveInval,
            CqeOpcode::REQ_ERR => CompletionKind::SendError,
            // There are no others (see `check`).
            _ => CompletionKind::ReceiveError,
        }
    }

    /// Whether it belongs to the send queue (else to the receive queue).
    #[inline]
    pub fn is_send(&self) -> bool {
        matches!(CqeOpcode(self.tail as u8 >> 4), CqeOpcode::REQ | CqeOpcode::REQ_ERR)
    }

    /// Why the work request failed, `None` if it did not.
    #[inline]
    pub fn error(&self) -> Option<CompletionError> {
        is_failure(self.tail as u8).then(|| self.reason())
    }

    /// Why the work request failed, of an entry that says so.
    pub(crate) fn reason(&self) -> CompletionError {
        let word = u64::from_be(self.at_28);
        CompletionError { syndrome: CqeSyndrome(word as u8), vendor: (word >> 8) as u8 }
    }

    /// What the owner gave as [`QpConfig::user_index`](crate::QpConfig::user_index).
    #[inline]
    pub fn user_index(&self) -> u32 {
        user_index(self.at_20)
    }

    /// The QP.
    #[inline]
    pub fn qpn(&self) -> QpNumber {
        qpn(self.tail)
    }

    /// Bytes received (for datagrams with the 40 bytes of the GRH area), or read by an RDMA read. As the device claims: the
    /// caller compares it with what it posted.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        u64::from_be(self.at_28) as u32
    }

    /// Immediate data as the number that the peer's network-order bytes spell.
    #[inline]
    pub fn imm(&self) -> u32 {
        u64::from_be(self.at_20) as u32
    }

    /// The key that the peer invalidated, if the completion is of that kind.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        (self.tail as u8 >> 4 == CqeOpcode::RESP_SEND_INV.0)
            .then(|| RKey::new(u64::from_be(self.at_20) as u32))
    }

    /// P_Key of a received datagram without immediate (UD, GSI).
    #[inline]
    pub fn pkey(&self) -> PKey {
        PKey::new(u64::from_be(self.at_20) as u16)
    }

    /// Index of the work request: in WQEBBs for a send queue, in entries for a receive queue.
    #[inline]
    pub fn wqe_counter(&self) -> u16 {
        (self.tail >> 16) as u16
    }

    /// Opcode of the completed send work request, as the device repeats it.
    #[inline]
    pub fn send_opcode(&self) -> datapath::SendOpcode {
        datapath::SendOpcode((self.tail >> 56) as u8)
    }

    /// Whether the sender asked for an event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.tail & 2 != 0
    }

    /// Whether the received bytes are in the completion.
    #[inline]
    pub fn is_inline(&self) -> bool {
        datapath::cqe_format(self.tail as u8) == CqeFormat::INLINE_DATA32_SEG
    }
}

/// What an entry says of a received datagram (UD, GSI): where it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Datagram {
    /// Sender's QP number.
    pub src_qpn: QpNumber,
    /// Sender's LID.
    pub slid: Lid,
    /// Service level.
    pub sl: u8,
    /// Low bits of the LID that it was sent to.
    pub path_bits: u8,
    /// Whether its first 40 bytes hold its global routing header.
    pub grh: bool,
}

/// What an entry says that few ask for: the quadwords from 0x00, 0x08, 0x10 and 0x18 on, as in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Details(pub(super) [u64; 4]);

impl Details {
    /// Copies them from an entry.
    #[inline(always)]
    pub(super) fn keep(&mut self, entry: &[AtomicU64; 8]) {
        for (to, word) in self.0.iter_mut().zip(entry) {
            *to = word.load(Ordering::Relaxed);
        }
    }

    /// Copies only those of a datagram's source.
    #[inline(always)]
    pub(super) fn keep_source(&mut self, entry: &[AtomicU64; 8]) {
        for index in [2, 3] {
            self.0[index] = entry[index].load(Ordering::Relaxed);
        }
    }

    pub(super) fn datagram(&self) -> Datagram {
        let [_, _, at_10, at_18] = self.0.map(u64::from_be);
        Datagram {
            src_qpn: QpNumber::new((at_18 >> 32) as u32),
            slid: Lid::new(at_10 as u16),
            sl: (at_18 >> 56) as u8 & 0xf,
            path_bits: (at_10 >> 48) as u8 & 0x7f,
            grh: (at_18 >> 60) & 3 != 0,
        }
    }

    pub(super) fn inline_data(&self) -> [u8; INLINE_RECEIVE] {
        let mut bytes = [0; INLINE_RECEIVE];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *to = word.to_ne_bytes();
        }
        bytes
    }
}

impl fmt::Debug for Cqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Cqe");
        out.field("kind", &self.kind()).field("qpn", &self.qpn()).field("user_index", &self.user_index());
        match self.error() {
            Some(error) => out.field("error", &error),
            None => out.field("byte_len", &self.byte_len()).field("imm", &self.imm()),
        };
        out.field("wqe_counter", &self.wqe_counter()).finish()
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Cqe {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} qpn {=u32:#x} wqe {=u16}", self.kind(), self.qpn().get(), self.wqe_counter());
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
