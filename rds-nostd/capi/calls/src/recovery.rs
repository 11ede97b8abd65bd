//! Recovery of a failed HCA: brings it back, or gives up.

use core::fmt::{self, Display};
use dat_nostd::{Adapter, Duration, Instant, OpenError, Platform};
use driver_mlx::Error;
use rds_nostd::{Rds, RdsError};

/// How long an HCA may be absent, or its firmware may initialize, before recovery gives up. Linux's
/// mlx5 waits as long for firmware.
const ABSENCE: Duration = Duration::from_secs(120);
/// Interval between attempts.
const LOOK: Duration = Duration::from_millis(100);
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
trait Patient {
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

impl<P: Platform + 'static> Patient for Hca<'_, P> {
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
        self.look_after(hca)
    }

    fn look_after(&mut self, hca: &mut impl Patient) -> Option<Instant> {
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
            return self.give_up(hca, &"its server has ended");
        }
        if !hca.answers() {
            let since = away.unwrap_or(now);
            if now - since >= ABSENCE {
                return self.give_up(hca, &"it does not come back");
            }
            return self.again(Some(since), attempts, now + LOOK);
        }
        match hca.recover() {
            Recovered::Done => self.reopen(hca, attempts),
            Recovered::TooSoon(wait) => self.again(None, attempts, now + wait),
            Recovered::GivenUp(error) => self.give_up(hca, &error),
            Recovered::Failed(error) => {
                hca.complain(&format_args!("recovery: {error}"));
                self.again(None, attempts, hca.now() + LOOK)
            }
        }
    }

    /// Restarts the protocol on the recovered HCA.
    fn reopen(&mut self, hca: &mut impl Patient, attempts: u32) -> Option<Instant> {
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
            Err(_) => self.again(None, attempts + 1, now + LOOK),
        }
    }

    /// Schedules the next attempt.
    fn again(&mut self, away: Option<Instant>, attempts: u32, next: Instant) -> Option<Instant> {
        *self = Self::Failed { away, attempts, next };
        Some(next)
    }

    fn give_up(&mut self, hca: &mut impl Patient, why: &dyn Display) -> Option<Instant> {
        hca.complain(&format_args!("the HCA is given up: {why}"));
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
    struct Told {
        now: Duration,
        is_dead: bool,
        is_gone: bool,
        answers: bool,
        recovers: Vec<Recovered>,
        reopens: Vec<Result<(), RdsError>>,
    }

    impl Patient for Told {
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

    impl Told {
        /// Calls `look_after` once at its deadline, and a hundred times before, which must have no
        /// effect.
        fn tended(&mut self, health: &mut Health) -> Option<Instant> {
            let due = health.look_after(self)?;
            let before = *health;
            let left = (self.recovers.len(), self.reopens.len());
            if let Health::Failed { .. } = health {
                for _ in 0..100 {
                    assert_eq!((health.look_after(self), *health), (Some(due), before));
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
    fn one_that_stays_away_is_gone_after_two_minutes() {
        let mut health = Health::Working;
        let mut hca = Told::default();
        assert_eq!((health.look_after(&mut hca), health), (None, Health::Working));
        hca.is_dead = true;
        while hca.tended(&mut health).is_some() {
            assert!(hca.now <= ABSENCE);
        }
        assert_eq!((health, hca.now), (Health::Gone, ABSENCE));
        assert_eq!(health.look_after(&mut hca), None);
    }

    #[test]
    fn one_whose_server_has_ended_or_that_firmware_gives_up_is_gone_at_once() {
        let mut health = Health::Working;
        let mut hca = Told { is_dead: true, is_gone: true, ..Told::default() };
        assert_eq!((health.look_after(&mut hca), health), (None, Health::Gone));
        health = Health::Working;
        let recovers = vec![Recovered::TooSoon(Duration::from_secs(7)), Recovered::GivenUp(failed())];
        hca = Told { is_dead: true, answers: true, recovers, ..Told::default() };
        assert_eq!(hca.tended(&mut health), Some(Instant::ORIGIN + Duration::from_secs(7)));
        assert_eq!((hca.tended(&mut health), health), (None, Health::Gone));
    }

    #[test]
    fn one_that_comes_back_works_again_and_counts_anew() {
        let mut health = Health::Working;
        for _ in 0..3 {
            let refused = || Err(RdsError::NoMemory);
            let mut hca = Told {
                is_dead: true,
                answers: true,
                recovers: vec![Recovered::Failed(failed()), Recovered::Failed(failed()), Recovered::Done],
                reopens: vec![refused(), refused(), Ok(())],
                ..Told::default()
            };
            while health != Health::Working || hca.is_dead {
                assert!(hca.tended(&mut health).is_some());
            }
            assert!(hca.recovers.is_empty() && hca.reopens.is_empty());
        }
    }

    #[test]
    fn one_whose_objects_are_not_found_three_times_is_gone() {
        let mut health = Health::Working;
        let refused = || Err(RdsError::NoMemory);
        let mut hca = Told {
            is_dead: true,
            answers: true,
            recovers: vec![Recovered::Done],
            reopens: vec![refused(), refused(), refused(), Ok(())],
            ..Told::default()
        };
        while hca.tended(&mut health).is_some() {}
        assert_eq!((health, hca.reopens.len()), (Health::Gone, 1));
    }
}
