//! Shares of frames: bounds of each connection, so that no peer can exhaust another's frames.

/// Frames that a user has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used(u32);

impl Used {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn count(self) -> u32 {
        self.0
    }
}

/// The frames of one side. Each user has a share that no other user can take; the rest is common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    share: u32,
    common: u32,
    /// Frames in use below which the share alone has space for two more.
    ample: u32,
    /// Frames in use beyond shares, of all users together.
    beyond: u32,
}

impl Shares {
    pub(crate) const fn new(share: u32, common: u32) -> Self {
        Self { share, common, ample: share.saturating_sub(1), beyond: 0 }
    }

    pub(crate) const fn share(&self) -> u32 {
        self.share
    }

    pub(crate) const fn common(&self) -> u32 {
        self.common
    }

    /// Returns the common frames in use, which exceed the common part while the reserve is in use.
    pub(crate) const fn beyond(&self) -> u32 {
        self.beyond
    }

    /// Returns the frames of `used` that are not of the share.
    const fn beyond_share(&self, used: Used) -> u32 {
        used.0.saturating_sub(self.share)
    }

    /// Returns the number of frames that a user may still take, if it leaves as much of the common
    /// part to other users as it has of it.
    #[inline]
    pub(crate) const fn fair_room(&self, used: Used) -> u32 {
        let free = self.common.saturating_sub(self.beyond);
        self.share.saturating_sub(used.0) + free.saturating_sub(self.beyond_share(used))
    }

    /// Returns the number of frames that a user may still take from its share, the common part and
    /// a reserve of this size.
    pub(crate) const fn room(&self, used: Used, reserve: u32) -> u32 {
        self.share.saturating_sub(used.0) + (self.common + reserve).saturating_sub(self.beyond)
    }

    /// Returns what is left of a reserve of this size.
    pub(crate) const fn left_of(&self, reserve: u32) -> u32 {
        reserve.saturating_sub(self.beyond.saturating_sub(self.common))
    }

    /// Returns whether the share alone has space for `count` more frames.
    pub(crate) const fn covers(&self, used: Used, count: u32) -> bool {
        used.0 + count <= self.share
    }

    /// Returns whether [`fair_room`](Self::fair_room) is at least 1.
    #[inline]
    pub(crate) const fn has_one(&self, used: Used) -> bool {
        used.0 < self.share || used.0 - self.share + self.beyond < self.common
    }

    /// Returns whether the share alone has space for two more frames.
    #[inline]
    pub(crate) const fn has_two(&self, used: Used) -> bool {
        used.0 < self.ample
    }

    #[inline]
    pub(crate) const fn take(&mut self, used: &mut Used, count: u32) {
        let before = self.beyond_share(*used);
        used.0 += count;
        self.beyond += self.beyond_share(*used) - before;
    }

    /// Like [`take`](Self::take) with a count of 1.
    #[inline]
    pub(crate) const fn take_one(&mut self, used: &mut Used) {
        if used.0 >= self.share {
            self.beyond += 1;
        }
        used.0 += 1;
    }

    #[inline]
    pub(crate) const fn give(&mut self, used: &mut Used, count: u32) {
        let before = self.beyond_share(*used);
        used.0 -= count;
        self.beyond -= before - self.beyond_share(*used);
    }

    /// Like [`give`](Self::give) with a count of 1.
    #[inline]
    pub(crate) const fn give_one(&mut self, used: &mut Used) {
        used.0 -= 1;
        if used.0 >= self.share {
            self.beyond -= 1;
        }
    }

    /// Returns whether a user may leave its share to another one beside `left` frames of users that
    /// left before, once `freed` of those are free. They take at most half of the common frames.
    pub(crate) fn can_leave(&self, used: Used, left: u32, freed: u32) -> bool {
        let common = self.beyond.saturating_sub(freed) + used.0.min(self.share);
        left + used.0 <= self.common / 2 && common <= self.common
    }

    /// Makes all frames of a user common ones, because another user gets its share.
    pub(crate) fn leave(&mut self, used: Used) {
        self.beyond += used.0.min(self.share);
    }

    /// Returns a user that has [left](Self::leave) to a share.
    pub(crate) fn enter(&mut self, used: Used) {
        self.beyond -= used.0.min(self.share);
    }

    /// Like [`give`](Self::give), for a user that has [left](Self::leave).
    pub(crate) const fn give_common(&mut self, used: &mut Used, count: u32) {
        used.0 -= count;
        self.beyond -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A user's share is always available, and all users together never exceed the frames.
        #[test]
        fn a_share_is_never_taken_by_others(steps in prop::collection::vec((0usize..4, any::<bool>(), 1u32..9), 1..200)) {
            let (share, common) = (5, 9);
            let mut shares = Shares::new(share, common);
            let mut used = [Used::NONE; 4];
            for (user, takes, count) in steps {
                if takes {
                    let count = count.min(shares.fair_room(used[user]));
                    shares.take(&mut used[user], count);
                } else {
                    let count = count.min(used[user].count());
                    shares.give(&mut used[user], count);
                }
                prop_assert!(used.iter().map(|used| used.count()).sum::<u32>() <= 4 * share + common);
                prop_assert_eq!(shares.beyond(), used.iter().map(|used| used.count().saturating_sub(share)).sum::<u32>());
                for used in used {
                    prop_assert_eq!(shares.has_one(used), shares.fair_room(used) > 0);
                    prop_assert!(used.count() + shares.fair_room(used) >= share);
                }
            }
        }
    }
}
