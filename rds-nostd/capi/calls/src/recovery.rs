//! Recovery of an HCA that has failed: it is brought back if it can be, and given up if it cannot.

use core::fmt::{self, Display};
use dat_nostd::{Adapter, Duration, Instant, OpenError, Platform};
use driver_mlx::Error;
use rds_nostd::{Rds, RdsError};

/// How long an HCA may be away, or its firmware start, before it counts as gone: as long as Linux's mlx5 waits for firmware.
const ABSENCE: Duration = Duration::from_secs(120);
/// How often it is looked for, and how soon something else is tried again.
const LOOK: Duration = Duration::from_millis(100);
/// How often in a row the protocol may fail to make its objects anew.
const ATTEMPTS: u32 = 3;

/// State of an HCA, as recovery sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
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
    /// Given up after failed attempts, or after two minutes without an answer.
    Gone,
}

/// What is known of an HCA, and done about it.
trait Patient {
    fn now(&self) -> Instant;
    /// It has failed.
    fn is_dead(&self) -> bool;
    /// There is nobody any more who would answer in its place.
    fn is_gone(&self) -> bool;
    /// Whether it answers, and its firmware has started. A function that was reset answers once its configuration is restored.
    fn answers(&mut self) -> bool;
    /// Brings the HCA up.
    fn recover(&mut self) -> Recovered;
    /// The protocol goes on over it.
    fn reopen(&mut self) -> Result<(), RdsError>;
    /// Reports a failure to people.
    fn complain(&mut self, what: &dyn Display);
}

/// How an attempt to bring an HCA up has ended.
#[derive(Debug)]
enum Recovered {
    Done,
    /// It is tried again, at the earliest after so long.
    TooSoon(Duration),
    /// It is tried again.
    Failed(OpenError),
    /// It is not.
    GivenUp(OpenError),
}

/// An HCA with the protocol on it.
pub struct Hca<'h, P: Platform + 'static> {
    /// Its adapter.
    pub adapter: &'h mut Adapter<'static, P>,
    /// The protocol.
    pub rds: &'h mut Rds<'static>,
    /// True if nothing is left that could answer in the HCA's place: the server of an emulated HCA
    /// has ended.
    pub is_gone: bool,
    /// Reports a failure to people.
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
            // A port that comes up later tells so.
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
    /// Checks an HCA and recovers one that has failed. That can take some seconds, and up to a minute while another function resets
    /// the card. Returns when to check again, at the latest; `None` for an HCA that works or is gone.
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

    /// The HCA is back: the protocol goes on over it.
    fn reopen(&mut self, hca: &mut impl Patient, attempts: u32) -> Option<Instant> {
        let reopened = hca.reopen();
        // A recovery takes its time.
        let now = hca.now();
        match reopened {
            Ok(()) => {
                *self = Self::Working;
                // There is more to do than was known before.
                Some(now)
            }
            Err(error) if attempts + 1 >= ATTEMPTS => self.give_up(hca, &error),
            Err(_) => self.again(None, attempts + 1, now + LOOK),
        }
    }

    /// It is tried again, and not before `next`.
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

    /// An HCA by word of mouth. Each attempt takes a second.
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
        /// Tends it when it is due, and a hundred times before, which does nothing.
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
