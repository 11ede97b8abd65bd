//! Numbers that look random and derive from a seed: SplitMix64 (Steele, Lea, Flood 2014). Not for
//! secrets.

/// Odd, so that multiples of it repeat only after 2^64 of them.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator with 64 bits of state. Each seed yields an unrelated sequence.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }
}

/// Returns the first number of a seed's sequence: a bijection in which each bit of `seed` flips half
/// of the result.
#[must_use]
pub const fn mix(seed: u64) -> u64 {
    finalize(seed.wrapping_add(STEP))
}

/// Returns the result of the last step of [`mix`]: a bijection that maps 0 to 0.
#[must_use]
pub const fn finalize(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vigna's splitmix64.c, seed 1234567.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut random = SplitMix64::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| random.next_u64()), expected);
        assert_eq!(mix(1_234_567), expected[0]);
    }
}
