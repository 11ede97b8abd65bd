//! Payload of tests and demonstrations. Each byte depends on the run, the stream, the message and
//! the position, so that a swapped, stale, foreign or shifted byte is detected.

use crate::random::{STEP, finalize};

/// The bytes of one message, which both ends can compute.
///
/// ```
/// use ib_types::Payload;
///
/// let mut bytes = [0; 100];
/// Payload::new(1, 2, 3).fill(0, &mut bytes);
/// assert_eq!(Payload::new(1, 2, 3).mismatch(0, &bytes), None);
/// assert_eq!(Payload::new(1, 2, 3).mismatch(0, &bytes[8..]), Some(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload(u64);

impl Payload {
    /// Returns the payload of `message` in `stream`, for example of a sender. `seed` varies the run.
    #[must_use]
    pub const fn new(seed: u64, stream: u64, message: u64) -> Self {
        Self(finalize(finalize(seed ^ stream).wrapping_add(message.wrapping_mul(STEP))))
    }

    /// Returns bytes 0 to 7 in little-endian order. Programs in C derive the rest from them: each
    /// word is the one before plus 0x9e3779b97f4a7c15.
    #[must_use]
    pub const fn first_word(self) -> u64 {
        self.0
    }

    const fn word_at(self, position: usize) -> u64 {
        self.0.wrapping_add((position as u64 / 8).wrapping_mul(STEP))
    }

    /// Returns the byte at a position.
    #[must_use]
    pub const fn byte(self, position: usize) -> u8 {
        self.word_at(position).to_le_bytes()[position % 8]
    }

    /// Writes the bytes from `position` on, which is a multiple of 8.
    pub fn fill(self, position: usize, bytes: &mut [u8]) {
        debug_assert!(position.is_multiple_of(8), "chunks start at whole words");
        let mut word = self.word_at(position);
        let (words, rest) = bytes.as_chunks_mut();
        for to in words {
            *to = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
        rest.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    /// Returns the position of the first byte that [`Payload::fill`] at `position` would have
    /// written differently.
    #[must_use]
    pub fn mismatch(self, position: usize, bytes: &[u8]) -> Option<usize> {
        debug_assert!(position.is_multiple_of(8), "chunks start at whole words");
        let mut word = self.word_at(position);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let expected = word.to_le_bytes();
            if let Some(inside) = chunk.iter().zip(expected).position(|(found, byte)| *found != byte) {
                return Some(position + index * 8 + inside);
            }
            word = word.wrapping_add(STEP);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const PAYLOAD: Payload = Payload::new(3, 1 << 56 | 2 << 48, 9);

    fn filled(payload: Payload, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        payload.fill(0, &mut bytes);
        bytes
    }

    /// `payload` of `tests/guest/payload.h` for seed 7, sockets 3 and 5, message 11.
    #[test]
    fn words_are_those_of_the_program_in_c() {
        let payload = Payload::new(7, 3 << 56 | 5 << 48, 11);
        let first = 0x1ee5_6d04_82d6_cd19_u64;
        assert_eq!(payload.first_word(), first);
        let second = first.wrapping_add(0x9e37_79b9_7f4a_7c15);
        assert_eq!(filled(payload, 16)[8..], second.to_le_bytes());
    }

    #[test]
    fn a_message_verifies_in_any_chunks() {
        for len in [0, 1, 7, 8, 9, 1000, 4999] {
            let bytes = filled(PAYLOAD, len);
            for words in [1, 3, 70] {
                for (index, chunk) in bytes.chunks(words * 8).enumerate() {
                    assert_eq!(PAYLOAD.mismatch(index * words * 8, chunk), None);
                }
            }
            assert!(bytes.iter().enumerate().all(|(at, byte)| PAYLOAD.byte(at) == *byte));
        }
    }

    #[test]
    fn a_flipped_byte_is_found_where_it_is() {
        let mut bytes = filled(PAYLOAD, 1001);
        for at in 0..bytes.len() {
            for flip in [1, 0x40, 0xff] {
                bytes[at] ^= flip;
                assert_eq!(PAYLOAD.mismatch(0, &bytes), Some(at));
                bytes[at] ^= flip;
            }
        }
    }

    #[test]
    fn stale_foreign_and_shifted_bytes_are_found() {
        let bytes = filled(PAYLOAD, 64);
        let (sender, operation) = (1 << 56, 2 << 48);
        assert!(Payload::new(3, sender | operation, 10).mismatch(0, &bytes).is_some(), "message");
        assert!(Payload::new(3, (sender * 2) | operation, 9).mismatch(0, &bytes).is_some(), "sender");
        assert!(Payload::new(3, sender | (operation / 2), 9).mismatch(0, &bytes).is_some(), "operation");
        assert!(Payload::new(4, sender | operation, 9).mismatch(0, &bytes).is_some(), "run");
        assert!(PAYLOAD.mismatch(0, &bytes[1..]).is_some(), "shifted by a byte");
        assert!(PAYLOAD.mismatch(0, &bytes[8..]).is_some(), "shifted by a word");
    }
}
