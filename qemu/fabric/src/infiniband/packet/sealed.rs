//! Packets with an ICRC that is computed lazily.

use super::{icrc_is_right, write_icrc};

/// An InfiniBand packet, from LRH to ICRC. (Captures add the variant CRC, which belongs to the
/// link.)
///
/// The ICRC is computed lazily, because most packets are neither captured nor changed. Call
/// [`seal`](Self::seal) before a packet is captured, corrupted or leaves the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// LRH to ICRC.
    bytes: Vec<u8>,
    /// The ICRC, the last four bytes, is not written yet.
    unsealed: bool,
}

impl Packet {
    /// Makes a packet of received bytes, whose ICRC is right or wrong.
    #[must_use]
    #[inline]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, unsealed: false }
    }

    /// Makes a packet with any last four bytes, which [`seal`](Self::seal) replaces by the ICRC.
    #[must_use]
    #[inline]
    pub const fn unsealed(bytes: Vec<u8>) -> Self {
        Self { bytes, unsealed: true }
    }

    /// Writes the ICRC, if it is not written yet.
    pub fn seal(&mut self) {
        if std::mem::take(&mut self.unsealed) {
            write_icrc(&mut self.bytes);
        }
    }

    /// Returns LRH to ICRC. The ICRC may not be written yet.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns LRH to ICRC.
    pub fn sealed_bytes(&mut self) -> &[u8] {
        self.seal();
        &self.bytes
    }

    /// Inverts a bit of LRH to ICRC, as a link error does. Bits after the packet's end are ignored.
    pub fn invert(&mut self, bit: u64) {
        self.seal();
        if let Some(byte) = self.bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Returns whether the ICRC is right.
    #[must_use]
    #[inline]
    pub fn is_intact(&self) -> bool {
        self.unsealed || icrc_is_right(&self.bytes)
    }

    /// Returns the buffer, for another packet.
    #[must_use]
    #[inline]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}
