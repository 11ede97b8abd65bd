//! Members of a small set that have work, and the times at which the others will.
//!
//! Members are numbers below [`LIMIT`]. No operation takes longer with more members, except by
//! the logarithm of their number.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of members at most: a medium has two switches of 254 ports.
pub const LIMIT: usize = 512;

const WORDS: usize = LIMIT / 64;

/// A set of numbers. Threads may insert while another one removes. It fills one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct ReadySet {
    words: [AtomicU64; WORDS],
}

impl ReadySet {
    /// Inserts `member`. Has no effect from [`LIMIT`] on.
    #[inline]
    pub fn insert(&self, member: usize) {
        if let Some(word) = self.words.get(member / 64) {
            word.fetch_or(1 << (member % 64), Ordering::AcqRel);
        }
    }

    /// Removes `member`.
    #[inline]
    pub fn remove(&self, member: usize) {
        if let Some(word) = self.words.get(member / 64) {
            word.fetch_and(!(1 << (member % 64)), Ordering::AcqRel);
        }
    }

    /// Returns whether `member` is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, member: usize) -> bool {
        let word = self.words.get(member / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (member % 64) & 1 != 0)
    }

    /// Returns the lowest member of a range. The range, not the set's size, decides what that costs.
    #[must_use]
    #[inline]
    pub fn first_in(&self, range: Range<usize>) -> Option<usize> {
        let mut from = range.start;
        while from < range.end {
            let members = self.words.get(from / 64)?.load(Ordering::Acquire) >> (from % 64);
            if members != 0 {
                return Some(from + members.trailing_zeros() as usize).filter(|member| *member < range.end);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }
}

/// The members' deadlines, in a tournament tree: each node is the earlier of its two children.
#[derive(Debug)]
pub struct Deadlines {
    /// Root at 1, the children of `n` at `2n` and `2n + 1`, member `m` at `leaves + m`.
    tree: Vec<u64>,
    leaves: usize,
}

impl Deadlines {
    /// Time that never comes.
    pub const NEVER: u64 = u64::MAX;

    /// Creates deadlines without members.
    #[must_use]
    pub fn new() -> Self {
        Self { tree: vec![Self::NEVER; 2], leaves: 1 }
    }

    fn at(&self, node: usize) -> u64 {
        self.tree.get(node).copied().unwrap_or(Self::NEVER)
    }

    /// Sets the deadline of `member`.
    #[inline]
    pub fn set(&mut self, member: usize, deadline: u64) {
        if member >= self.leaves {
            self.grow(member);
        }
        let mut node = self.leaves + member;
        let mut earliest = deadline;
        while let Some(slot) = self.tree.get_mut(node) {
            if *slot == earliest {
                return;
            }
            *slot = earliest;
            if node == 1 {
                return;
            }
            earliest = earliest.min(self.at(node ^ 1));
            node /= 2;
        }
    }

    #[cold]
    fn grow(&mut self, member: usize) {
        let members = self.tree.split_off(self.leaves);
        self.leaves = (member + 1).next_power_of_two();
        self.tree = vec![Self::NEVER; 2 * self.leaves];
        for (member, deadline) in members.into_iter().enumerate() {
            self.set(member, deadline);
        }
    }

    /// Returns the earliest deadline, or [`NEVER`](Self::NEVER).
    #[must_use]
    #[inline]
    pub fn earliest(&self) -> u64 {
        self.at(1)
    }

    /// Returns the lowest member that is not below `from` and whose deadline is not after `now`.
    #[must_use]
    #[inline]
    pub fn next_due(&self, from: usize, now: u64) -> Option<usize> {
        if self.earliest() > now || from >= self.leaves {
            return None;
        }
        let mut node = self.leaves + from;
        while self.at(node) > now {
            // The next subtree to the right; the rightmost node of a level has none.
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves {
            node *= 2;
            if self.at(node) > now {
                node += 1;
            }
        }
        Some(node - self.leaves)
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn members_are_found_in_order() {
        let set = ReadySet::default();
        for member in [255, 0, 63, 64, 200, LIMIT] {
            set.insert(member);
        }
        set.remove(200);
        set.remove(LIMIT);
        let next = |from| set.first_in(from..2 * LIMIT);
        let found = std::iter::successors(next(0), |member| next(member + 1));
        assert_eq!(found.collect::<Vec<_>>(), [0, 63, 64, 255]);
        assert_eq!(next(LIMIT), None);
        let in_ranges = [1..63, 1..64, 64..64, 65..255, 65..256].map(|range| set.first_in(range));
        assert_eq!(in_ranges, [None, Some(63), None, None, Some(255)]);
        for member in [0, 63, 64, 255] {
            assert_eq!(next(0), Some(member));
            set.remove(member);
        }
        assert_eq!(next(0), None);
    }

    /// Members that another thread inserts and removes hide none of those behind them.
    #[test]
    fn changing_members_hide_no_others() {
        let (set, ended) = (ReadySet::default(), AtomicBool::new(false));
        set.insert(200);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    set.insert(70);
                    set.remove(70);
                }
            });
            // The other thread has begun.
            while !set.contains(70) {
                std::hint::spin_loop();
            }
            let wrong = (0..20_000_000).find(|_| !matches!(set.first_in(0..LIMIT), Some(70 | 200)));
            ended.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None);
        });
        set.remove(200);
        assert_eq!(set.first_in(0..LIMIT), None);
    }

    #[test]
    fn deadlines_equal_a_map() {
        let (mut tree, mut map, mut random) = (Deadlines::new(), BTreeMap::new(), Random::new(7));
        for round in 0..20_000u64 {
            let member = random.below(1 + round / 100) as usize;
            let deadline = if random.below(4) == 0 { Deadlines::NEVER } else { random.below(1000) };
            tree.set(member, deadline);
            map.insert(member, deadline);
            let (from, now) = (random.below(220) as usize, random.below(1000));
            assert_eq!(tree.earliest(), map.values().copied().min().expect("one"));
            let due = map.range(from..).find(|(_, deadline)| **deadline <= now);
            assert_eq!(tree.next_due(from, now), due.map(|(member, _)| *member), "round {round}");
        }
    }
}
