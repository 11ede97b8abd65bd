//! The payload: every byte depends on who sent it, in which message, and where in the message it lies, so that a swapped,
//! stale, foreign or shifted byte shows.

/// Which stream a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The node that produces the bytes.
    pub sender: u8,
    /// The operation they are moved by.
    pub operation: u8,
    /// Varies the whole run.
    pub seed: u64,
}

/// Odd, so that the words of a message repeat only after 2^64 of them.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: every input bit moves about half of the output bits.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Stream {
    /// The word at position 0 of message `sequence`; the word at byte 8·i is this plus i steps.
    const fn first_word(self, sequence: u64) -> u64 {
        let who = ((self.sender as u64) << 56) | ((self.operation as u64) << 48);
        mix(mix(self.seed ^ who).wrapping_add(sequence.wrapping_mul(STEP)))
    }

    const fn word_at(self, sequence: u64, position: usize) -> u64 {
        self.first_word(sequence).wrapping_add((position as u64 / 8).wrapping_mul(STEP))
    }

    /// Writes the bytes from `position` (a multiple of 8) of message `sequence`.
    pub fn fill(self, sequence: u64, position: usize, bytes: &mut [u8]) {
        debug_assert!(position.is_multiple_of(8), "chunks start at whole words");
        let mut word = self.word_at(sequence, position);
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
            word = word.wrapping_add(STEP);
        }
    }

    /// Position of the first byte that is not what [`fill`](Self::fill) would have written.
    #[must_use]
    pub fn mismatch(self, sequence: u64, position: usize, bytes: &[u8]) -> Option<usize> {
        debug_assert!(position.is_multiple_of(8), "chunks start at whole words");
        let mut word = self.word_at(sequence, position);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let expected = word.to_le_bytes();
            if *chunk != expected[..chunk.len()] {
                let inside = chunk.iter().zip(expected).position(|(a, b)| *a != b).unwrap_or(0);
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
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const STREAM: Stream = Stream { sender: 1, operation: 2, seed: 3 };

    fn message(stream: Stream, sequence: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        stream.fill(sequence, 0, &mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn a_message_verifies_in_any_chunks(len in 0usize..5000, words in 1usize..70) {
            let bytes = message(STREAM, 9, len);
            for (index, chunk) in bytes.chunks(words * 8).enumerate() {
                prop_assert_eq!(STREAM.mismatch(9, index * words * 8, chunk), None);
            }
        }

        #[test]
        fn any_flipped_byte_is_found_where_it_is(len in 1usize..5000, at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut bytes = message(STREAM, 9, len);
            let at = at.index(len);
            bytes[at] ^= flip;
            prop_assert_eq!(STREAM.mismatch(9, 0, &bytes), Some(at));
        }
    }

    #[test]
    fn stale_foreign_and_shifted_bytes_show() {
        let bytes = message(STREAM, 9, 64);
        assert!(STREAM.mismatch(10, 0, &bytes).is_some(), "another message");
        assert!(Stream { sender: 2, ..STREAM }.mismatch(9, 0, &bytes).is_some(), "another sender");
        assert!(Stream { operation: 1, ..STREAM }.mismatch(9, 0, &bytes).is_some(), "another operation");
        assert!(STREAM.mismatch(9, 0, &bytes[1..]).is_some(), "shifted by a byte");
        assert!(STREAM.mismatch(9, 0, &bytes[8..]).is_some(), "shifted by a word");
    }
}
