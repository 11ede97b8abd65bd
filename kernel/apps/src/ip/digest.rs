//! SHA-256 of what goes by, as `sha256sum` says it, and bytes worth sending.

use core::fmt;

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest. Displays as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Bytes of `sha256sum`'s line for standard input.
pub(super) const LINE_LEN: usize = 68;

impl Digest {
    /// What `sha256sum` prints for its standard input.
    pub(super) fn line(&self) -> [u8; LINE_LEN] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut line = *b"0000000000000000000000000000000000000000000000000000000000000000  -\n";
        for (pair, byte) in line.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        line
    }
}

/// Counts and hashes a stream.
#[derive(Clone)]
pub(super) struct Stream {
    hash: Sha256,
    pub(super) bytes: u64,
}

impl Stream {
    pub(super) fn new() -> Self {
        Self { hash: Sha256::new(), bytes: 0 }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(super) fn digest(&self) -> Digest {
        Digest(self.hash.clone().finalize().into())
    }

    /// Fills `bytes` with what comes next in the stream of `sender`, and counts it.
    pub(super) fn produce(&mut self, sender: u8, bytes: &mut [u8]) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = pattern(sender, self.bytes + i as u64);
        }
        self.update(bytes);
    }
}

/// Byte `i` of the stream of `sender`: one that repeats neither with a packet nor with a buffer.
fn pattern(sender: u8, i: u64) -> u8 {
    let word = (i ^ (u64::from(sender) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 56) as u8
}

/// Digest of the first `len` bytes of the stream of `sender`.
pub(super) fn digest_of(sender: u8, len: u64) -> Digest {
    let mut stream = Stream::new();
    let mut chunk = [0; 1024];
    while stream.bytes < len {
        let count = (len - stream.bytes).min(chunk.len() as u64) as usize;
        stream.produce(sender, &mut chunk[..count]);
    }
    stream.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn as_sha256sum_says_it() {
        let mut stream = Stream::new();
        stream.update(b"a");
        stream.update(b"bc");
        let digest = stream.digest();
        // FIPS 180-4's example.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), expected);
        assert_eq!(digest.line(), std::format!("{expected}  -\n").as_bytes());
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let mut stream = Stream::new();
        for len in [1, 1000, 0, 3, 5000] {
            stream.produce(2, &mut std::vec![0; len]);
        }
        assert_eq!(stream.digest(), digest_of(2, 6004));
        assert_ne!(stream.digest(), digest_of(1, 6004), "another sender");
    }
}
