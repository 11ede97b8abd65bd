//! The unit in which work is charged to the port that causes it.
//!
//! A step is some tens of instructions. The fabric counts the steps that a port's packets cause. The
//! port's adapter pays for them out of the [`STEPS_PER_CALL`] that it has in each of its calls.

/// Steps that an adapter has in each of its calls.
pub const STEPS_PER_CALL: u64 = 1_024;
/// Steps for a packet, without its payload.
pub const PACKET: u64 = 16;
/// Steps for a management datagram that the switch or one of its agents processes.
pub const MAD: u64 = 64;
