//! Reference decoders: second implementations, written from the protocols and not from the
//! libraries, as plainly as possible.
//!
//! Libraries compare themselves with them in their tests, so only `dev-dependencies` may name this
//! crate.
//!
//! | module | subject |
//! |---|---|
//! | [`rds`] | RDS frames, and what a receiver makes of a sequence of them |
//! | [`cqe`] | completion queue entries of mlx5, and what they mean for the queues of a QP and for DAT |
//! | [`cases`] | how many cases are tried, and the randomness that they are drawn from |
#![forbid(unsafe_code)]

pub mod cases;
pub mod cqe;
pub mod rds;

/// Reads a big-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
