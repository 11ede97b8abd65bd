//! Time: instants of a monotonic clock, and when a state machine wants to run again.
//!
//! This module has no clock. The caller of a state machine reads a clock, and passes the instant
//! in.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

// Its documentation has relative links, which only the standard library's own pages resolve.
#[doc(no_inline)]
pub use core::time::Duration;

/// An instant of a monotonic clock: nanoseconds from an arbitrary origin.
///
/// Arithmetic saturates at both ends of the clock, so that a duration from outside cannot wrap a
/// deadline into the past.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// The clock's origin.
    pub const ORIGIN: Self = Self { nanos: 0 };
    /// The last instant that the clock can show, after about 584 years: as a deadline, none.
    pub const MAX: Self = Self { nanos: u64::MAX };

    /// The instant so many nanoseconds after the origin.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// `duration` later, at most [`Instant::MAX`].
    #[inline]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self { nanos: self.nanos.saturating_add(nanos_of(duration)) }
    }

    /// `duration` earlier, at least [`Instant::ORIGIN`].
    #[inline]
    pub const fn saturating_sub(self, duration: Duration) -> Self {
        Self { nanos: self.nanos.saturating_sub(nanos_of(duration)) }
    }

    /// The time from `earlier` to this instant; zero if `earlier` is not earlier.
    #[inline]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

/// Nanoseconds of a duration, as many as the clock can count.
const fn nanos_of(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// As [`Instant::saturating_add`].
    #[inline]
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// As [`Instant::saturating_sub`].
    #[inline]
    fn sub(self, duration: Duration) -> Self {
        self.saturating_sub(duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// As [`Instant::saturating_duration_since`].
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({:?})", Duration::from_nanos(self.nanos))
    }
}

/// When a state machine wants to be polled again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use = "whoever polls must poll again at this time"]
pub enum Wake {
    /// At once: there is more to do.
    Now,
    /// At this instant, or earlier if something arrives.
    At(Instant),
    /// When something arrives: nothing is timed.
    #[default]
    Idle,
}

impl Wake {
    /// At a deadline; [`Instant::MAX`] is none.
    pub const fn by(deadline: Instant) -> Self {
        if deadline.nanos == u64::MAX { Self::Idle } else { Self::At(deadline) }
    }

    /// The earlier of both.
    pub const fn earliest(self, other: Self) -> Self {
        match (self, other) {
            (Self::Now, _) | (_, Self::Now) => Self::Now,
            (Self::Idle, wake) | (wake, Self::Idle) => wake,
            (Self::At(a), Self::At(b)) => Self::At(if a.nanos <= b.nanos { a } else { b }),
        }
    }

    /// Returns whether the time has come.
    pub const fn is_due(self, now: Instant) -> bool {
        match self {
            Self::Now => true,
            Self::At(at) => at.nanos <= now.nanos,
            Self::Idle => false,
        }
    }

    /// Returns until when a loop may sleep that read the clock at `now`. `now` itself: not at all;
    /// `None`: until an event arrives.
    pub const fn deadline(self, now: Instant) -> Option<Instant> {
        match self {
            Self::Now => Some(now),
            Self::At(at) => Some(at),
            Self::Idle => None,
        }
    }
}

impl From<Option<Instant>> for Wake {
    /// At a deadline, if there is one.
    fn from(deadline: Option<Instant>) -> Self {
        deadline.map_or(Self::Idle, Self::At)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(at(5) + Duration::from_nanos(7), at(12));
        assert_eq!(at(u64::MAX - 1) + Duration::from_secs(1), Instant::MAX);
        assert_eq!(at(1) + Duration::MAX, Instant::MAX);
        assert_eq!(at(5) - Duration::from_nanos(7), Instant::ORIGIN);
        assert_eq!(at(12) - at(5), Duration::from_nanos(7));
        assert_eq!(at(5) - at(12), Duration::ZERO);
        assert_eq!(Instant::MAX - Instant::ORIGIN, Duration::from_nanos(u64::MAX));
        let mut instant = at(1);
        instant += Duration::from_micros(1);
        assert_eq!(instant, at(1001));
    }

    #[test]
    fn a_wake_is_due_when_its_time_has_come() {
        assert!(Wake::Now.is_due(at(0)) && Wake::At(at(3)).is_due(at(3)) && Wake::At(at(3)).is_due(at(4)));
        assert!(!Wake::At(at(3)).is_due(at(2)) && !Wake::Idle.is_due(Instant::MAX));
        assert_eq!(Wake::Now.deadline(at(9)), Some(at(9)));
        assert_eq!(Wake::At(at(3)).deadline(at(9)), Some(at(3)));
        assert_eq!(Wake::Idle.deadline(at(9)), None);
        assert_eq!((Wake::from(None), Wake::from(Some(at(1)))), (Wake::Idle, Wake::At(at(1))));
        assert_eq!((Wake::by(Instant::MAX), Wake::by(at(1))), (Wake::Idle, Wake::At(at(1))));
    }

    #[test]
    fn formats_say_the_unit() {
        assert_eq!(std::format!("{:?}", at(1_500_000)), "Instant(1.5ms)");
    }

    fn wakes() -> impl Strategy<Value = Wake> {
        prop_oneof![Just(Wake::Now), (0u64..5).prop_map(|nanos| Wake::At(at(nanos))), Just(Wake::Idle)]
    }

    proptest! {
        #[test]
        fn the_earliest_is_due_as_soon_as_either(a in wakes(), b in wakes(), now in 0u64..6) {
            let both = a.earliest(b);
            prop_assert_eq!(both, b.earliest(a));
            prop_assert_eq!(both.is_due(at(now)), a.is_due(at(now)) || b.is_due(at(now)));
            prop_assert!(both == a || both == b);
        }
    }
}
