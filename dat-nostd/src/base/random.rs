//! Numbers that look random and derive from the node's seed alone.

use ib_types::SplitMix64;

/// The generator of a node.
#[derive(Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// From the node's 128-bit seed and its boot generation.
    pub(crate) fn new(seed: u128, generation: u64) -> Self {
        let first = SplitMix64::new(seed as u64 ^ (seed >> 64) as u64).next_u64();
        Self(SplitMix64::new(first ^ generation.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_boots_differ() {
        let first = |seed, generation| Random::new(seed, generation).next_u64();
        assert_eq!(first(1, 1), first(1, 1));
        assert_ne!(first(1, 1), first(1, 2));
        assert_ne!(first(1, 1), first(2, 1));
        assert_ne!(first(1 << 64, 1), first(2 << 64, 1));
    }
}
