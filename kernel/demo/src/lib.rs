//! The demonstration workload: two nodes move data by DAT send and receive, RDMA write, RDMA read and RDS datagrams, use the rest of
//! DAT's objects between them, and check every byte. It is driven by polling and knows nothing of where it runs, so that the same code runs in the unikernel on
//! QEMU and in one process on the emulated HCA.
//!
//! | module | subject |
//! |---|---|
//! | `pattern`, `sizes` | what is sent: bytes of sender, sequence and position; sizes log-uniform with the edge cases first |
//! | `config`, `storage` | what a node is told, its memory |
//! | `link` | DAT objects, buffers, the connection, control messages |
//! | `parts`, `datagrams` | the operations |
//! | `objects` | windows, shared queues, watermarks, service points, the graceful end, notification |
//! | `run` | the order of things |
//! | `report`, `histogram`, `error` | what is told |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod config;
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
mod storage;

pub use rds_nostd::Generation;

pub use apps::{Role, Status};
pub use config::{Config, Volume};
pub use error::DemoError;
pub use histogram::Histogram;
pub use pattern::Stream;
pub use report::{Operation, OperationResult, Reporter};
pub use run::Demo;
pub use sizes::Sizes;
pub use storage::Storage;
