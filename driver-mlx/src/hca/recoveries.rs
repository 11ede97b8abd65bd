//! How often recovery may be tried.

use crate::error::Error;
use crate::types::{Duration, Instant};

/// Attempts in a row that may fail; then none is made any more.
const ATTEMPTS: u32 = 3;

/// How recoveries went so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recoveries {
    /// Failed since the last that succeeded.
    pub(super) failed: u32,
    /// When the last one succeeded.
    pub(super) last: Option<Instant>,
}

impl Recoveries {
    /// Whether another may be tried now.
    pub(super) fn admit(&self, now: Instant, grace: Duration) -> Result<(), Error> {
        if self.failed >= ATTEMPTS {
            return Err(Error::RecoveryGivenUp { attempts: self.failed });
        }
        match self.last.map(|last| last + grace) {
            Some(end) if now < end => {
                Err(Error::RecoveryTooSoon { wait_ms: ((end - now).as_millis() as u64).max(1) })
            }
            _ => Ok(()),
        }
    }
}
