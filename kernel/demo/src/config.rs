//! Configuration of a node.

use core::net::IpAddr;
use core::time::Duration;

use apps::Role;
use rds_nostd::Generation;

/// How much is moved, both sides together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// DAT messages, half of them each way.
    pub messages: u64,
    /// Bytes by RDMA write.
    pub write_bytes: u64,
    /// Bytes by RDMA read.
    pub read_bytes: u64,
    /// RDS datagrams, half of them each way.
    pub datagrams: u64,
}

impl Volume {
    /// The demonstration's.
    pub const FULL: Self =
        Self { messages: 20_000, write_bytes: 64 << 20, read_bytes: 64 << 20, datagrams: 20_000 };

    /// One `n`th of it.
    #[must_use]
    pub const fn divided_by(self, n: u64) -> Self {
        Self {
            messages: self.messages / n,
            write_bytes: self.write_bytes / n,
            read_bytes: self.read_bytes / n,
            datagrams: self.datagrams / n,
        }
    }
}

/// Configuration of a node.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its side.
    pub role: Role,
    /// The other one's address.
    pub peer: IpAddr,
    /// Port of the DAT service.
    pub port: u16,
    /// How much to move.
    pub volume: Volume,
    /// Varies payloads and sizes; the same on both sides.
    pub seed: u64,
    /// Grows from boot to boot.
    pub generation: Generation,
    /// Maximum time for the connection.
    pub connect_timeout: Duration,
    /// Maximum time without progress.
    pub stall_timeout: Duration,
}
