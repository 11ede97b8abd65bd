//! Headers and payloads as the quadwords that a frame's memory is lent as: for the straight way, where all of a header but the numbers in it
//! is known beforehand.

use driver_mlx::DmaWord;

use crate::wire::Flags;

/// Quadwords of a header.
pub(crate) const HEADER_WORDS: usize = 6;
/// Bytes copied at a time.
const STEP: usize = 64;

/// The one's-complement sum of quadwords. Modulo 2^16 − 1, which divides 2^64 − 1, it is that of their 16-bit words, in the byte order that
/// they are given in. 0 only if all are 0.
#[inline(always)]
fn total(words: [u64; 4]) -> u64 {
    let [a, b, c, d] = words;
    let total = u128::from(a) + u128::from(b) + u128::from(c) + u128::from(d);
    let (folded, carry) = (total as u64).overflowing_add((total >> 64) as u64);
    folded + u64::from(carry)
}

/// The same of 16 bits.
#[inline(always)]
fn sum(words: [u64; 4]) -> u16 {
    let total = total(words);
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    ((total >> 16) + (total & 0xffff)) as u16
}

/// What the straight way sends and takes of a header: no extensions, no credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) sequence: u64,
    pub(crate) ack: u64,
    pub(crate) len: u32,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    pub(crate) flags: u8,
}

impl Plain {
    /// Writes the header, with its checksum.
    #[inline(always)]
    pub(crate) fn write(self, words: &[DmaWord; HEADER_WORDS]) {
        let lengths = u64::from(self.len) << 32 | u64::from(self.sport) << 16 | u64::from(self.dport);
        let flags = u64::from(self.flags) << 56;
        let checksum = !sum([self.sequence, self.ack, lengths, flags]);
        let [first, second, third, fourth, extension, rest] = words;
        first.store(self.sequence.to_be());
        second.store(self.ack.to_be());
        third.store(lengths.to_be());
        fourth.store((flags | u64::from(checksum)).to_be());
        extension.store(0);
        rest.store(0);
    }

    /// Reads a header, perhaps one of nothing but zeros. None if the checksum is wrong or missing, and if there is an extension: then [`Header`](crate::wire::Header)
    /// tells more.
    #[inline(always)]
    pub(crate) fn read(words: &[DmaWord; HEADER_WORDS]) -> Option<Self> {
        let [sequence, ack, lengths, flags, extension, rest] = words.each_ref().map(|word| word.load());
        // With no extension these two add nothing; the order of the bytes makes no difference to what a right sum is.
        if extension | rest != 0 || !total([sequence, ack, lengths, flags]).is_multiple_of(0xffff) {
            return None;
        }
        let lengths = u64::from_be(lengths);
        let flags = u64::from_be(flags);
        Some(Self {
            sequence: u64::from_be(sequence),
            ack: u64::from_be(ack),
            len: (lengths >> 32) as u32,
            sport: (lengths >> 16) as u16,
            dport: lengths as u16,
            flags: (flags >> 56) as u8,
        })
    }

    /// Whether it is of a message that is not sent again, to a socket: no map, no heartbeat, no ping, no acknowledgement alone.
    #[inline(always)]
    pub(crate) const fn is_message(self) -> bool {
        self.flags & !Flags::ACK_REQUIRED.bits() == 0 && self.dport != 0
    }
}

/// Copies bytes to quadwords; of the last one it reaches, the rest becomes 0. What does not fit is left out.
#[inline(always)]
pub(crate) fn put(words: &[DmaWord], bytes: &[u8]) {
    let bytes = bytes.get(..words.len() * 8).unwrap_or(bytes);
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let (wide, words) = split(words, steps.len());
    for (words, bytes) in wide.iter().zip(steps) {
        let (quads, _) = bytes.as_chunks::<8>();
        words[0].store(u64::from_ne_bytes(quads[0]));
        words[1].store(u64::from_ne_bytes(quads[1]));
        words[2].store(u64::from_ne_bytes(quads[2]));
        words[3].store(u64::from_ne_bytes(quads[3]));
        words[4].store(u64::from_ne_bytes(quads[4]));
        words[5].store(u64::from_ne_bytes(quads[5]));
        words[6].store(u64::from_ne_bytes(quads[6]));
        words[7].store(u64::from_ne_bytes(quads[7]));
    }
    if !rest.is_empty() {
        put_rest(words, rest);
    }
}

#[inline(always)]
fn put_rest(words: &[DmaWord], bytes: &[u8]) {
    let (quads, tail) = bytes.as_chunks::<8>();
    let (whole, rest) = words.split_at_checked(quads.len()).unwrap_or((words, &[]));
    for (word, quad) in whole.iter().zip(quads) {
        word.store(u64::from_ne_bytes(*quad));
    }
    if let Some(word) = rest.first().filter(|_| !tail.is_empty()) {
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(tail) {
            *to = *from;
        }
        word.store(u64::from_ne_bytes(last));
    }
}

/// Copies quadwords to bytes, as far as both go.
#[inline(always)]
pub(crate) fn get(words: &[DmaWord], bytes: &mut [u8]) {
    let room = bytes.len().min(words.len() * 8);
    let (bytes, _) = bytes.split_at_mut(room);
    let (steps, rest) = bytes.as_chunks_mut::<STEP>();
    let (wide, words) = split(words, steps.len());
    for (words, bytes) in wide.iter().zip(steps) {
        let (quads, _) = bytes.as_chunks_mut::<8>();
        quads[0] = words[0].load().to_ne_bytes();
        quads[1] = words[1].load().to_ne_bytes();
        quads[2] = words[2].load().to_ne_bytes();
        quads[3] = words[3].load().to_ne_bytes();
        quads[4] = words[4].load().to_ne_bytes();
        quads[5] = words[5].load().to_ne_bytes();
        quads[6] = words[6].load().to_ne_bytes();
        quads[7] = words[7].load().to_ne_bytes();
    }
    if !rest.is_empty() {
        get_rest(words, rest);
    }
}

#[inline(always)]
fn get_rest(words: &[DmaWord], bytes: &mut [u8]) {
    let (quads, tail) = bytes.as_chunks_mut::<8>();
    let (whole, rest) = words.split_at_checked(quads.len()).unwrap_or((words, &[]));
    for (word, quad) in whole.iter().zip(quads) {
        *quad = word.load().to_ne_bytes();
    }
    if let Some(word) = rest.first() {
        let last = word.load().to_ne_bytes();
        for (to, from) in tail.iter_mut().zip(last) {
            *to = from;
        }
    }
}

/// The first `steps` groups of [`STEP`] bytes, and what is behind them.
#[inline(always)]
fn split(words: &[DmaWord], steps: usize) -> (&[[DmaWord; STEP / 8]], &[DmaWord]) {
    let at = (steps * (STEP / 8)).min(words.len());
    let (wide, rest) = words.split_at_checked(at).unwrap_or_default();
    (wide.as_chunks().0, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn words(bytes: &[u8; 48]) -> [DmaWord; HEADER_WORDS] {
        let mut out = [const { DmaWord::new(0) }; HEADER_WORDS];
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = DmaWord::new(u64::from_ne_bytes(*bytes));
        }
        out
    }

    proptest! {
        /// The same bytes as the general way writes, and the same read back.
        #[test]
        fn headers_are_the_general_ones(sequence: u64, ack: u64, len: u32, sport: u16, dport: u16, flags: u8) {
            let header = Header {
                sequence, ack, len, sport, dport, flags: Flags::from_bits_retain(flags), credit: 0, extensions: [0; 16],
            };
            let plain = Plain { sequence, ack, len, sport, dport, flags };
            let general = words(&header.encode());
            let straight = words(&[0xee; 48]);
            plain.write(&straight);
            let bits = |words: &[DmaWord; 6]| words.each_ref().map(|word| word.load());
            prop_assert_eq!(bits(&general), bits(&straight));
            prop_assert_eq!(Plain::read(&general), Some(plain));
        }

        /// What is wrong anywhere is not taken.
        #[test]
        fn one_wrong_bit_is_found(sequence: u64, ack: u64, len: u32, bit in 0usize..48 * 8) {
            let header = Header { sequence, len, sport: 7, dport: 9, ..Header::acknowledgement(ack) };
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Plain::read(&words(&bytes)), None);
        }

        /// Bytes come back as they went, nothing beside them is written to but the rest of the last quadword.
        #[test]
        fn bytes_come_back(data in prop::collection::vec(any::<u8>(), 0..200)) {
            let words: Vec<DmaWord> = (0..32).map(|_| DmaWord::new(u64::MAX)).collect();
            put(&words, &data);
            let mut back = std::vec![0; data.len()];
            get(&words, &mut back);
            prop_assert_eq!(&back, &data);
            let untouched = &words[data.len().div_ceil(8)..];
            prop_assert!(untouched.iter().all(|word| word.load() == u64::MAX));
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_left_out() {
        let words: Vec<DmaWord> = (0..5).map(|_| DmaWord::new(0)).collect();
        put(&words, &[7; 100]);
        let mut back = [1; 100];
        get(&words, &mut back);
        assert!(back[..40].iter().all(|&byte| byte == 7) && back[40..].iter().all(|&byte| byte == 1));
    }
}
