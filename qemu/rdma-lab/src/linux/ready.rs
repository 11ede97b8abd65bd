//! Time that a machine takes to become ready.

use serde::Serialize;

/// Time from power on to an HCA whose port is Active.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ready {
    /// Wall-clock time, in seconds.
    pub seconds: f64,
    /// Processor time of the machine's CPU, in seconds.
    pub cpu_seconds: f64,
}

impl Ready {
    /// Returns the processor time of `other` as a multiple of this one's.
    #[must_use]
    pub fn times(&self, other: &Self) -> f64 {
        other.cpu_seconds / self.cpu_seconds
    }
}
