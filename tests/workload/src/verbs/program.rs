//! The program, and the data that both sides compute without a message.

use apps::Role;
use ib_types::Payload;
use ib_types::random::finalize;

/// An operation. A turn is one operation, then a message to the peer, which checks the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A send; the payload is the message.
    Send = 1,
    /// An RDMA write.
    Write,
    /// An RDMA read.
    Read,
    /// A compare and swap that matches.
    CompareSwap,
    /// A compare and swap that does not match.
    RefusedSwap,
    /// A fetch and add.
    FetchAdd,
}

impl Op {
    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "compare_swap",
            Self::RefusedSwap => "refused_swap",
            Self::FetchAdd => "fetch_add",
        }
    }

    /// Payload of turn `number` in bytes.
    #[must_use]
    pub const fn len(self, number: u32) -> usize {
        match self {
            Self::Send | Self::Write | Self::Read => size(number),
            Self::CompareSwap | Self::RefusedSwap | Self::FetchAdd => 8,
        }
    }

    /// Returns the word after turn `number` if it was `word` before, and the operand: the new value,
    /// or the addend.
    pub(super) const fn apply(self, number: u32, word: u64) -> (u64, u64) {
        let operand = finalize(number as u64 + 1);
        match self {
            Self::CompareSwap => (operand, operand),
            Self::FetchAdd => (word.wrapping_add(operand), operand),
            _ => (word, 0),
        }
    }
}

/// A step of the program.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Operation.
    pub op: Op,
    /// Turns of each side. The client begins.
    pub count: u32,
}

/// The program, as in `tests/guest/verbs.c`.
pub const PROGRAM: [Step; 6] = [
    Step { op: Op::Send, count: 100 },
    Step { op: Op::Write, count: 100 },
    Step { op: Op::Read, count: 100 },
    Step { op: Op::CompareSwap, count: 50 },
    Step { op: Op::RefusedSwap, count: 50 },
    Step { op: Op::FetchAdd, count: 50 },
];

/// Longest payload in bytes.
pub(super) const MAX_LEN: usize = 64 << 10;

/// Edge cases first, then lengths spread over 0 to [`MAX_LEN`].
const fn size(number: u32) -> usize {
    const EDGES: [usize; 26] = [
        0, 1, 2, 3, 4, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191,
        8192, 16384, 32768, 65535, 65536,
    ];
    let number = number as usize;
    if number < EDGES.len() { EDGES[number] } else { number * 7919 % (MAX_LEN + 1) }
}

/// Returns the payload of turn `number` of `role`.
pub(super) const fn payload(role: Role, op: Op, number: u32) -> Payload {
    let sender = match role {
        Role::Server => 1,
        Role::Client => 2,
    };
    Payload::new(0, sender << 8 | op as u64, number as u64)
}

/// Bytes of the message after an operation.
pub(super) const NOTICE_LEN: usize = 16;

/// Encodes the message after an operation: operation and turn, little-endian.
pub(super) const fn notice(op: Op, number: u32) -> [u8; NOTICE_LEN] {
    ((number as u128) << 64 | op as u128).to_le_bytes()
}
