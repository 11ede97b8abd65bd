//! Number of cases that are tried, and the randomness that they are drawn from.
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_TESTS_LONG=1` | 10 million cases instead of 100,000 |
//!
//! Miri, which runs a thousand times slower, tries 100.

use ib_types::SplitMix64;

/// The number of random cases of a comparison.
#[must_use]
pub fn count() -> u64 {
    if cfg!(miri) {
        return 100;
    }
    let long = std::env::var_os("MLX5_TESTS_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    if long { 10_000_000 } else { 100_000 }
}

/// A generator with 64 bits of state (SplitMix64). Each seed yields an unrelated sequence.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `limit`, which is not 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// Returns true one time in `n`.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
