//! Messages of `mode=hash`. Seed, sockets and number determine length and bytes of each, in the
//! unikernel as in Linux (`tests/guest/rds.c`): the receiver can compute them.

use super::SOCKETS;
use ib_types::Payload;
use ib_types::random::finalize;

/// The longest message, bytes.
pub const MAX_LEN: usize = 100 << 10;
/// The sizes 0, 1 to 1, 2 to 3, 4 to 7 … are equally frequent; the last group, which ends at [`MAX_LEN`], is not whole. In
/// 16-bit fixed point.
const OCTAVES: u64 = (17 << 16) + MANTISSA + 1;
/// The longest message is so much more than 2^16.
const MANTISSA: u64 = MAX_LEN as u64 - (1 << 16);

/// Steps from word to word.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Multiplier of the sums.
const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// One message: its length and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    payload: Payload,
    /// Bytes of it.
    pub len: usize,
}

impl Pattern {
    /// Message `number` of those from socket `sender` to socket `receiver`.
    #[must_use]
    pub const fn new(seed: u64, sender: usize, receiver: usize, number: u64) -> Self {
        let pair = ((sender as u64) << 56) | ((receiver as u64) << 48);
        let payload = Payload::new(seed, pair, number);
        let size = ((finalize(payload.first_word()) >> 32) * OCTAVES) >> 32;
        let len = match size.checked_sub(1 << 16) {
            None => 0,
            Some(size) => ((1 << 16) + (size & 0xffff)) << (size >> 16) >> 16,
        };
        Self { payload, len: len as usize }
    }

    /// Writes it.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.payload.fill(0, bytes);
    }

    /// The first byte that is not as it is written.
    #[must_use]
    pub fn mismatch(&self, bytes: &[u8]) -> Option<usize> {
        self.payload.mismatch(0, bytes)
    }
}

/// A running sum over the messages of one pair of sockets, in their order, with their lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Messages so far.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they come to.
    pub value: u64,
}

impl Sum {
    fn word(&mut self, word: u64) {
        let value = (self.value ^ word).wrapping_add(STEP).wrapping_mul(FACTOR);
        self.value = value ^ (value >> 32);
    }

    /// Takes the next message in.
    pub fn add(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.word(u64::from_le_bytes(word));
        }
        self.messages += 1;
        self.bytes += bytes.len() as u64;
    }

    /// The sum over the sums of all pairs.
    #[must_use]
    pub fn of_all(sums: &[[Self; SOCKETS]; SOCKETS]) -> Self {
        let mut all = Self::default();
        for sum in sums.iter().flatten() {
            all.word(sum.value);
            all.messages += sum.messages;
            all.bytes += sum.bytes;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_log_uniform_from_0_to_100_kib() {
        let mut octaves = [0u32; 18];
        let (mut longest, mut bytes) = (0, 0);
        for number in 0..176_000 {
            let len = Pattern::new(7, 3, 5, number).len;
            octaves[(usize::BITS - len.leading_zeros()) as usize] += 1;
            longest = longest.max(len);
            bytes += len;
        }
        assert!((MAX_LEN - 100..=MAX_LEN).contains(&longest), "{longest}");
        assert!(octaves[..17].iter().all(|count| (9_500..10_500).contains(count)), "{octaves:?}");
        assert!((5_000..6_500).contains(&octaves[17]), "{octaves:?}");
        // 50,000 of them are more than 256 MiB.
        assert!(bytes / 176_000 * 50_000 > 300 << 20);
    }

    #[test]
    fn the_shortest_and_the_longest_fit_the_formula() {
        let len = |size: u64| ((1u64 << 16) + (size & 0xffff)) << (size >> 16) >> 16;
        assert_eq!(len(0), 1);
        assert_eq!(len(OCTAVES - 1 - (1 << 16)), MAX_LEN as u64);
    }

    /// As `tests/guest/rds.c` computes it.
    #[test]
    fn a_sum_depends_on_order_length_and_bytes() {
        let sum = |messages: &[&[u8]]| {
            let mut sum = Sum::default();
            messages.iter().for_each(|message| sum.add(message));
            sum.value
        };
        let values = [
            sum(&[]),
            sum(&[b""]),
            sum(&[b"", b""]),
            sum(&[b"\0"]),
            sum(&[b"\0\0"]),
            sum(&[b"ab", b"c"]),
            sum(&[b"c", b"ab"]),
            sum(&[b"a", b"bc"]),
        ];
        for (index, value) in values.iter().enumerate() {
            assert!(!values[..index].contains(value), "{index}");
        }
    }
}
