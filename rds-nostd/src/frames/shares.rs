//! How many frames each connection may use, so that no peer can take those of another.

/// One side's frames: each of its users has a share that nobody else can take; the rest is common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    share: u32,
    common: u32,
    /// Used beyond their shares by all together.
    beyond: u32,
}

impl Shares {
    pub(crate) const fn new(share: u32, common: u32) -> Self {
        Self { share, common, beyond: 0 }
    }

    pub(crate) const fn share(&self) -> u32 {
        self.share
    }

    pub(crate) const fn common(&self) -> u32 {
        self.common
    }

    /// Frames of the common part in use; more than there are while a reserve is being used.
    pub(crate) const fn beyond(&self) -> u32 {
        self.beyond
    }

    /// How many more a user of `used` frames may take if it leaves as much of the common part to the others as it has of it.
    #[inline]
    pub(crate) const fn fair_room(&self, used: u32) -> u32 {
        let free = self.common.saturating_sub(self.beyond);
        self.share.saturating_sub(used) + free.saturating_sub(used.saturating_sub(self.share))
    }

    /// Whether there is [`fair_room`](Self::fair_room) for one more.
    #[inline]
    pub(crate) const fn has_one(&self, used: u32) -> bool {
        used < self.share || used - self.share + self.beyond < self.common
    }

    /// Whether the share alone has room for one more, and for another one after that.
    #[inline]
    pub(crate) const fn has_two(&self, used: u32) -> bool {
        used + 1 < self.share
    }

    #[inline]
    pub(crate) const fn take(&mut self, used: &mut u32, count: u32) {
        let before = used.saturating_sub(self.share);
        *used += count;
        self.beyond += used.saturating_sub(self.share) - before;
    }

    /// As [`take`](Self::take), of one.
    #[inline]
    pub(crate) const fn take_one(&mut self, used: &mut u32) {
        if *used >= self.share {
            self.beyond += 1;
        }
        *used += 1;
    }

    /// As [`give`](Self::give), of one.
    #[inline]
    pub(crate) const fn give_one(&mut self, used: &mut u32) {
        *used -= 1;
        if *used >= self.share {
            self.beyond -= 1;
        }
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
        /// Whatever others take, a user's share is there; and all together never use more than there is.
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
