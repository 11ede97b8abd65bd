//! DAT 1.2 (uDAPL) without an operating system: no heap, no threads, no clock.
//!
//! Every call is a method of [`Adapter`], named as in the specification without the `dat_` prefix, and answers with a
//! [`DatResult`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod adapter;
mod attr;
mod close;
mod completion;
mod connect;
mod cr;
mod dto;
mod ep;
mod evd;
mod event;
mod framing;
mod handle;
mod ia;
mod memory;
mod queue;
mod random;
mod ret;
mod states;
mod storage;
mod table;
mod types;
mod wait;
mod work;

pub use adapter::{Adapter, AdapterConfig, AdapterCounters, Neighbour, OpenError};
pub use attr::*;
pub use driver_mlx::{Bar, DmaRegion, DmaSlice, Gid, Platform};
pub use event::*;
pub use handle::*;
pub use ret::*;
pub use storage::{AdapterParts, AdapterStorage, MAX_CRS, MAX_IAS, MAX_PSPS, MAX_PZS};
pub use types::*;
pub use wait::Wait;
