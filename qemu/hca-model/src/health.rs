//! The health of the device (PRM, health buffer).

use crate::log::{Log, Subject};
use mlx5_prm::status::HealthSyndrome;

/// Whether the device works, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Zero while healthy.
    pub syndrome: HealthSyndrome,
}

impl Default for Health {
    fn default() -> Self {
        Self { syndrome: HealthSyndrome::HEALTHY }
    }
}

impl Health {
    /// Whether the device has stopped.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.syndrome != HealthSyndrome::HEALTHY
    }

    /// Stops the device.
    pub fn fail(&mut self, log: &mut Log, syndrome: HealthSyndrome) {
        if !self.is_fatal() {
            self.syndrome = syndrome;
            log.refuse(Subject::Health(syndrome), "health_buffer.synd", "the device stops");
        }
    }
}
