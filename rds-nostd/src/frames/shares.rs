//! Shares of frames: bounds of each connection, so that no peer can exhaust another's frames.

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

    /// Returns the number of frames that a user of `used` frames may still take, if it leaves as
    /// much of the common part to other users as it has of it.
    #[inline]
    pub(crate) const fn fair_room(&self, used: u32) -> u32 {
        self.share.saturating_sub(used) + self.free().saturating_sub(used.saturating_sub(self.share))
    }

    /// Returns whether [`fair_room`](Self::fair_room) is at least 1.
    #[inline]
    pub(crate) const fn has_one(&self, used: u32) -> bool {
        used < self.share || used - self.share + self.beyond < self.common
    }

    /// Returns whether the share alone has space for two more frames.
    #[inline]
    pub(crate) const fn has_two(&self, used: u32) -> bool {
        used < self.ample
    }

    #[inline]
    pub(crate) const fn take(&mut self, used: &mut u32, count: u32) {
        let before = used.saturating_sub(self.share);
        *used += count;
        self.beyond += used.saturating_sub(self.share) - before;
    }

    /// Like [`take`](Self::take) with a count of 1.
    #[inline]
    pub(crate) const fn take_one(&mut self, used: &mut u32) {
        if *used >= self.share {
            self.beyond += 1;
        }
        *used += 1;
    }

    /// Like [`give`](Self::give) with a count of 1.
    #[inline]
    pub(crate) const fn give_one(&mut self, used: &mut u32) {
        *used -= 1;
        if *used >= self.share {
            self.beyond -= 1;
        }
    }

    /// Returns the free common frames.
    pub(crate) const fn free(&self) -> u32 {
        self.common.saturating_sub(self.beyond)
    }

    /// Makes all frames of a user common ones, because another user gets its share.
    pub(crate) fn leave_share(&mut self, used: u32) {
        self.beyond += used.min(self.share);
    }

    /// Undoes [`leave_share`](Self::leave_share).
    pub(crate) fn enter_share(&mut self, used: u32) {
        self.beyond -= used.min(self.share);
    }

    pub(crate) const fn give_common(&mut self, count: u32) {
        self.beyond -= count;
    }

    #[inline]
    pub(crate) const fn give(&mut self, used: &mut u32, count: u32) {
        let before = used.saturating_sub(self.share);
        *used -= count;
        self.beyond -= before - used.saturating_sub(self.share);
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
            let mut used = [0u32; 4];
            for (user, takes, count) in steps {
                if takes {
                    let count = count.min(shares.fair_room(used[user]));
                    shares.take(&mut used[user], count);
                } else {
                    let count = count.min(used[user]);
                    shares.give(&mut used[user], count);
                }
                prop_assert!(used.iter().sum::<u32>() <= 4 * share + common);
                prop_assert_eq!(shares.beyond(), used.iter().map(|used| used.saturating_sub(share)).sum::<u32>());
                for used in used {
                    prop_assert_eq!(shares.has_one(used), shares.fair_room(used) > 0);
                    prop_assert!(used + shares.fair_room(used) >= share);
                }
            }
        }
    }
}
