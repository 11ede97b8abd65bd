//! The time that a machine takes until it is ready.

use serde::Serialize;

/// Time from power on to an HCA whose port is Active.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ready {
    /// By the clock.
    pub seconds: f64,
    /// Of the machine's CPU.
    pub cpu_seconds: f64,
}

impl Ready {
    /// How many times as much processor time `other` took.
    #[must_use]
    pub fn times(&self, other: &Self) -> f64 {
        other.cpu_seconds / self.cpu_seconds
    }
}
