//! Variants of memory keys.

use crate::types::Instant;

/// Variants of keys, the low 8 bits.
///
/// The next key with the index of a destroyed one has another variant, so that a stale key does not
/// fit and the next is not predictable. Protection domains keep strangers out: there are only 256
/// variants.
#[derive(Debug, Default)]
pub(super) struct Variants {
    last: u8,
    state: u64,
}

impl Variants {
    pub(super) fn take(&mut self, now: Instant) -> u8 {
        self.state = self.state.wrapping_add(now.as_nanos()).wrapping_add(1);
        let mut mixed = (self.state ^ self.state >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.last = self.last.wrapping_add(1 + (mixed >> 57) as u8);
        self.last
    }
}
