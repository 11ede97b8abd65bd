//! The cases of RDMA by cookie. `tests/guest/rds_rdma.c` has the same.

use rds_nostd::{MAX_RDMA_LEN, RdmaFlags};

use super::exchange::FIRST_OFFSET;

/// Lengths of regions and operations.
const LENGTHS: [usize; 12] = [1, 2, 63, 64, 511, 4095, 4096, 4097, 65_537, 262_143, 1_000_001, MAX_RDMA_LEN];
/// Flags of an offered region.
const OFFERS: [RdmaFlags; 4] = [
    RdmaFlags::empty(),
    RdmaFlags::INVALIDATE,
    RdmaFlags::USE_ONCE,
    RdmaFlags::USE_ONCE.union(RdmaFlags::INVALIDATE),
];
/// Flags of an operation.
const WAYS: [RdmaFlags; 4] = [
    RdmaFlags::NOTIFY_ME,
    RdmaFlags::NOTIFY_ME.union(RdmaFlags::FENCE),
    RdmaFlags::FENCE,
    RdmaFlags::NOTIFY_ME.union(RdmaFlags::SILENT),
];
/// Cases of one round that are to be done, and those that are to fail.
const GOOD: usize = LENGTHS.len() * OFFERS.len() * WAYS.len() * 2;
const BAD: usize = AIMS.len() * 2;
/// Cases of one round.
pub(super) const ROUND: usize = GOOD + BAD;

/// With a fence, where there has to be one: the message ends a region for one use, and a read whose answer is lost is done again.
const fn fenced(flags: RdmaFlags, offer: RdmaFlags) -> RdmaFlags {
    let needed = offer.contains(RdmaFlags::USE_ONCE)
        && !flags.contains(RdmaFlags::READWRITE)
        && !flags.contains(RdmaFlags::SILENT);
    if needed { flags.union(RdmaFlags::FENCE) } else { flags }
}

/// Target of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// A region that is offered for it.
    Offered,
    /// The same with one byte more than it reaches, from the middle.
    BeyondEnd,
    /// The same from one byte before it.
    BeforeStart,
    /// The same with a key of another variant.
    OtherKey,
    /// A region that was offered and freed.
    Freed,
    /// A region for one use that was used.
    Used,
    /// An atomic operation on the region, which is offered for that here and never on Linux.
    Atomic,
}

/// Those that are to fail.
const AIMS: [Aim; 6] = [Aim::BeyondEnd, Aim::BeforeStart, Aim::OtherKey, Aim::Freed, Aim::Used, Aim::Atomic];

/// One case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) aim: Aim,
    /// The region in the server's memory, and with what it is offered.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) offer: RdmaFlags,
    /// The operation; its part of the region.
    pub(super) flags: RdmaFlags,
    pub(super) skip: usize,
    pub(super) bytes: usize,
    pub(super) is_offered_twice: bool,
}

impl Case {
    /// Case `index` of all rounds.
    pub(super) fn new(index: usize) -> Self {
        let (round, mut at) = (index / ROUND, index % ROUND);
        let is_offered_twice = index % 4 == 1;
        let mut take = |choices: usize| {
            let chosen = at % choices;
            at /= choices;
            chosen
        };
        // Any odd place in a page.
        let offset = FIRST_OFFSET + (((index * 1187 + round * 331) % 4096) | 1);
        let write = if take(2) == 0 { RdmaFlags::READWRITE } else { RdmaFlags::empty() };
        if index % ROUND >= GOOD {
            let aim = AIMS.get((index % ROUND - GOOD) / 2).copied().unwrap_or(Aim::OtherKey);
            let offer = match aim {
                Aim::Used => RdmaFlags::USE_ONCE | RdmaFlags::INVALIDATE,
                Aim::Atomic => RdmaFlags::INVALIDATE | RdmaFlags::PEER_ATOMICS,
                _ => RdmaFlags::INVALIDATE,
            };
            let len = 1001 + round % 7 * 501;
            let flags = fenced(RdmaFlags::NOTIFY_ME | write, offer);
            return Self { aim, offset, len, offer, flags, skip: 0, bytes: len, is_offered_twice };
        }
        let way = WAYS.get(take(WAYS.len())).copied().unwrap_or_default();
        let offer = OFFERS.get(take(OFFERS.len())).copied().unwrap_or_default();
        let len = LENGTHS.get(take(LENGTHS.len())).copied().unwrap_or(1);
        // All of it in turn with its middle.
        let middle = index.is_multiple_of(3);
        let skip = if middle { len / 3 } else { 0 };
        let bytes = len - skip - if middle { len / 5 } else { 0 };
        let flags = fenced(way | write, offer);
        Self { aim: Aim::Offered, offset, len, offer, flags, skip, bytes, is_offered_twice }
    }

    pub(super) const fn is_write(&self) -> bool {
        self.flags.contains(RdmaFlags::READWRITE)
    }

    pub(super) const fn is_silent(&self) -> bool {
        self.flags.contains(RdmaFlags::SILENT)
    }

    pub(super) const fn is_told(&self) -> bool {
        self.flags.contains(RdmaFlags::NOTIFY_ME)
    }

    /// Whether the region is gone after the operation's message, because it was for one use.
    pub(super) const fn is_used_up(&self) -> bool {
        self.offer.contains(RdmaFlags::USE_ONCE) && !self.is_silent()
    }

    /// Whether the case tries a region that is gone, after its first operation.
    pub(super) const fn is_stale(&self) -> bool {
        matches!(self.aim, Aim::Freed | Aim::Used)
    }

    /// Whether the first operation fails. Regions of Linux are whole pages without atomics; others
    /// are `exact`.
    pub(super) const fn fails(&self, exact: bool) -> bool {
        match self.aim {
            Aim::Offered | Aim::Freed | Aim::Used => false,
            Aim::Atomic => !exact,
            Aim::BeforeStart => exact,
            Aim::BeyondEnd | Aim::OtherKey => true,
        }
    }

    /// Returns how long a server on Linux keeps the region, in milliseconds: it reconnects only after
    /// all regions are freed. 0 stands for ever.
    pub(super) const fn patience(&self) -> u64 {
        if self.fails(false) { 500 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::{AFTER, ARENA};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_switch_meets_every_length() {
        for round in 0..3 {
            let cases = (0..ROUND).map(|index| Case::new(round * ROUND + index));
            let good: BTreeSet<_> = cases
                .clone()
                .filter(|case| case.aim == Aim::Offered)
                .map(|case| (case.len, case.offer.bits(), case.flags.bits()))
                .collect();
            // Of the reads of regions for one use all have a fence.
            assert_eq!(good.len(), GOOD - 2 * LENGTHS.len());
            for case in cases {
                assert!(case.offset % 2 == 1 && case.offset + case.len + AFTER <= ARENA, "{case:?}");
                assert!(case.bytes > 0 && case.skip + case.bytes <= case.len, "{case:?}");
            }
        }
    }
}
