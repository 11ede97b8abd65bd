//! The boot's randomness: words from whatever source there is are stirred into 128 bits.
//!
//! The seed keeps nodes and boots apart; it is not a cryptographic key.

/// Gathers words into a 128-bit state.
#[derive(Clone, Copy, Debug)]
pub struct Mixer {
    state: [u64; 2],
}

impl Default for Mixer {
    fn default() -> Self {
        Self::new()
    }
}

impl Mixer {
    /// Starts with constants.
    #[must_use]
    pub const fn new() -> Self {
        // Fractional parts of the square roots of 2 and 3.
        Mixer { state: [0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b] }
    }

    /// Stirs in one word. Every word changes both halves of the result, and so does its place in the order.
    pub fn stir(&mut self, word: u64) {
        let [a, b] = self.state;
        let a = avalanche(a ^ word);
        let b = avalanche(b.wrapping_add(a).rotate_left(23));
        self.state = [a ^ b.rotate_left(32), b];
    }

    /// The seed from all words so far.
    #[must_use]
    pub fn seed(&self) -> u128 {
        let [a, b] = self.state;
        (u128::from(avalanche(a)) << 64) | u128::from(avalanche(b ^ a.rotate_left(17)))
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which each input bit flips half of the output.
const fn avalanche(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The boot generation: grows from boot to boot by the wall clock's seconds, and differs between two boots in the same
/// second by the seed.
#[must_use]
pub const fn boot_generation(unix_seconds: u64, seed: u128) -> u64 {
    (unix_seconds << 32) | (seed as u64 & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn seed(words: &[u64]) -> u128 {
        let mut mixer = Mixer::new();
        words.iter().for_each(|word| mixer.stir(*word));
        mixer.seed()
    }

    #[test]
    fn one_flipped_bit_changes_many_in_either_half() {
        let reference = seed(&[1, 2, 3]);
        for bit in 0..64 {
            let difference = reference ^ seed(&[1, 2 ^ (1 << bit), 3]);
            assert!((difference >> 64).count_ones() > 12, "bit {bit}");
            assert!((difference as u64).count_ones() > 12, "bit {bit}");
        }
    }

    #[test]
    fn order_and_number_of_words_count() {
        let all: HashSet<u128> =
            [seed(&[]), seed(&[0]), seed(&[0, 0]), seed(&[1, 2]), seed(&[2, 1])].into_iter().collect();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn generations_grow_with_the_clock() {
        let (early, late) = (boot_generation(1_700_000_000, u128::MAX), boot_generation(1_700_000_001, 0));
        assert!(late > early);
        assert_ne!(boot_generation(1, 5), boot_generation(1, 6));
    }
}
