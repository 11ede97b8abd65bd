//! InfiniBand management as pure protocol.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod gid;
pub mod wire;

pub use gid::Gid;

#[cfg(test)]
mod testing;
