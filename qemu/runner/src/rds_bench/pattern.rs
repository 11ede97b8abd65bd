//! What is measured.

use serde::Serialize;

/// Requests that each side has under way.
pub const DEPTH: u32 = 8;

/// What a pattern is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Requests per second, both ways together; each has an answer besides.
    Requests,
    /// Bytes of messages per second, both ways together.
    Bytes,
    /// Bytes by RDMA per second, both ways together.
    RdmaBytes,
}

impl Unit {
    /// A rate, for people.
    #[must_use]
    pub fn show(self, rate: f64) -> String {
        match self {
            Self::Requests => format!("{rate:.0}/s"),
            Self::Bytes | Self::RdmaBytes => format!("{:.1} MiB/s", rate / f64::from(1 << 20)),
        }
    }
}

/// Requests of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pattern {
    /// What it is called.
    pub name: &'static str,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of the RDMA operation that goes with its answer; 0 without.
    pub rdma: u32,
    /// What is compared.
    pub unit: Unit,
    /// How often the unikernels have to be as fast as Linux.
    pub bar: f64,
}

/// All of them.
pub const PATTERNS: [Pattern; 5] = [
    Pattern { name: "64 B", request: 64, rdma: 0, unit: Unit::Requests, bar: 3.0 },
    Pattern { name: "1 KiB", request: 1 << 10, rdma: 0, unit: Unit::Requests, bar: 3.0 },
    Pattern { name: "64 KiB", request: 64 << 10, rdma: 0, unit: Unit::Bytes, bar: 1.5 },
    Pattern { name: "RDMA of 64 KiB", request: 1 << 10, rdma: 64 << 10, unit: Unit::RdmaBytes, bar: 1.0 },
    Pattern { name: "RDMA of 1 MiB", request: 1 << 10, rdma: 1 << 20, unit: Unit::RdmaBytes, bar: 1.0 },
];
