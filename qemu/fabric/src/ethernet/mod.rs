//! Ethernet: frames as they are on the wire, without their frame check sequence, and a switch.
//!
//! | module | subject |
//! |---|---|
//! | [`frame`] | headers, checksums, hash and congestion mark of a frame |
//! | `switch` | the switch |
//! | `table` | addresses that the switch has learned |
//! | `flow` | addresses and transport of a frame, for losses |

mod flow;
pub mod frame;
mod switch;
mod table;

#[cfg(test)]
mod tests;

pub use flow::Flow;
pub use switch::{JUMBO_FRAME, RocePath, Switch, SwitchConfig, SwitchCounters};
