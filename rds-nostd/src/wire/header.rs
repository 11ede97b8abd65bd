//! The 48-byte header of every frame, read and written as six quadwords, because frame memory is
//! borrowed as quadwords.

use crate::wire::{Flags, HEADER_LEN, fragments};

/// Quadwords of a header.
pub(crate) const HEADER_WORDS: usize = HEADER_LEN / 8;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of the message on its connection; 0 in acknowledgements and maps.
    pub sequence: u64,
    /// Highest sequence number received completely, cumulative.
    pub ack: u64,
    /// Payload bytes of the complete message.
    pub len: u32,
    /// Port of the sending socket; 0 is RDS itself.
    pub sport: u16,
    /// Port of the receiving socket; 0 is RDS itself.
    pub dport: u16,
    /// Flags.
    pub flags: Flags,
    /// Newly posted receives; 0 without flow control.
    pub credit: u8,
    /// Extension headers, see [`Extensions`](crate::wire::Extensions).
    pub extensions: [u8; 16],
}

impl Header {
    /// Returns the header of an acknowledgement without payload.
    #[must_use]
    pub const fn acknowledgement(ack: u64) -> Self {
        Self {
            sequence: 0,
            ack,
            len: 0,
            sport: 0,
            dport: 0,
            flags: Flags::empty(),
            credit: 0,
            extensions: [0; 16],
        }
    }

    /// Returns the header as quadwords in memory, with its checksum.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; HEADER_WORDS] {
        let lengths = u64::from(self.len) << 32 | u64::from(self.sport) << 16 | u64::from(self.dport);
        let flags = u64::from(self.flags.bits()) << 56 | u64::from(self.credit) << 48;
        let [first, second] = halves(&self.extensions);
        let mut words =
            [self.sequence.to_be(), self.ack.to_be(), lengths.to_be(), flags.to_be(), first, second];
        // Skip the extensions in the sum if they are zero.
        let total = if first | second == 0 { total(&words[..4]) } else { total(&words) };
        let [first, second] = (!folded(total)).to_ne_bytes();
        words[3] |= u64::from_ne_bytes([0, 0, 0, 0, 0, 0, first, second]);
        words
    }

    /// Parses quadwords of memory, and verifies the checksum. A checksum of 0 means that the sender
    /// computed none.
    ///
    /// # Errors
    /// [`BadChecksum`].
    #[inline(always)]
    pub(crate) fn from_words(words: &[u64; HEADER_WORDS]) -> Result<Self, BadChecksum> {
        let flags = u64::from_be(words[3]);
        // The sum of a valid header is all ones. The only other multiple of 2^16 - 1 is 0, for
        // all-zero words.
        if !is_multiple(total(words)) && has_checksum(flags) {
            return Err(BadChecksum);
        }
        let lengths = u64::from_be(words[2]);
        Ok(Self {
            sequence: u64::from_be(words[0]),
            ack: u64::from_be(words[1]),
            len: (lengths >> 32) as u32,
            sport: (lengths >> 16) as u16,
            dport: lengths as u16,
            flags: Flags::from_bits_retain((flags >> 56) as u8),
            credit: (flags >> 48) as u8,
            extensions: joined([words[4], words[5]]),
        })
    }

    /// Returns the bytes on the wire, with the checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.to_words()) {
            *bytes = word.to_ne_bytes();
        }
        bytes
    }

    /// Parses the bytes on the wire, and verifies the checksum. A checksum of 0 means that the
    /// sender computed none.
    ///
    /// # Errors
    /// [`BadChecksum`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, BadChecksum> {
        let mut words = [0; HEADER_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Self::from_words(&words)
    }

    /// Returns true for a fragment to a socket, without extensions, of a message that is sent for
    /// the first time.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        let flags = self.flags.bits() & !Flags::ACK_REQUIRED.bits();
        u128::from_le_bytes(self.extensions) | flags as u128 == 0 && self.dport != 0
    }

    /// Returns whether the frame is only an acknowledgement.
    #[must_use]
    pub const fn is_acknowledgement(&self) -> bool {
        self.sport == 0 && self.dport == 0 && self.len == 0
    }

    /// Returns whether the frame is a fragment of a congestion map: the flags are exactly
    /// `CONG_BITMAP`.
    #[must_use]
    pub const fn is_congestion_map(&self) -> bool {
        self.flags.bits() == Flags::CONG_BITMAP.bits()
    }

    /// Returns whether `other` can be a fragment of the same message. Acknowledgement, credit and
    /// checksum may differ.
    #[must_use]
    pub const fn same_message(&self, other: &Self) -> bool {
        self.sequence == other.sequence
            && self.len == other.len
            && self.sport == other.sport
            && self.dport == other.dport
    }

    /// Returns the number of frames of the message; 1 for an empty one.
    #[must_use]
    pub const fn fragments(&self) -> usize {
        fragments(self.len as usize)
    }
}

/// The header's checksum is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChecksum;

#[inline]
fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*bytes);
    [(both as u64).to_le(), ((both >> 64) as u64).to_le()]
}

/// Returns the bytes of extension headers from quadwords in memory.
#[inline]
pub(crate) fn joined([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(u64::from_le(first)) | u128::from(u64::from_le(second)) << 64).to_le_bytes()
}

/// Returns whether the quadword with the flags has a checksum.
// A call, so that the sum of other frames is tested first.
#[cold]
#[inline(never)]
const fn has_checksum(flags: u64) -> bool {
    flags as u16 != 0
}

/// Returns whether a number is a multiple of 2^16 − 1. Multiplied by the inverse modulo 2^64,
/// exactly the multiples become small.
#[inline]
const fn is_multiple(number: u64) -> bool {
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const { assert!(INVERSE.wrapping_mul(0xffff) == 1) };
    number.wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}

/// Returns the one's-complement sum of the quadwords. Modulo 2^16 − 1, which divides 2^64 − 1, it
/// equals that of their 16-bit words, and byte order only swaps the result's bytes (RFC 1071). It
/// is 0 only if all words are 0.
#[inline]
fn total(words: &[u64]) -> u64 {
    let (mut total, mut carry) = (0u64, false);
    for word in words {
        (total, carry) = total.carrying_add(*word, carry);
    }
    let (total, carry) = total.overflowing_add(u64::from(carry));
    total + u64::from(carry)
}

/// Folds the sum to 16 bits.
#[inline]
const fn folded(total: u64) -> u16 {
    // Adding the rotated sum leaves the folded sum, with its carry, in the upper half.
    let total = (total.wrapping_add(total.rotate_left(32)) >> 32) as u32;
    (total.wrapping_add(total.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::testing::hex;
    use proptest::prelude::*;

    const NONE: Header = Header::acknowledgement(0);

    /// Headers captured between two Linux guests.
    fn golden() -> [(Header, &'static str); 7] {
        let mut dest = [0; 16];
        dest[..9].copy_from_slice(&hex("03 00000300 00000100"));
        let mut chaser = [0; 16];
        chaser[..5].copy_from_slice(&hex("02 00000300"));
        [
            (
                Header { len: 8192, flags: Flags::CONG_BITMAP, ..NONE },
                "0000000000000000 0000000000000000 00002000 0000 0000 01 00 00000000 deff 00000000000000000000000000000000",
            ),
            (
                Header { sequence: 1, sport: 0x4086, flags: Flags::ACK_REQUIRED, ..NONE },
                "0000000000000001 0000000000000000 00000000 4086 0000 02 00 00000000 bd78 00000000000000000000000000000000",
            ),
            (
                Header { ack: 1, ..NONE },
                "0000000000000000 0000000000000001 00000000 0000 0000 00 00 00000000 fffe 00000000000000000000000000000000",
            ),
            (
                Header { sequence: 6, ack: 4, len: 5, sport: 5001, dport: 5000, ..NONE },
                "0000000000000006 0000000000000004 00000005 1389 1388 00 00 00000000 d8df 00000000000000000000000000000000",
            ),
            (
                Header {
                    sequence: 10,
                    ack: 4,
                    len: 1,
                    sport: 5001,
                    dport: 5000,
                    flags: Flags::ACK_REQUIRED,
                    extensions: dest,
                    ..NONE
                },
                "000000000000000a 0000000000000004 00000001 1389 1388 02 00 00000000 d3db 03 00000300 00000100 00000000000000",
            ),
            (
                Header { sequence: 5, ack: 11, len: 3, sport: 5000, dport: 5001, extensions: chaser, ..NONE },
                "0000000000000005 000000000000000b 00000003 1388 1389 00 00 00000000 d6d8 02 00000300 0000000000000000000000",
            ),
            (
                Header {
                    sequence: 20,
                    len: 4,
                    sport: 7000,
                    dport: 7000,
                    flags: Flags::ACK_REQUIRED.union(Flags::RETRANSMITTED),
                    ..NONE
                },
                "0000000000000014 0000000000000000 00000004 1b58 1b58 06 00 00000000 c337 00000000000000000000000000000000",
            ),
        ]
    }

    #[test]
    fn headers_equal_what_linux_sends() {
        for (header, bytes) in golden() {
            let bytes: [u8; HEADER_LEN] = hex(bytes).try_into().unwrap();
            assert_eq!(header.encode(), bytes, "{header:?}");
            assert_eq!(Header::decode(&bytes), Ok(header));
        }
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found() {
        let good = golden()[4].0.encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), Err(BadChecksum), "bit {bit}");
        }
        let mut unchecked = good;
        unchecked[30..32].fill(0);
        assert_eq!(Header::decode(&unchecked), Ok(golden()[4].0));
    }

    proptest! {
        /// Every header decodes to itself, and any single flipped bit is detected.
        #[test]
        fn headers_come_back(sequence: u64, ack: u64, len: u32, ports: [u16; 2], bits: u8, credit: u8, extensions: [u8; 16],
                             bit in 0usize..HEADER_LEN * 8) {
            let [sport, dport] = ports;
            let flags = Flags::from_bits_retain(bits);
            let header = Header { sequence, ack, len, sport, dport, flags, credit, extensions };
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes), Ok(header));
            let computed = bytes[30..32] != [0, 0];
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!computed || bytes[30..32] == [0, 0] || Header::decode(&bytes).is_err());
        }
    }
}
