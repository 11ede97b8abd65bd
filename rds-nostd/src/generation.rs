//! Generation of a node: distinguishes its boots.

use core::time::Duration;

/// First sequence number of a boot's messages.
///
/// The generation must grow from boot to boot by more than the messages that a boot sends to one
/// peer. Otherwise a peer that remembers an earlier boot takes retransmitted messages for
/// duplicates and drops them.
///
/// The wall clock in nanoseconds grows fast enough. If the clock counts seconds, a boot must not
/// send in the second of its generation, because another boot in that second would get the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    /// Generation of a node without a clock. Its messages begin with number 1 in every boot, or
    /// with the number that a peer with this crate expects. Linux drops retransmitted messages
    /// until it has received as many as in the earlier boots.
    pub const UNKNOWN: Self = Self(0);
    /// Maximum useful generation.
    const MOST: u64 = 1 << 63;

    /// Derives the generation from the wall clock: the time since a date that is the same for all
    /// boots.
    #[must_use]
    pub const fn from_wall_clock(time: Duration) -> Self {
        let nanos = time.as_nanos();
        Self(if nanos < Self::MOST as u128 { nanos as u64 } else { Self::MOST })
    }

    pub(crate) const fn first_sequence(self) -> u64 {
        self.0 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_is_more() {
        let at = |nanos| Generation::from_wall_clock(Duration::from_nanos(nanos));
        assert!(Generation::UNKNOWN < at(1) && at(1) < at(2));
        assert_eq!(at(u64::MAX), Generation(Generation::MOST), "and never wraps");
    }
}
