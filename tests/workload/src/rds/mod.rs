//! Reliable Datagram Sockets. [`Flows`] are messages of all sizes. A [`Client`] runs the steps of a
//! [`Script`] on a [`Server`]: RDMA by cookie with every flag, and ports that close while they are not
//! read.
//!
//! | module | subject |
//! |---|---|
//! | `script`, `cases` | the steps, as data |
//! | `client`, `local` | the side that runs them, and its memory |
//! | `server` | the side that offers memory and sockets |
//! | `exchange` | the messages between them |
//! | `flows` | messages of all sizes |

mod cases;
mod client;
mod exchange;
mod flows;
mod local;
mod script;
mod server;

use core::fmt;

use apps::rds::AppError;
use driver_mlx::OutOfBounds;
use rds_nostd::RdsError;

pub use client::Client;
pub use flows::Flows;
pub use script::Script;
pub use server::Server;

use crate::report::StepResult;

/// Result of a side. Displays as the words of a `@result` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Operations that succeeded; of a server, regions offered and messages read.
    pub result: StepResult,
    /// Operations that failed, as they must.
    pub failed: u64,
    /// Atomic operations among those that succeeded.
    pub atomics: u64,
    /// Operations that were repeated because their connection broke.
    pub dropped: u64,
    /// Messages that a congested port refused.
    pub refused: u64,
    /// Congestion updates.
    pub updates: u64,
    /// Requests that the server answered.
    pub requests: u64,
    /// Checks and messages of the server that found wrong bytes.
    pub wrong: u64,
}

impl Report {
    const fn new(op: &'static str) -> Self {
        Self {
            result: StepResult::new(op),
            failed: 0,
            atomics: 0,
            dropped: 0,
            refused: 0,
            updates: 0,
            requests: 0,
            wrong: 0,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { result, failed, atomics, dropped, refused, updates, requests, wrong } = self;
        write!(
            f,
            "{result} failed={failed} atomics={atomics} dropped={dropped} refused={refused} \
             updates={updates} requests={requests} wrong={wrong}"
        )
    }
}

/// The layout of the memory is constant.
fn no_memory(_: OutOfBounds) -> AppError {
    AppError::Rds { call: "memory", error: RdsError::InvalidArgument }
}
