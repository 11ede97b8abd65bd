//! Recovery of a failed HCA: brings it back, or gives up.

use core::fmt::{self, Display};
use dat_nostd::{Adapter, Duration, Instant, OpenError, Platform};
use driver_mlx::Error;
use rds_nostd::{Rds, RdsError};

/// How long an HCA may be absent, or its firmware may initialize, before recovery gives up. Linux's
/// mlx5 waits as long for firmware.
const ABSENCE: Duration = Duration::from_secs(120);
/// Interval between attempts.
const INTERVAL: Duration = Duration::from_millis(100);
/// Consecutive failures of [`Rds::adapter_recovered`] before recovery gives up.
const ATTEMPTS: u32 = 3;

/// State of an HCA, as recovery sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// In service: no failure was seen.
    Working,
    /// Failed, and may come back. Messages wait in the send queues.
    Failed {
        /// Start of the time without a response, or of firmware's initialization.
        away: Option<Instant>,
        /// Failures of [`Rds::adapter_recovered`] so far.
        attempts: u32,
        /// Earliest time of the next attempt, because every call of the program polls the recovery.
        next: Instant,
    },
    /// Given up after failed attempts, or after two minutes without a response.
    Gone,
}

/// An HCA, as recovery sees and treats it.
trait RecoverableHca {
    fn now(&self) -> Instant;
    /// Returns whether the HCA has failed.
    fn is_dead(&self) -> bool;
    /// Returns whether the server of an emulated HCA has exited.
    fn is_gone(&self) -> bool;
    /// Returns whether the HCA responds and its firmware has started. A function responds after a
    /// reset once its configuration is restored.
    fn answers(&mut self) -> bool;
    /// Brings the HCA up.
    fn recover(&mut self) -> Recovered;
    /// Restarts the protocol on the recovered HCA.
    fn reopen(&mut self) -> Result<(), RdsError>;
    /// Logs a failure.
    fn complain(&mut self, what: &dyn Display);
}

/// Result of an attempt to bring an HCA up.
#[derive(Debug)]
enum Recovered {
    Done,
    /// Failed; retry after this time at the earliest.
    TooSoon(Duration),
    /// Failed; retry.
    Failed(OpenError),
    /// Failed permanently.
    GivenUp(OpenError),
}

/// An HCA with the protocol on it.
pub struct Hca<'h, P: Platform + 'static> {
    /// Its adapter.
    pub adapter: &'h mut Adapter<'static, P>,
    /// The protocol.
    pub rds: &'h mut Rds<'static>,
    /// True if the server of an emulated HCA has exited, so that no HCA can come back.
    pub is_gone: bool,
    /// Logs a failure.
    pub complain: &'h dyn Fn(&dyn Display),
}

impl<P: Platform + 'static> fmt::Debug for Hca<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hca").field("is_gone", &self.is_gone).finish_non_exhaustive()
    }
}

impl<P: Platform + 'static> RecoverableHca for Hca<'_, P> {
    fn now(&self) -> Instant {
        self.adapter.now()
    }

    fn is_dead(&self) -> bool {
        self.adapter.is_dead()
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn answers(&mut self) -> bool {
        self.adapter.hca().restored_device_state().is_some_and(|state| !state.initializing)
    }

    fn recover(&mut self) -> Recovered {
        match self.adapter.recover(Duration::ZERO) {
            // A port that comes up later raises an event.
            Ok(()) | Err(OpenError::PortNotActive { .. }) => Recovered::Done,
            Err(OpenError::Hca(Error::RecoveryTooSoon { wait_ms })) => {
                Recovered::TooSoon(Duration::from_millis(wait_ms.max(1)))
            }
            Err(error @ OpenError::Hca(Error::RecoveryGivenUp { .. })) => Recovered::GivenUp(error),
            Err(error) => Recovered::Failed(error),
        }
    }

    fn reopen(&mut self) -> Result<(), RdsError> {
        self.rds.adapter_recovered(self.adapter)
    }

    fn complain(&mut self, what: &dyn Display) {
        (self.complain)(what);
    }
}

impl Health {
    /// Checks an HCA and recovers it after a failure. Blocks some seconds then, and up to a minute
    /// while another function resets the card. Returns when to check again at the latest; `None`
    /// for an HCA that works or is gone.
    pub fn tend<P: Platform + 'static>(&mut self, hca: &mut Hca<'_, P>) -> Option<Instant> {
        self.step(hca)
    }

    fn step(&mut self, hca: &mut impl RecoverableHca) -> Option<Instant> {
        let now = hca.now();
        let (away, attempts) = match *self {
            Self::Working if hca.is_dead() => (None, 0),
            Self::Failed { next, .. } if now < next => return Some(next),
            Self::Failed { away, attempts, .. } => (away, attempts),
            Self::Working | Self::Gone => return None,
        };
        if !hca.is_dead() {
            return self.reopen(hca, attempts);
        }
        if hca.is_gone() {
            return self.give_up(hca, &"its server has exited");
        }
        if !hca.answers() {
            let since = away.unwrap_or(now);
            if now - since >= ABSENCE {
                return self.give_up(hca, &"no response for two minutes");
            }
            return self.retry(Some(since), attempts, now + INTERVAL);
        }
        match hca.recover() {
            Recovered::Done => self.reopen(hca, attempts),
            Recovered::TooSoon(wait) => self.retry(None, attempts, now + wait),
            Recovered::GivenUp(error) => self.give_up(hca, &error),
            Recovered::Failed(error) => {
                hca.complain(&format_args!("recovery: {error}"));
                self.retry(None, attempts, hca.now() + INTERVAL)
            }
        }
    }

    /// Restarts the protocol on the recovered HCA.
    fn reopen(&mut self, hca: &mut impl RecoverableHca, attempts: u32) -> Option<Instant> {
        let reopened = hca.reopen();
        // The recovery took time.
        let now = hca.now();
        match reopened {
            Ok(()) => {
                *self = Self::Working;
                // Call again immediately: the protocol has work.
                Some(now)
            }
            Err(error) if attempts + 1 >= ATTEMPTS => self.give_up(hca, &error),
            Err(_) => self.retry(None, attempts + 1, now + INTERVAL),
        }
    }

    /// Schedules the next attempt.
    fn retry(&mut self, away: Option<Instant>, attempts: u32, next: Instant) -> Option<Instant> {
        *self = Self::Failed { away, attempts, next };
        Some(next)
    }

    fn give_up(&mut self, hca: &mut impl RecoverableHca, why: &dyn Display) -> Option<Instant> {
        hca.complain(&format_args!("HCA lost: {why}"));
        *self = Self::Gone;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// Fake HCA. Each attempt takes a second.
    #[derive(Default)]
    struct FakeHca {
        now: Duration,
        is_dead: bool,
        is_gone: bool,
        answers: bool,
        recovers: Vec<Recovered>,
        reopens: Vec<Result<(), RdsError>>,
    }

    impl RecoverableHca for FakeHca {
        fn now(&self) -> Instant {
            Instant::ORIGIN + self.now
        }

        fn is_dead(&self) -> bool {
            self.is_dead
        }

        fn is_gone(&self) -> bool {
            self.is_gone
        }

        fn answers(&mut self) -> bool {
            self.answers
        }

        fn recover(&mut self) -> Recovered {
            self.now += Duration::from_secs(1);
            let recovered = self.recovers.remove(0);
            self.is_dead = !matches!(recovered, Recovered::Done);
            recovered
        }

        fn reopen(&mut self) -> Result<(), RdsError> {
            self.now += Duration::from_secs(1);
            self.reopens.remove(0)
        }

        fn complain(&mut self, _: &dyn Display) {}
    }

    impl FakeHca {
        /// Calls `step` once at its deadline, and a hundred times before, which must have no
        /// effect.
        fn step_when_due(&mut self, health: &mut Health) -> Option<Instant> {
            let due = health.step(self)?;
            let before = *health;
            let left = (self.recovers.len(), self.reopens.len());
            if let Health::Failed { .. } = health {
                for _ in 0..100 {
                    assert_eq!((health.step(self), *health), (Some(due), before));
                }
                assert_eq!((self.recovers.len(), self.reopens.len()), left);
                assert!(due > self.now(), "{due:?} is past");
                self.now = due - Instant::ORIGIN;
            }
            Some(due)
        }
    }

    fn failed() -> OpenError {
        OpenError::Hca(Error::RecoveryTooSoon { wait_ms: 0 })
    }

    #[test]
    fn an_absent_hca_is_gone_after_two_minutes() {
        let mut health = Health::Working;
        let mut hca = FakeHca::default();
        assert_eq!((health.step(&mut hca), health), (None, Health::Working));
        hca.is_dead = true;
        while hca.step_when_due(&mut health).is_some() {
            assert!(hca.now <= ABSENCE);
        }
        assert_eq!((health, hca.now), (Health::Gone, ABSENCE));
        assert_eq!(health.step(&mut hca), None);
    }

    #[test]
    fn a_lost_server_or_a_final_error_is_gone_immediately() {
        let mut health = Health::Working;
        let mut hca = FakeHca { is_dead: true, is_gone: true, ..FakeHca::default() };
        assert_eq!((health.step(&mut hca), health), (None, Health::Gone));
        health = Health::Working;
        let recovers = vec![Recovered::TooSoon(Duration::from_secs(7)), Recovered::GivenUp(failed())];
        hca = FakeHca { is_dead: true, answers: true, recovers, ..FakeHca::default() };
        assert_eq!(hca.step_when_due(&mut health), Some(Instant::ORIGIN + Duration::from_secs(7)));
        assert_eq!((hca.step_when_due(&mut health), health), (None, Health::Gone));
    }

    #[test]
    fn a_recovered_hca_works_and_its_attempts_restart() {
        let mut health = Health::Working;
        for _ in 0..3 {
            let refused = || Err(RdsError::NoMemory);
            let mut hca = FakeHca {
                is_dead: true,
                answers: true,
                recovers: vec![Recovered::Failed(failed()), Recovered::Failed(failed()), Recovered::Done],
                reopens: vec![refused(), refused(), Ok(())],
                ..FakeHca::default()
            };
            while health != Health::Working || hca.is_dead {
                assert!(hca.step_when_due(&mut health).is_some());
            }
            assert!(hca.recovers.is_empty() && hca.reopens.is_empty());
        }
    }

    #[test]
    fn three_failed_reopens_give_up() {
        let mut health = Health::Working;
        let refused = || Err(RdsError::NoMemory);
        let mut hca = FakeHca {
            is_dead: true,
            answers: true,
            recovers: vec![Recovered::Done],
            reopens: vec![refused(), refused(), refused(), Ok(())],
            ..FakeHca::default()
        };
        while hca.step_when_due(&mut health).is_some() {}
        assert_eq!((health, hca.reopens.len()), (Health::Gone, 1));
    }
}
