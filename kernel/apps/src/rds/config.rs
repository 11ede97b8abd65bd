//! What a node is told: its work, its ports.

use core::net::IpAddr;
use core::time::Duration;

pub use rds_nostd::Generation;

/// Sockets of each side, in every mode.
pub const SOCKETS: usize = 8;
/// The echo server's sockets are bound to this port and those behind it.
pub const ECHO_PORT: u16 = 4000;
/// Longest message that a node sends or takes, in bytes.
pub const MAX_LEN: usize = 100 << 10;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Pings the peer: empty messages to port 0, from 8 sockets in turn.
    Ping {
        /// How many.
        count: u32,
        /// From one to the next.
        interval: Duration,
    },
    /// Sends back what arrives at 8 ports. Ends when it is told to.
    Echo,
}

/// What a node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What to do.
    pub mode: Mode,
    /// The other node; an echo server takes anybody.
    pub peer: IpAddr,
    /// Independent of the work.
    pub settings: Settings,
}

/// Settings of a node that are independent of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Varies ports and times (see [`rds_nostd::RdsConfig`]).
    pub random: u64,
    /// Grows from boot to boot.
    pub generation: Generation,
    /// Maximum time without progress.
    pub stall_timeout: Duration,
}
