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
mod event;
mod handle;
mod ret;
mod table;
mod types;

pub use adapter::{Adapter, Wait};
pub use attr::*;
pub use driver_mlx::{DmaSlice, Platform};
pub use event::*;
pub use handle::*;
pub use ret::*;
pub use types::*;
