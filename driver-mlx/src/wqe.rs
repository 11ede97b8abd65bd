//! Send work requests as the caller states them.

use crate::types::RKey;
use bitflags::bitflags;
use core::fmt;
use mlx5_prm::datapath::{EthChecksums, FmCeSe, SendOpcode};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SendOp {
    /// Nothing, but completes in order.
    Nop,
    /// Fills a receive of the peer.
    Send,
    /// Fills a receive of the peer and hands over a number.
    SendImm(u32),
    /// Fills a receive of the peer and invalidates one of its keys.
    SendInval(RKey),
    /// Writes the peer's memory.
    Write {
        /// Where, as the peer's key counts.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Writes the peer's memory, then takes a receive of the peer to hand over a number.
    WriteImm {
        /// Where, as the peer's key counts.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The number.
        imm: u32,
    },
    /// Reads the peer's memory into the local SGEs.
    Read {
        /// From where, as the peer's key counts.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Replaces 8 bytes of the peer's memory if they are as expected (RC). The bytes as they were arrive in the one local SGE, of 8
    /// bytes, as a number in the processor's byte order.
    CompareSwap {
        /// Where, as the peer's key counts: a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
        /// What is expected.
        compare: u64,
        /// What takes its place.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer's memory (RC). The bytes as they were arrive in the one local SGE, of 8 bytes, as a number in the
    /// processor's byte order.
    FetchAdd {
        /// Where, as the peer's key counts: a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: RKey,
        /// What is added, without carry out of the 8 bytes.
        add: u64,
    },
}

/// Bytes that an atomic operation works on.
pub const ATOMIC_BYTES: u32 = 8;

impl SendOp {
    /// Whether the peer responds with data.
    #[inline]
    pub(crate) fn brings_data(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether only reliable services have it.
    #[inline]
    pub(crate) fn is_reliable(self) -> bool {
        self.brings_data() || matches!(self, Self::SendInval(_))
    }

    /// The operands of an atomic operation: what is swapped in or added, and what is compared.
    #[inline]
    pub(crate) fn operands(self) -> Option<(u64, u64)> {
        match self {
            Self::CompareSwap { compare, swap, .. } => Some((swap, compare)),
            Self::FetchAdd { add, .. } => Some((add, 0)),
            _ => None,
        }
    }

    /// Opcode, immediate dword, remote address segment.
    #[inline]
    pub(crate) fn parts(self) -> (SendOpcode, u32, Option<(u64, RKey)>) {
        match self {
            Self::Nop => (SendOpcode::NOP, 0, None),
            Self::Send => (SendOpcode::SEND, 0, None),
            Self::SendImm(imm) => (SendOpcode::SEND_IMM, imm, None),
            Self::SendInval(rkey) => (SendOpcode::SEND_INVAL, rkey.get(), None),
            Self::Write { raddr, rkey } => (SendOpcode::RDMA_WRITE, 0, Some((raddr, rkey))),
            Self::WriteImm { raddr, rkey, imm } => (SendOpcode::RDMA_WRITE_IMM, imm, Some((raddr, rkey))),
            Self::Read { raddr, rkey } => (SendOpcode::RDMA_READ, 0, Some((raddr, rkey))),
            Self::CompareSwap { raddr, rkey, .. } => (SendOpcode::ATOMIC_CS, 0, Some((raddr, rkey))),
            Self::FetchAdd { raddr, rkey, .. } => (SendOpcode::ATOMIC_FA, 0, Some((raddr, rkey))),
        }
    }
}

bitflags! {
    /// How a send work request is carried out.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// The peer's receive completion asks for an event.
        const SOLICITED = FmCeSe::SOLICITED.bits();
        /// A completion comes also on success. Without it, slots are freed by a later completion of the same queue.
        const SIGNALED = FmCeSe::CQ_UPDATE.bits();
        /// Starts only after all earlier RDMA reads of this queue.
        const FENCE = FmCeSe::FENCE.bits();
    }
}

bitflags! {
    /// Checksums of a frame: those that the device is to compute, or has found right.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FrameChecksums: u8 {
        /// That of the IPv4 header.
        const IP = EthChecksums::L3.bits();
        /// That of TCP or UDP.
        const TRANSPORT = EthChecksums::L4.bits();
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for FrameChecksums {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "FrameChecksums({=u8:#x})", self.bits());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for SendFlags {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "SendFlags({=u8:#x})", self.bits());
    }
}

/// Why a work request was not posted. The queue is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PostError {
    /// The queue is full until completions are retired.
    Full,
    /// More SGEs than the queue was made for; an atomic operation without exactly one.
    TooManySges,
    /// More inline bytes than the queue was made for, an SGE of 2^31 bytes or more, or one of an atomic operation that is not
    /// [`ATOMIC_BYTES`] long.
    TooLong,
    /// A frame whose first segment has fewer bytes than [`Qp::min_frame_head`](crate::Qp::min_frame_head).
    TooShort,
    /// The queue pair has another service type, or was not made for it.
    WrongService,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue is full",
            Self::TooManySges => "too many pieces of memory",
            Self::TooLong => "too many bytes",
            Self::TooShort => "too few bytes of the frame's headers",
            Self::WrongService => "not possible with this service type",
        })
    }
}

impl core::error::Error for PostError {}
