//! The functions of DAT 1.2, as `<dat/udat.h>` declares them, and those of `<dat/dat_ib_extensions.h>`.
//!
//! # Safety
//! Every pointer is null or to memory of the type that the header says, which the call may read or write as it says; of no other thread's
//! meanwhile. Handles may be any numbers.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)] // The module says it, and the specification.

mod cno;
mod connection;
mod context;
mod cr;
mod dto;
mod ep;
mod evd;
mod exported;
mod ia;
mod ib;
mod lmr;
mod pz;
mod registry;
mod rmr;
mod service_point;
mod srq;

pub use cno::*;
pub use connection::*;
pub use context::*;
pub use cr::*;
pub use dto::*;
pub use ep::*;
pub use evd::*;
pub use ia::*;
pub use ib::*;
pub use lmr::*;
pub use pz::*;
pub use registry::*;
pub use rmr::*;
pub use service_point::*;
pub use srq::*;

/// Calls that wait, under their names, not yet made.
pub mod requests {
    pub use super::cno::cno_wait_call as dat_cno_wait;
    pub use super::evd::{evd_wait_call as dat_evd_wait, evd_wait_call as dat_ib_evd_wait};
}
