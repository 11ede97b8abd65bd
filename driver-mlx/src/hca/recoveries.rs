//! How often recovery may be tried.

use crate::error::Error;
use crate::types::{Duration, Instant};

/// Attempts in a row that may fail; then none is made any more.
const ATTEMPTS: u32 = 3;

/// How recoveries went so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recoveries {
    now: Tally,
    /// Before the last one that succeeded, for when it turns out that it did not.
    before: Tally,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Failed since the last that succeeded.
    failed: u32,
    /// When the last one succeeded.
    last: Option<Instant>,
}

impl Recoveries {
    /// Whether another may be tried now.
    pub(super) fn admit(&self, now: Instant, grace: Duration) -> Result<(), Error> {
        let Tally { failed, last } = self.now;
        if failed >= ATTEMPTS {
            return Err(Error::RecoveryGivenUp { attempts: failed });
        }
        match last.map(|last| last + grace) {
            Some(end) if now < end => {
                Err(Error::RecoveryTooSoon { wait_ms: ((end - now).as_millis() as u64).max(1) })
            }
            _ => Ok(()),
        }
    }

    /// One has succeeded.
    pub(super) fn succeeded(&mut self, now: Instant) {
        self.before = self.now;
        self.now = Tally { failed: 0, last: Some(now) };
    }

    /// One has failed.
    pub(super) fn failed(&mut self) {
        self.now.failed += 1;
    }

    /// The last one has failed after all.
    pub(super) fn withdraw(&mut self) {
        self.now = self.before;
        self.failed();
    }
}
