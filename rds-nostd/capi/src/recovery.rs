//! An HCA that has failed: it is brought back where it can be, and given up where it cannot.

use crate::node::LIBRARY;
use capi_device::complain;
use dat_nostd::{Adapter, Duration, Instant, OpenError, Platform};
use driver_mlx::Error;
use platform_linux::LinuxPlatform;
use rds_nostd::Rds;

/// How long an HCA may be away, or its firmware start, before it counts as gone: as long as Linux's mlx5 waits for firmware.
const ABSENCE: Duration = Duration::from_secs(120);
/// How often it is looked for, and how soon something else is tried again.
const LOOK: Duration = Duration::from_millis(100);
/// How often in a row the protocol may fail to make its objects anew.
const ATTEMPTS: u32 = 3;

/// How it stands with an HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It works, as far as is known.
    Working,
    /// It has failed and may come back: what was sent waits.
    Failed {
        /// Since when it does not answer, or starts.
        away: Option<Instant>,
        /// It is back, and the protocol has not found its objects so often.
        attempts: u32,
        /// Nothing is tried before: each call of the program comes by here.
        next: Instant,
    },
    /// It does not come back in this process's life.
    Gone,
}

impl Health {
    /// Looks after an HCA, and brings back one that has failed, which can take some seconds, and up to a minute where another function resets the card. When to look again, at the latest; None for
    /// one that works or is gone.
    pub(crate) fn tend(
        &mut self,
        adapter: &mut Adapter<'static, LinuxPlatform>,
        rds: &mut Rds<'static>,
    ) -> Option<Instant> {
        let now = adapter.platform().now();
        let (away, attempts) = match *self {
            Self::Working if adapter.is_dead() => (None, 0),
            Self::Failed { next, .. } if now < next => return Some(next),
            Self::Failed { away, attempts, .. } => (away, attempts),
            Self::Working | Self::Gone => return None,
        };
        if !adapter.is_dead() {
            return self.reopen(adapter, rds, attempts);
        }
        if adapter.platform().is_gone() {
            return self.give_up(&"its server has ended");
        }
        // Without this a function that was reset answers nothing.
        adapter.platform().restore_function();
        if adapter.hca().device_state().is_none_or(|state| state.initializing) {
            let since = away.unwrap_or(now);
            if now - since >= ABSENCE {
                return self.give_up(&"it does not come back");
            }
            return self.again(Some(since), attempts, now + LOOK);
        }
        match adapter.recover(Duration::ZERO) {
            // A port that comes up later tells so.
            Ok(()) | Err(OpenError::PortNotActive { .. }) => self.reopen(adapter, rds, attempts),
            Err(OpenError::Hca(Error::RecoveryTooSoon { wait_ms })) => {
                self.again(None, attempts, now + Duration::from_millis(wait_ms.max(1)))
            }
            Err(error @ OpenError::Hca(Error::RecoveryGivenUp { .. })) => self.give_up(&error),
            Err(error) => {
                complain(LIBRARY, &format!("recovery: {error}"));
                let now = adapter.platform().now();
                self.again(None, attempts, now + LOOK)
            }
        }
    }

    /// The HCA is back: the protocol goes on over it.
    fn reopen(
        &mut self,
        adapter: &mut Adapter<'static, LinuxPlatform>,
        rds: &mut Rds<'static>,
        attempts: u32,
    ) -> Option<Instant> {
        // A recovery takes its time.
        let reopened = rds.adapter_recovered(adapter);
        let now = adapter.platform().now();
        match reopened {
            Ok(()) => {
                *self = Self::Working;
                // There is more to do than was known before.
                Some(now)
            }
            Err(error) if attempts + 1 >= ATTEMPTS => self.give_up(&error),
            Err(_) => self.again(None, attempts + 1, now + LOOK),
        }
    }

    /// It is tried again, and not before `next`.
    fn again(&mut self, away: Option<Instant>, attempts: u32, next: Instant) -> Option<Instant> {
        *self = Self::Failed { away, attempts, next };
        Some(next)
    }

    fn give_up(&mut self, why: &dyn std::fmt::Display) -> Option<Instant> {
        complain(LIBRARY, &format!("the HCA is given up: {why}"));
        *self = Self::Gone;
        None
    }
}
