//! InfiniBand management as pure protocol.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod cm;
pub mod gid;
pub mod ipoib;
pub mod mad;
pub mod path;
pub mod rdma_cm;
pub mod sa;
pub mod smp;
pub mod units;
mod view;
pub mod wire;

pub use gid::Gid;

#[cfg(test)]
mod testing;
