//! Addresses and numbers of InfiniBand and Ethernet as distinct types, and time: shared by driver,
//! management protocols and emulated HCA.
//!
//! | module | subject |
//! |---|---|
//! | [`number`](mod@number) | numbers of a fixed width: a QP number cannot be taken for a PSN |
//! | [`address`] | [`Gid`], [`MacAddress`] and [`Mtu`] |
//! | [`time`] | [`Instant`], [`Duration`], and when a state machine wants to run again: [`Wake`] |
//! | [`random`] | seeded numbers: [`SplitMix64`] |
//! | [`payload`] | bytes that tests move and check: [`Payload`] |
//! | [`glossary`] | words of the field |
//!
//! All types are `Copy`. The all-zero bytes of each number, address and [`Instant`] are its zero,
//! so that static tables of them take no space in an image.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod address;
pub mod glossary;
pub mod number;
pub mod payload;
pub mod random;
pub mod time;

pub use address::{Gid, MacAddress, Mtu};
pub use number::{Guid, Lid, PKey, Psn, QKey, QpNumber, Rate, ServiceLevel, VlanId, roce_source_port};
pub use payload::Payload;
pub use random::{SplitMix64, mix};
// Its documentation has relative links, which only the standard library's own pages resolve.
#[doc(no_inline)]
pub use time::Duration;
pub use time::{Instant, Wake};
