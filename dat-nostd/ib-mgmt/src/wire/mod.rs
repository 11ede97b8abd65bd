//! InfiniBand transport packets: headers, checksums, whole packets.
//!
//! Every header is a plain `Copy` struct with `parse` (checks the length once) and `to_bytes`/`emit`.
//! [`Packet`] takes a whole link packet apart, from the LRH to the VCRC; [`PacketBuilder`] puts one together.
//! Offsets: InfiniBand Architecture Specification, volume 1, chapters 7 to 9.

mod crc;
mod ext;
mod headers;
mod icrc;
mod opcode;
mod packet;

pub use crc::{crc32, crc32_update, vcrc, vcrc_update};
pub use ext::{Aeth, AethSyndrome, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, XrcEth, rnr_timer_ns};
pub use headers::{Bth, GRH_NEXT_HEADER_IBA, Grh, LNH_BTH, LNH_GRH, Lrh};
pub use icrc::{Icrc, icrc_ib, icrc_roce_v1, icrc_roce_v2};
pub use opcode::{Opcode, Operation, Transport};
pub use packet::{
    ExtHeaders, ICRC_LEN, MAX_HEADERS_LEN, MAX_PACKET_LEN, MAX_PAYLOAD_LEN, Packet, PacketBuilder, VCRC_LEN,
};

/// Why bytes are not a packet, or a packet does not fit the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Fewer bytes than the header or the length field asks for; or a buffer too small to emit into.
    Truncated,
    /// A version, next-header or length field has a value that no InfiniBand transport packet has.
    Malformed,
    /// The opcode is not one of the InfiniBand transport's.
    UnknownOpcode(u8),
    /// The invariant CRC does not match the bytes.
    IcrcMismatch,
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WireError::Truncated => f.write_str("packet or buffer too short"),
            WireError::Malformed => f.write_str("malformed header field"),
            WireError::UnknownOpcode(op) => write!(f, "unknown BTH opcode {op:#04x}"),
            WireError::IcrcMismatch => f.write_str("ICRC mismatch"),
        }
    }
}

impl core::error::Error for WireError {}

/// Splits a fixed-size header off the front.
fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), WireError> {
    bytes.split_first_chunk::<N>().ok_or(WireError::Truncated)
}

/// Copies a fixed-size header to the front of `out`, and gives its length.
fn put<const N: usize>(header: [u8; N], out: &mut [u8]) -> Result<usize, WireError> {
    *out.first_chunk_mut::<N>().ok_or(WireError::Truncated)? = header;
    Ok(N)
}

/// Mask of the 24-bit numbers: QPNs, PSNs, MSNs.
const MASK_24: u32 = 0x00ff_ffff;
