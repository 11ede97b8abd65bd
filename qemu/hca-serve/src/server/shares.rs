//! Share of the server's time that a cable gets while HCAs have work.

use hca_model::scheduler::AHEAD;
use std::collections::BTreeMap;
use std::time::Duration;

/// Charges for a cable's time: its frames cost the HCAs that receive them about as much again.
const PRICE: u32 = 2;
/// Time that passes for cables in a turn at least, so that HCAs without progress do not stop them.
const LEAST: Duration = Duration::from_micros(1);

/// Used time of the cables, by token. While HCAs have work, a cable gets no more than the busiest HCA.
#[derive(Debug, Default)]
pub struct Shares {
    /// Time that a busy HCA has had.
    fair: Duration,
    used: BTreeMap<u64, Duration>,
}

/// Maximum lead of a cable over a busy HCA.
const LEAD: Duration = Duration::from_nanos(AHEAD);

impl Shares {
    /// The longest turn of an HCA took so long.
    pub fn pass(&mut self, longest: Duration) {
        self.fair += longest.max(LEAST);
        if self.used.is_empty() {
            self.fair = Duration::ZERO;
        }
    }

    /// Returns whether a cable had so much more that it waits while HCAs have work.
    pub fn is_ahead(&self, token: u64) -> bool {
        self.used.get(&token).is_some_and(|used| *used > self.fair + LEAD)
    }

    /// The cable of `token` is cut.
    pub fn forget(&mut self, token: u64) {
        self.used.remove(&token);
    }

    /// Charges a cable. Time without competitors counts for no more than [`LEAD`].
    pub fn charge(&mut self, token: u64, time: Duration, contended: bool) {
        let used = self.used.entry(token).or_insert(self.fair);
        *used = (*used).max(self.fair.saturating_sub(LEAD)) + PRICE * time;
        if !contended {
            *used = (*used).min(self.fair + LEAD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cable_gets_as_much_as_a_busy_hca() {
        let us = Duration::from_micros;
        let mut shares = Shares::default();
        let mut turns = 0;
        shares.charge(1, us(1), true);
        for _ in 0..1_000 {
            shares.pass(us(10));
            if !shares.is_ahead(1) {
                shares.charge(1, us(100), true);
                turns += 1;
            }
        }
        // 10 ms at a price of 200 us for a turn.
        assert!((49..=54).contains(&turns), "{turns} turns");
        // Time alone is no debt, and idle time is no credit.
        for _ in 0..1_000 {
            shares.charge(1, us(100), false);
        }
        shares.pass(us(1));
        assert!(!shares.is_ahead(1));
        shares.pass(us(1_000_000));
        (0..3).for_each(|_| shares.charge(1, us(100), true));
        assert!(shares.is_ahead(1));
    }
}
