//! The boot's randomness: words from whatever source there is are stirred into 128 bits.
//!
//! The seed keeps nodes and boots apart; it is not a cryptographic key.

use ib_types::mix;

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
        let a = mix(a ^ word);
        let b = mix(b.wrapping_add(a).rotate_left(23));
        self.state = [a ^ b.rotate_left(32), b];
    }

    /// The seed from all words so far.
    #[must_use]
    pub fn seed(&self) -> u128 {
        let [a, b] = self.state;
        (u128::from(mix(a)) << 64) | u128::from(mix(b ^ a.rotate_left(17)))
    }
}

/// The boot generation: grows from boot to boot by the wall clock's seconds, and differs between two boots in the same
/// second by the seed.
#[must_use]
pub const fn boot_generation(unix_seconds: u64, seed: u128) -> u64 {
    (unix_seconds << 32) | (seed as u64 & 0xffff_ffff)
}

/// The second in which a boot read the wall clock, if there is one.
///
/// It numbers the boot, and no later boot may have the same number. The clock shows seconds, and two boots fit into one; so a
/// boot uses its number only when that second is over: whoever reads the clock then gets a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootSecond(Option<u64>);

/// What a boot knows of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootNumber {
    /// Seconds since 1970; larger than that of every earlier boot, unless the clock was set back between them.
    Seconds(u64),
    /// The second is not over.
    NotYet,
    /// There is no wall clock.
    Unknown,
}

impl BootSecond {
    /// Of a boot that read the clock and found this.
    #[must_use]
    pub const fn read(unix_seconds: Option<u64>) -> Self {
        Self(unix_seconds)
    }

    /// The boot's number, by what the clock shows now.
    #[must_use]
    pub const fn number(self, unix_seconds: Option<u64>) -> BootNumber {
        match (self.0, unix_seconds) {
            (None, _) => BootNumber::Unknown,
            (Some(then), Some(now)) if then == now => BootNumber::NotYet,
            (Some(then), _) => BootNumber::Seconds(then),
        }
    }
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

    /// Boots as fast as they can, each of which reads the clock, waits as long as it has to, and sends something: the numbers grow.
    #[test]
    fn boots_within_a_second_have_growing_numbers() {
        let mut millis = 1_700_000_000_321_u64;
        let mut numbers = std::vec::Vec::new();
        for boot in 0..20 {
            let second = BootSecond::read(Some(millis / 1000));
            millis += boot * 37 % 90;
            let number = loop {
                match second.number(Some(millis / 1000)) {
                    BootNumber::NotYet => millis += 1,
                    BootNumber::Seconds(number) => break number,
                    BootNumber::Unknown => panic!("there is a clock"),
                }
            };
            numbers.push(number);
        }
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }

    #[test]
    fn a_clock_that_is_not_there_or_goes_back_numbers_nothing_twice() {
        assert_eq!(BootSecond::read(None).number(Some(5)), BootNumber::Unknown);
        // Set back while the boot waits: its own second is over for it.
        assert_eq!(BootSecond::read(Some(9)).number(Some(5)), BootNumber::Seconds(9));
        assert_eq!(BootSecond::read(Some(9)).number(None), BootNumber::Seconds(9));
    }

    #[test]
    fn generations_grow_with_the_clock() {
        let (early, late) = (boot_generation(1_700_000_000, u128::MAX), boot_generation(1_700_000_001, 0));
        assert!(late > early);
        assert_ne!(boot_generation(1, 5), boot_generation(1, 6));
    }
}
