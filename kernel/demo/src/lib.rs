//! The demonstration workload.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod histogram;
mod pattern;
mod sizes;

pub use histogram::Histogram;
pub use pattern::Stream;
pub use sizes::Sizes;
