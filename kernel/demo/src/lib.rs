//! The demonstration workload: two nodes move data by DAT send and receive, RDMA write, RDMA read and RDS datagrams, use the rest of
//! DAT's objects between them, and check every byte. It is driven by polling and knows nothing of where it runs, so that the same code runs in the unikernel on
//! QEMU and in one process on the emulated HCA.
//!
//! | module | subject |
//! |---|---|
//! | `pattern`, `sizes` | what is sent: bytes of sender, sequence and position; sizes log-uniform with the edge cases first |
//! | `link` | DAT objects, buffers, the connection, control messages |
//! | `parts`, `datagrams` | the operations |
//! | `objects` | windows, shared queues, watermarks, service points, the graceful end, notification |
//! | `run` | the order of things |
//! | `report`, `histogram`, `error` | what is told |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod datagrams;
mod error;
mod histogram;
mod link;
mod objects;
mod parts;
mod pattern;
mod report;
mod run;
mod sizes;

use core::net::IpAddr;

pub use rds_nostd::Generation;
use rds_nostd::RdsStorage;

pub use apps::{Role, Status};
pub use error::DemoError;
pub use histogram::Histogram;
pub use pattern::Stream;
pub use report::{Operation, OperationResult, Reporter};
pub use run::Demo;
pub use sizes::Sizes;

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

/// What a node is told.
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
    /// How long to wait for the peer, nanoseconds.
    pub connect_timeout: u64,
    /// How long nothing may move, nanoseconds.
    pub stall_timeout: u64,
}

/// Buffers of the datagram part.
pub struct Buffers {
    pub(crate) outgoing: [u8; datagrams::MAX_DATAGRAM],
    pub(crate) incoming: [u8; datagrams::MAX_DATAGRAM],
}

/// The memory of a node: about 640 KiB, all zero bytes, and 9 MiB from the adapter's DMA region.
pub struct Storage {
    buffers: Buffers,
    rds: RdsStorage<4, 4, 1280>,
}

impl Storage {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buffers: Buffers {
                outgoing: [0; datagrams::MAX_DATAGRAM],
                incoming: [0; datagrams::MAX_DATAGRAM],
            },
            rds: RdsStorage::new(),
        }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self::new()
    }
}
