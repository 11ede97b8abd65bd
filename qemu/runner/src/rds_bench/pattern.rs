//! Patterns to measure.

use serde::Serialize;

/// Requests in flight on each side.
pub const DEPTH: u32 = 8;

/// Rate by which a pattern is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Requests per second, in both directions together. Each request has a reply, which does not
    /// count.
    Requests,
    /// Message bytes per second, in both directions together.
    Bytes,
    /// RDMA bytes per second, in both directions together.
    RdmaBytes,
}

impl Unit {
    /// Formats a rate for people.
    #[must_use]
    pub fn show(self, rate: f64) -> String {
        match self {
            Self::Requests => format!("{rate:.0}/s"),
            Self::Bytes | Self::RdmaBytes => format!("{:.1} MiB/s", rate / f64::from(1 << 20)),
        }
    }
}

/// A kind of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pattern {
    /// Name in the table.
    pub name: &'static str,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of the RDMA operation that accompanies the reply; 0 for none.
    pub rdma: u32,
    /// Rate to compare.
    pub unit: Unit,
    /// Required ratio of the unikernels' rate to Linux's.
    pub bar: f64,
}

/// All patterns.
pub const PATTERNS: [Pattern; 5] = [
    Pattern { name: "64 B", request: 64, rdma: 0, unit: Unit::Requests, bar: 3.0 },
    Pattern { name: "1 KiB", request: 1 << 10, rdma: 0, unit: Unit::Requests, bar: 3.0 },
    Pattern { name: "64 KiB", request: 64 << 10, rdma: 0, unit: Unit::Bytes, bar: 1.5 },
    Pattern { name: "RDMA of 64 KiB", request: 1 << 10, rdma: 64 << 10, unit: Unit::RdmaBytes, bar: 1.0 },
    Pattern { name: "RDMA of 1 MiB", request: 1 << 10, rdma: 1 << 20, unit: Unit::RdmaBytes, bar: 1.0 },
];
