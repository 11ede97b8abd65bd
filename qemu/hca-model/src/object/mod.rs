//! The device's objects.

pub mod census;
pub mod compression;
pub mod counters;
pub mod cq;
pub mod eq;
pub mod interleaved;
pub mod memic;
pub mod mkey;
pub(crate) mod nic;
pub mod objects;
pub(crate) mod owners;
pub mod pages;
pub mod qp;
pub mod qps;
pub mod queues;
pub mod remote_access;
pub mod reserved;
pub mod srq;
pub mod table;
pub mod translation;
pub mod uar;
pub mod uars;
pub mod umem;
pub mod umr;
pub mod walk;

/// The 24-bit difference `a - b` of wrapping counters.
#[must_use]
pub const fn distance24(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & 0x00ff_ffff
}
