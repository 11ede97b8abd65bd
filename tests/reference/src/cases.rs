//! Number of cases that are tried, and the randomness that they are drawn from.
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_TESTS_LONG=1` | 10 million cases instead of 100,000 |
//!
//! Miri, which runs a thousand times slower, tries 100.

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
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
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
