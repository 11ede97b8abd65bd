//! Command inputs and outputs, by subject, all re-exported here.

mod counters;
mod cq;
mod dct;
mod device;
mod eq;
mod mad;
mod mkey;
mod port;
mod qp;
mod resources;
mod srq;

pub use counters::*;
pub use cq::*;
pub use dct::*;
pub use device::*;
pub use eq::*;
pub use mad::*;
pub use mkey::*;
pub use port::*;
pub use qp::*;
pub use resources::*;
pub use srq::*;
