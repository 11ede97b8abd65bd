//! InfiniBand packets as they are on the wire: headers, opcodes, checksums, and where things are in a packet.
//!
//! Every header is a plain `Copy` struct with `parse` (checks the length once) and `to_bytes`; [`Shape`] takes a packet apart
//! without a look at its payload. Offsets: IBTA 1.3, chapters 7 to 9.

mod ext;
mod headers;
mod icrc;
mod opcode;
mod shape;
#[cfg(test)]
mod tests;
mod vcrc;

pub use ext::{Aeth, AethSyndrome, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, XrcEth, rnr_timer_ns};
pub use headers::{Bth, GRH_NEXT_HEADER_IBA, Grh, LNH_BTH, LNH_GRH, Lrh};
pub use icrc::{ICRC_LEN, append_icrc, icrc, icrc_is_right, icrc_roce_v1, icrc_roce_v2, write_icrc};
pub use opcode::{Opcode, Operation, Transport};
pub use shape::{LID_MULTICAST, LID_PERMISSIVE, QKEY_GSI, QPN_MULTICAST, Shape, VL_MANAGEMENT};
pub use vcrc::{VCRC_LEN, vcrc};

/// Why bytes are not a packet, or a packet does not fit the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Fewer bytes than the header or the length field asks for.
    Truncated,
    /// A version, next-header or length field has a value that no InfiniBand transport packet has.
    Malformed,
    /// The opcode is not one of the InfiniBand transport's.
    UnknownOpcode(u8),
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WireError::Truncated => f.write_str("packet or buffer too short"),
            WireError::Malformed => f.write_str("malformed header field"),
            WireError::UnknownOpcode(op) => write!(f, "unknown BTH opcode {op:#04x}"),
        }
    }
}

impl core::error::Error for WireError {}

/// Splits a fixed-size header off the front.
fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), WireError> {
    bytes.split_first_chunk::<N>().ok_or(WireError::Truncated)
}

/// Mask of the 24-bit numbers: QPNs, PSNs, MSNs.
const MASK_24: u32 = 0x00ff_ffff;
