//! What completions say: of which work request, how it ended, what came with it.

use crate::config::INLINE_RECEIVE;
use crate::types::{Lid, PKey, QpNumber, RKey};
use crate::wqe::FrameChecksums;
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

/// A completion queue entry where it lies in its queue; the accessors decode. [`Qp::retire`](crate::Qp::retire) makes a
/// [`Completion`](crate::Completion) of it.
// A device that writes to an entry after it has handed it over may show different bytes at each look. Only `tail` is read once for all.
#[derive(Clone, Copy)]
pub struct Cqe<'q> {
    entry: &'q [AtomicU64; 8],
    /// The last quadword, in processor order.
    tail: u64,
}

/// A [`Cqe`] that is no longer in its queue.
#[derive(Debug)]
pub struct CqeCopy {
    words: [AtomicU64; 8],
    tail: u64,
}

impl CqeCopy {
    /// The entry.
    pub fn cqe(&self) -> Cqe<'_> {
        Cqe { entry: &self.words, tail: self.tail }
    }
}

/// `cqe64.hds_ip_ext`: the checksums of the IPv4 header, and of TCP or UDP, are right.
const CQE_L3_OK: u8 = 1 << 1;
const CQE_L4_OK: u8 = 1 << 2;

/// QP number in the last quadword of an entry.
#[inline]
pub(super) fn qpn(tail: u64) -> QpNumber {
    QpNumber::new((tail >> 32) as u32)
}

/// Opcodes that this driver can have caused, and those of them whose data may be in the completion, a bit each.
const POSSIBLE: u16 = bit(CqeOpcode::REQ)
    | bit(CqeOpcode::RESP_WR_IMM)
    | bit(CqeOpcode::REQ_ERR)
    | bit(CqeOpcode::RESP_ERR)
    | WITH_DATA;
const WITH_DATA: u16 =
    bit(CqeOpcode::RESP_SEND) | bit(CqeOpcode::RESP_SEND_IMM) | bit(CqeOpcode::RESP_SEND_INV);

const fn bit(opcode: CqeOpcode) -> u16 {
    1 << opcode.0
}

/// Whether an entry that ends with this byte is one that this driver can have caused.
#[inline]
pub(super) fn is_possible(op_own: u8) -> bool {
    let opcodes = match datapath::cqe_format(op_own) {
        CqeFormat::NO_INLINE_DATA => POSSIBLE,
        // Whether the QP asked for it is known where the receive is retired.
        CqeFormat::INLINE_DATA32_SEG => WITH_DATA,
        _ => 0,
    };
    opcodes >> (op_own >> 4) & 1 != 0
}

/// What is wrong with an entry that ends with this byte.
pub(super) fn refusal(op_own: u8) -> CqError {
    let opcode = op_own >> 4;
    if POSSIBLE >> opcode & 1 == 0 {
        CqError::UnexpectedOpcode(opcode)
    } else {
        CqError::UnexpectedFormat(datapath::cqe_format(op_own).0)
    }
}

impl<'q> Cqe<'q> {
    #[inline]
    pub(super) fn new(entry: &'q [AtomicU64; 8], tail: u64) -> Self {
        Self { entry, tail }
    }

    /// A copy of the entry, for those who look at it after the next one has been taken.
    #[inline]
    pub fn copy(&self) -> CqeCopy {
        let words = self.entry.each_ref().map(|word| AtomicU64::new(word.load(Ordering::Relaxed)));
        CqeCopy { words, tail: self.tail }
    }

    /// Quadword `index` in processor order.
    #[inline]
    fn quad(&self, index: usize) -> u64 {
        u64::from_be(self.entry[index & 7].load(Ordering::Relaxed))
    }

    /// The last quadword, in processor order.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether a request succeeded.
    #[inline]
    pub(crate) fn is_request_done(&self) -> bool {
        // The lowest of all opcodes, so that one comparison tells.
        const { assert!(CqeOpcode::REQ.0 == 0) };
        (self.tail as u8) < 1 << 4
    }

    #[inline]
    pub(crate) fn opcode(&self) -> CqeOpcode {
        CqeOpcode(self.tail as u8 >> 4)
    }

    /// What happened.
    #[inline]
    pub fn kind(&self) -> CompletionKind {
        match self.opcode() {
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
        matches!(self.opcode(), CqeOpcode::REQ | CqeOpcode::REQ_ERR)
    }

    /// Why the work request failed, `None` if it did not.
    #[inline]
    pub fn error(&self) -> Option<CompletionError> {
        matches!(self.opcode(), CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR).then(|| self.reason())
    }

    /// Why the work request failed, of an entry that says so.
    pub(crate) fn reason(&self) -> CompletionError {
        let word = self.quad(6);
        CompletionError { syndrome: CqeSyndrome(word as u8), vendor: (word >> 8) as u8 }
    }

    /// What the owner gave as [`QpConfig::user_index`](crate::QpConfig::user_index).
    #[inline]
    pub fn user_index(&self) -> u32 {
        (self.quad(4) >> 32) as u32 & 0xff_ffff
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
        self.quad(5) as u32
    }

    /// Immediate data as the number that the peer's network-order bytes spell.
    #[inline]
    pub fn imm(&self) -> u32 {
        self.quad(4) as u32
    }

    /// The key that the peer invalidated, if the completion is of that kind.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        (self.opcode() == CqeOpcode::RESP_SEND_INV).then(|| RKey::new(self.quad(4) as u32))
    }

    /// P_Key of a received datagram without immediate (UD, GSI).
    #[inline]
    pub fn pkey(&self) -> PKey {
        PKey::new(self.quad(4) as u16)
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

    /// Of a received datagram (UD, GSI), where it came from.
    pub fn datagram(&self) -> Datagram {
        let [at_10, at_18] = [self.quad(2), self.quad(3)];
        Datagram {
            src_qpn: QpNumber::new((at_18 >> 32) as u32),
            slid: Lid::new(at_10 as u16),
            sl: (at_18 >> 56) as u8 & 0xf,
            path_bits: (at_10 >> 48) as u8 & 0x7f,
            grh: (at_18 >> 60) & 3 != 0,
            vlan: (at_18 >> 16 & 1 != 0).then_some(at_18 as u16),
        }
    }

    /// Returns the checksums of a received frame ([`Service::RawPacket`](crate::Service)) that the device found right.
    /// It also leaves out those of protocols that it does not know.
    #[must_use]
    pub fn frame_checksums(&self) -> FrameChecksums {
        let right = (self.quad(3) >> 24) as u8;
        let mut checksums = FrameChecksums::empty();
        checksums.set(FrameChecksums::IP, right & CQE_L3_OK != 0);
        checksums.set(FrameChecksums::TRANSPORT, right & CQE_L4_OK != 0);
        checksums
    }

    /// The received bytes, if they are in the completion instead of the posted memory, and how many they are
    /// ([`QpConfig::inline_receive`](crate::QpConfig::inline_receive)).
    pub fn inline_data(&self) -> Option<([u8; INLINE_RECEIVE], usize)> {
        if !self.is_inline() {
            return None;
        }
        let mut bytes = [0; INLINE_RECEIVE];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.entry) {
            *to = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Some((bytes, (self.byte_len() as usize).min(INLINE_RECEIVE)))
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
    /// Service level; 0 with the kind of network header on RoCE.
    pub sl: u8,
    /// Low bits of the LID that it was sent to.
    pub path_bits: u8,
    /// The first 40 bytes hold its global routing header. On RoCE they always hold a header: see
    /// [`Datagram::network_header`].
    pub grh: bool,
    /// On RoCE, tag control information of its VLAN tag, if it had one.
    pub vlan: Option<u16>,
}

/// Network header of a datagram that arrived by RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum NetworkHeader {
    /// Global routing header of RoCE v1, 40 bytes.
    Grh,
    /// IPv6 header, 40 bytes.
    Ipv6,
    /// 20 bytes that mean nothing, then an IPv4 header of 20 bytes.
    Ipv4,
}

impl Datagram {
    /// Returns the kind of header in the first 40 bytes, if the datagram arrived by RoCE; `None` for
    /// kinds that do not exist. On InfiniBand the field is part of [`Datagram::sl`].
    #[must_use]
    pub const fn network_header(&self) -> Option<NetworkHeader> {
        match self.sl & 3 {
            0 => Some(NetworkHeader::Grh),
            1 => Some(NetworkHeader::Ipv6),
            2 => Some(NetworkHeader::Ipv4),
            _ => None,
        }
    }
}

impl fmt::Debug for Cqe<'_> {
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
impl defmt::Format for Cqe<'_> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} qpn {=u32:#x} wqe {=u16}", self.kind(), self.qpn().get(), self.wqe_counter());
    }
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CompletionError {
    /// The architected reason.
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
