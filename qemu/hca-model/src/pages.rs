//! Host pages that the device keeps its own state in: given, counted, asked for, given back (PRM, MANAGE_PAGES).

use std::collections::BTreeSet;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Host memory for a page of the list.
pub(crate) const PAGE_MEMORY: u64 = 32;

/// The device's pages and what it needs.
#[derive(Clone, Debug, Default)]
pub struct FirmwarePages {
    given: BTreeSet<u64>,
    /// Pages needed now.
    needed: u32,
    /// Pages that the driver was asked for by event and did not give yet.
    asked: u32,
    /// Pages that the driver was asked by event to take back and did not take yet.
    offered: u32,
    /// The driver said that it cannot give; commands that wait fail.
    pub(crate) refused: bool,
    /// Pages below this address were checked in the current round, see [`marker`](Self::marker).
    checked: u64,
    /// Completed rounds of checks.
    rounds: u64,
}

/// Why a page cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPage {
    /// Not aligned to 4 KiB.
    Unaligned,
    /// Given before.
    Twice,
}

impl FirmwarePages {
    /// Pages at hand.
    #[must_use]
    pub fn given(&self) -> u32 {
        u32::try_from(self.given.len()).unwrap_or(u32::MAX)
    }

    /// Pages needed now.
    #[must_use]
    pub const fn needed(&self) -> u32 {
        self.needed
    }

    /// Sets how many pages are needed from now on.
    pub fn set_needed(&mut self, needed: u32) {
        self.needed = needed;
    }

    /// Pages missing; negative when there are too many. The number QUERY_PAGES answers.
    #[must_use]
    pub fn missing(&self) -> i32 {
        let difference = i64::from(self.needed) - i64::from(self.given());
        i32::try_from(difference).unwrap_or(if difference < 0 { i32::MIN } else { i32::MAX })
    }

    /// Whether a page is at hand.
    #[must_use]
    pub fn holds(&self, page: u64) -> bool {
        self.given.contains(&page)
    }

    /// The pages at hand, in order of address.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.given.iter().copied()
    }

    /// Checks one page of a MANAGE_PAGES that gives.
    ///
    /// # Errors
    /// [`BadPage`].
    pub fn check(&self, page: u64) -> Result<(), BadPage> {
        match page {
            _ if !page.is_multiple_of(PAGE) => Err(BadPage::Unaligned),
            _ if self.given.contains(&page) => Err(BadPage::Twice),
            _ => Ok(()),
        }
    }

    /// Takes over pages that [`check`](Self::check) accepted.
    pub fn give(&mut self, pages: impl IntoIterator<Item = u64>) {
        let before = self.given();
        self.given.extend(pages);
        self.asked = self.asked.saturating_sub(self.given() - before);
        self.refused = false;
    }

    /// The driver cannot give: commands that wait fail, and later ones ask again.
    pub fn refuse(&mut self) {
        self.refused = true;
        self.asked = 0;
    }

    /// Gives back at most `count` pages, so that `kept` remain.
    pub fn take(&mut self, count: u32, kept: u32) -> Vec<u64> {
        let spare = self.given().saturating_sub(kept);
        let mut pages = Vec::new();
        for _ in 0..count.min(spare) {
            let Some(page) = self.given.pop_last() else { break };
            pages.push(page);
        }
        self.offered = 0;
        pages
    }

    /// The number for a page request event, if one is due: positive asks for pages, negative offers `surplus` or more back.
    pub fn request(&mut self, surplus: u32) -> Option<i32> {
        let missing = self.missing();
        if missing > 0 && self.asked == 0 {
            self.asked = missing.unsigned_abs();
            return Some(missing);
        }
        if missing < 0 && missing.unsigned_abs() >= surplus.max(1) && self.offered == 0 {
            self.offered = missing.unsigned_abs();
            return Some(missing);
        }
        None
    }

    /// Returns the word that the device has at both ends of `page`. Each check changes the word.
    pub(crate) fn marker(&self, page: u64, key: u64) -> u64 {
        let rounds = self.rounds + u64::from(page < self.checked);
        (page ^ key).wrapping_add(rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the page to check now, in order of address and round after round.
    pub(crate) fn next_to_check(&mut self) -> Option<u64> {
        if self.given.range(self.checked..).next().is_none() {
            (self.checked, self.rounds) = (0, self.rounds + 1);
        }
        self.given.range(self.checked..).next().copied()
    }

    /// Notes that `page` was checked: its marker is a new one.
    pub(crate) fn set_checked(&mut self, page: u64) {
        self.checked = page + 1;
    }

    /// Host memory that the list takes.
    pub(crate) fn memory(&self) -> u64 {
        self.given.len() as u64 * PAGE_MEMORY
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_asked_for_once_and_given_back_when_spare() {
        let mut pages = FirmwarePages::default();
        pages.set_needed(3);
        assert_eq!(pages.request(2), Some(3));
        assert_eq!(pages.request(2), None, "one request until it is answered");
        pages.give([0, 0x2000, 0x5000, 0x6000]);
        assert_eq!(pages.missing(), -1);
        assert_eq!(pages.check(0x2000), Err(BadPage::Twice));
        assert_eq!(pages.check(0), Err(BadPage::Twice), "0 is an address as any other");
        assert_eq!(pages.check(0x3000), Ok(()));
        assert_eq!(pages.check(0x1001), Err(BadPage::Unaligned));
        assert_eq!(pages.request(2), None, "a surplus below the threshold is kept");
        assert_eq!(pages.take(10, pages.needed()).len(), 1);
        pages.set_needed(0);
        assert_eq!(pages.request(2), Some(-3));
        assert_eq!(pages.take(2, 0).len(), 2);
        assert_eq!(pages.given(), 1);
    }
}
