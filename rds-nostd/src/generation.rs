//! What tells the boots of a node apart.

use core::time::Duration;

/// Where the numbers of a boot's messages begin. It has to grow from boot to boot, and by more than the messages that a boot sends to one
/// peer: a peer that knew this node before takes a message that is sent again, with a number that it has seen, for an old one, and
/// drops it.
///
/// The wall clock does: no node sends a message each nanosecond. If all that the clock has is seconds, a boot must not send anything
/// in the second that it took its generation in, or a second boot in the same second may take the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    /// For a node without a clock. Its messages begin with number 1 in every boot, or with what a peer says to expect: one with this crate
    /// does, one with Linux takes messages that are sent again for old ones until it has had as many as in the earlier boots.
    pub const UNKNOWN: Self = Self(0);
    /// The last one that is of use.
    const MOST: u64 = 1 << 63;

    /// By the wall clock: the time since any fixed date, the same in all boots.
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
