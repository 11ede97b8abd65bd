//! Congestion maps of a connection: transmission of ours, and reception of the peer's.

use crate::wire::{CONGESTION_MAP_LEN, FRAGMENT_LEN, MAP_FRAGMENTS};

with_empty! {
    /// Progress of both maps.
    #[derive(Debug)]
    pub(crate) struct MapState {
        /// Fragments of our map to send before any message.
        to_send: u8 = 0,
        /// Our map has changed since its first fragment was posted.
        changed: bool = false,
        /// Our map has changed since the last one that the peer certainly has; and the sequence
        /// number of the last post of a map.
        owed: bool = false,
        post: u64 = 0,
        /// The peer's map has refused a message, so its next map must arrive, by a reconnection if
        /// necessary.
        wanted: bool = false,
        /// The first fragment of the peer's map has arrived.
        begun: bool = false,
        /// The peer's map has congested ports.
        some_marked: bool = false,
    }
}

impl MapState {
    /// Returns whether a part of our map must be sent.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        self.to_send > 0 || self.changed
    }

    /// Starts with our map on a new connection.
    pub(crate) const fn came_up(&mut self) {
        (self.to_send, self.changed) = (MAP_FRAGMENTS, false);
    }

    /// Records a change of our map. `is_owed`: the peer must receive it, even after a reconnection.
    pub(crate) const fn change(&mut self, is_up: bool, is_owed: bool) {
        // A map that is half sent is completed, and then sent again.
        self.changed = is_up;
        self.owed |= is_owed;
    }

    /// Returns the index of the fragment of our map to send next, and whether its completion must
    /// be reported.
    pub(crate) const fn next_fragment(&mut self) -> (u8, bool) {
        if self.to_send == 0 {
            self.to_send = MAP_FRAGMENTS;
        }
        (MAP_FRAGMENTS - self.to_send, self.to_send == 1 && self.owed)
    }

    /// Records the next fragment as post `number`. Returns whether it was the last one.
    pub(crate) const fn fragment_posted(&mut self, number: u64) -> bool {
        if self.to_send == MAP_FRAGMENTS {
            // Later changes need another map.
            self.changed = false;
        }
        self.post = number;
        self.to_send -= 1;
        self.to_send == 0
    }

    /// Records the completion of all posts up to `number`.
    pub(crate) const fn completed(&mut self, number: u64) {
        if self.owed && !self.is_due() && self.post <= number {
            self.owed = false;
        }
    }

    /// Stops reconnecting for the map's sake, because the peer may be dead. The peer gets our map if it
    /// returns.
    pub(crate) const fn stop_reconnecting(&mut self, somebody_waits: bool) {
        self.owed = false;
        self.wanted &= somebody_waits;
    }

    /// Records that a socket waits for the peer's map.
    pub(crate) const fn want(&mut self) {
        self.wanted = true;
    }

    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub(crate) const fn is_owed(&self) -> bool {
        self.owed
    }

    /// Records a fragment of the peer's map. Returns whether it is the second.
    pub(crate) const fn fragment_arrived(&mut self) -> bool {
        self.begun = !self.begun;
        self.wanted &= self.begun;
        !self.begun
    }

    pub(crate) const fn set_marked(&mut self, some: bool) {
        self.some_marked = some;
    }

    /// Returns whether the peer has congested ports.
    #[inline]
    pub(crate) const fn some_marked(&self) -> bool {
        self.some_marked
    }

    pub(crate) const fn reset(&mut self) {
        self.to_send = 0;
        self.post = u64::MAX;
        self.begun = false;
    }
}

/// 64-bit words of a map.
const WORDS: usize = CONGESTION_MAP_LEN / 8;
/// 64-bit words of a fragment.
pub(crate) const FRAGMENT_WORDS: usize = FRAGMENT_LEN / 8;

/// Congestion map of a peer: port `p` is bit `p % 64` of word `p / 64`.
#[derive(Debug)]
pub(crate) struct Map([u64; WORDS]);

impl Map {
    pub(crate) const EMPTY: Self = Self([0; WORDS]);

    #[inline]
    pub(crate) fn is_marked(&self, port: u16) -> bool {
        self.0.get(usize::from(port / 64)).is_some_and(|word| word >> (port % 64) & 1 != 0)
    }

    pub(crate) fn has_marks(&self) -> bool {
        self.0.iter().any(|word| *word != 0)
    }

    /// Replaces the words from `first` on. Returns the ports that this clears, as [`port_mask`]
    /// folds them.
    pub(crate) fn replace(&mut self, first: usize, arrived: impl Iterator<Item = u64>) -> u64 {
        let mut cleared = 0;
        for (word, new) in self.0.iter_mut().skip(first).zip(arrived) {
            cleared |= *word & !new;
            *word = new;
        }
        cleared
    }
}

/// Returns the bit of a port in `RDS_CMSG_CONG_UPDATE`, which all ports that are equal modulo 64
/// share.
#[must_use]
pub const fn port_mask(port: u16) -> u64 {
    1 << (port % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat_n;

    #[test]
    fn bits_are_where_linux_puts_them() {
        // Port 6000: byte 750, bit 0; port 65535: the last bit of the last byte.
        let words = |bytes: &[u8]| {
            let words: std::vec::Vec<u64> =
                bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
            words.into_iter()
        };
        let mut bytes = [0; CONGESTION_MAP_LEN];
        bytes[750] = 1;
        let mut map = Map::EMPTY;
        assert_eq!(map.replace(0, words(&bytes)), 0, "nothing was marked");
        let marked: std::vec::Vec<u16> = (0..=u16::MAX).filter(|&port| map.is_marked(port)).collect();
        assert_eq!(marked, [6000]);
        assert_eq!(port_mask(6000), 1 << 48);
        bytes[750] = 0;
        bytes[8191] = 0x80;
        assert_eq!(map.replace(0, words(&bytes)), 1 << 48, "what was cleared");
        assert!(map.is_marked(65535) && !map.is_marked(6000));
    }

    #[test]
    fn halves_are_taken_one_by_one_and_no_more() {
        let mut map = Map::EMPTY;
        map.replace(WORDS / 2, repeat_n(u64::MAX, FRAGMENT_WORDS));
        assert!(!map.is_marked(32767) && map.is_marked(32768) && map.is_marked(65535));
        let before: u32 = map.0.iter().map(|word| word.count_ones()).sum();
        map.replace(WORDS / 2 + WORDS, repeat_n(0, 8));
        map.replace(WORDS - 1, repeat_n(0, 8));
        let after: u32 = map.0.iter().map(|word| word.count_ones()).sum();
        assert_eq!((before, after), (32768, 32768 - 64), "words behind the last are left out");
    }
}
