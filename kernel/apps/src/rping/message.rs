//! The message by which the client offers a buffer, and the text that goes round.

use core::fmt::Write;

use dat_nostd::DmaSlice;

/// Bytes of a message.
pub(super) const MESSAGE_LEN: usize = 16;

/// An offered buffer: address, key and length, big-endian one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) size: u32,
}

impl Offer {
    pub(super) fn encode(self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; MESSAGE_LEN]) -> Self {
        let value = u128::from_be_bytes(bytes);
        Self { address: (value >> 64) as u64, rkey: (value >> 32) as u32, size: value as u32 }
    }
}

/// The first and the last character of those that go round.
const FIRST: u8 = b'A';
const LAST: u8 = b'z';
const LETTERS: u32 = (LAST - FIRST + 1) as u32;
/// Bytes made or compared at once.
const CHUNK: usize = 1024;
/// Room for the text's beginning.
const MAX_HEADING: usize = 32;

/// The text of one iteration: `rdma-ping-N: `, then the characters from `A` to `z` round and round, each iteration beginning one
/// further; a zero byte at the end.
struct Text {
    heading: [u8; MAX_HEADING],
    heading_len: usize,
    first: u8,
    len: usize,
}

struct Heading<'a>(&'a mut [u8; MAX_HEADING], usize);

impl Write for Heading<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            *self.0.get_mut(self.1).ok_or(core::fmt::Error)? = byte;
            self.1 += 1;
        }
        Ok(())
    }
}

impl Text {
    fn new(iteration: u32, len: usize) -> Self {
        let mut heading = [0; MAX_HEADING];
        let mut writer = Heading(&mut heading, 0);
        // At most 22 bytes.
        let _ = write!(writer, "rdma-ping-{iteration}: ");
        let heading_len = writer.1;
        let first = FIRST + (iteration % LETTERS) as u8;
        Self { heading, heading_len, first, len }
    }

    /// The bytes from `start` on; chunks are asked for in their order, `letter` carries over.
    fn chunk(&self, start: usize, letter: &mut u8, out: &mut [u8]) {
        for (at, byte) in (start..).zip(out) {
            *byte = match self.heading.get(at) {
                Some(heading) if at < self.heading_len => *heading,
                _ => {
                    let this = *letter;
                    *letter = if this == LAST { FIRST } else { this + 1 };
                    this
                }
            };
            if at + 1 == self.len {
                *byte = 0;
            }
        }
    }
}

/// Fills the first `len` bytes with the text of an iteration.
pub(super) fn fill(memory: DmaSlice<'_>, iteration: u32, len: usize) {
    let text = Text::new(iteration, len);
    let (mut chunk, mut letter) = ([0; CHUNK], text.first);
    for start in (0..len).step_by(CHUNK) {
        let part = &mut chunk[..(len - start).min(CHUNK)];
        text.chunk(start, &mut letter, part);
        // `len` is at most the memory's length.
        let _ = memory.write(start, part);
    }
}

/// Position of the first of `len` bytes that is not as [`fill`] would have it.
pub(super) fn mismatch(memory: DmaSlice<'_>, iteration: u32, len: usize) -> Option<usize> {
    let text = Text::new(iteration, len);
    let (mut chunk, mut found, mut letter) = ([0; CHUNK], [0; CHUNK], text.first);
    for start in (0..len).step_by(CHUNK) {
        let count = (len - start).min(CHUNK);
        let (expected, found) = (&mut chunk[..count], &mut found[..count]);
        text.chunk(start, &mut letter, expected);
        if memory.read(start, found).is_err() {
            return Some(start);
        }
        if *expected != *found {
            let inside = expected.iter().zip(found.iter()).position(|(a, b)| a != b).unwrap_or(0);
            return Some(start + inside);
        }
    }
    None
}

/// Length of the text in the first `len` bytes with its zero byte, or `len` if there is none.
pub(super) fn text_len(memory: DmaSlice<'_>, len: usize) -> usize {
    let mut chunk = [0; CHUNK];
    for start in (0..len).step_by(CHUNK) {
        let part = &mut chunk[..(len - start).min(CHUNK)];
        if memory.read(start, part).is_err() {
            break;
        }
        if let Some(at) = part.iter().position(|byte| *byte == 0) {
            return start + at + 1;
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec;

    #[test]
    fn messages_are_big_endian() {
        let offer = Offer { address: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, size: 0x0d0e_0f10 };
        let bytes = offer.encode();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(Offer::decode(bytes), offer);
    }

    fn text(iteration: u32, len: usize) -> String {
        let text = Text::new(iteration, len);
        let (mut bytes, mut letter) = (vec![0; len], text.first);
        for (index, chunk) in bytes.chunks_mut(7).enumerate() {
            text.chunk(index * 7, &mut letter, chunk);
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn texts_are_those_that_rping_prints() {
        // As `rping -v` prints them, in 64 bytes.
        assert_eq!(text(0, 64), "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0");
        assert_eq!(text(1, 64), "rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs\0");
        let later = text(58 + 57, 64);
        assert!(later.starts_with("rdma-ping-115: zABCDEF"), "{later}");
        let long = text(3, 300);
        assert!(long.contains("xyzABC") && long.ends_with('\0') && long.len() == 300, "{long}");
    }
}
