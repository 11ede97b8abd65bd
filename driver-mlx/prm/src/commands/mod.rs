//! Command inputs and outputs, by subject, all re-exported here.

pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod dct;
pub(crate) mod device;
pub(crate) mod devx;
pub(crate) mod eq;
pub(crate) mod flow;
pub(crate) mod mad;
pub(crate) mod memic;
pub(crate) mod mkey;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod raw;
pub(crate) mod resources;
pub(crate) mod srq;

pub use counters::*;
pub use cq::*;
pub use dct::*;
pub use device::*;
pub use devx::*;
pub use eq::*;
pub use flow::*;
pub use mad::*;
pub use memic::*;
pub use mkey::*;
pub use port::*;
pub use qp::*;
pub use raw::*;
pub use resources::*;
pub use srq::*;
