//! What completions say: of which work request, how it ended, what came with it.

use crate::config::INLINE_RECEIVE;
use crate::types::{Lid, PKey, QpNumber, RKey};
use core::fmt;
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

/// One completion, as the device wrote it; the accessors decode.
#[derive(Clone, Copy)]
pub struct Completion {
    pub(super) kind: CompletionKind,
    /// Quadwords of the CQE as in memory, big-endian, named by their offset.
    pub(super) at_20: u64,
    /// Of a failed work request the one from 0x30 on, which has the reason.
    pub(super) at_28: u64,
    pub(super) at_38: u64,
    /// 0 for a success of the send queue, which has nothing to say there.
    pub(super) at_10: u64,
    pub(super) at_18: u64,
    /// The quadwords from 0x00 and 0x08 on, if inline data are there; else 0.
    pub(super) inline: [u64; 2],
}

/// A success of a send queue: what of a [`Completion`] can be asked of it (not how much an RDMA read brought), for [`Qp::retire_send`](crate::Qp::retire_send).
#[derive(Clone, Copy)]
pub struct SendCompletion {
    pub(super) at_20: u64,
    pub(super) at_38: u64,
}

impl SendCompletion {
    /// As [`Completion::user_index`].
    #[must_use]
    #[inline(always)]
    pub fn user_index(&self) -> u32 {
        let [a, b, c, d, ..] = self.at_20.to_ne_bytes();
        u32::from_be_bytes([a, b, c, d]) & 0xff_ffff
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

/// Without the number of bytes that an RDMA read brought.
impl From<SendCompletion> for Completion {
    #[inline(always)]
    fn from(sent: SendCompletion) -> Self {
        let SendCompletion { at_20, at_38 } = sent;
        Self { kind: CompletionKind::Send, at_20, at_28: 0, at_38, at_10: 0, at_18: 0, inline: [0; 2] }
    }
}

impl fmt::Debug for SendCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("SendCompletion");
        out.field("qpn", &self.qpn()).field("user_index", &self.user_index());
        out.field("wqe_counter", &self.wqe_counter()).finish()
    }
}

/// The QP number in the quadword of an entry that has it, as in memory.
pub(super) const QPN_MASK: u64 = 0x00ff_ffff_0000_0000u64.to_be();

/// A QP number in its place in an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpnInEntry(pub(super) u64);

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
