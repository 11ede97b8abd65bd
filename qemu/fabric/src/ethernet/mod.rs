//! Ethernet: frames as they are on the wire, without their frame check sequence.
//!
//! | module | subject |
//! |---|---|
//! | [`frame`] | headers, checksums, hash and congestion mark of a frame |

pub mod frame;
