//! What a connection has to do with congestion maps: ours on its way to the peer, the peer's on its way here.

use crate::wire::{CONGESTION_MAP_LEN, FRAGMENT_LEN, MAP_FRAGMENTS};

/// The state of both maps' transport.
#[derive(Debug)]
pub(crate) struct MapState {
    /// Fragments of our map that must go first.
    to_send: u8,
    /// Our map changed since its first fragment was posted.
    changed: bool,
    /// Our map changed since the last one that the peer has for certain; and the number of the last post of a map.
    owed: bool,
    post: u64,
    /// A socket was refused because of the peer's map: the next one must be heard of, if by connecting anew.
    wanted: bool,
    /// A first fragment of the peer's map has arrived.
    begun: bool,
    /// The peer's map has ports that take no more.
    some_marked: bool,
}

impl MapState {
    pub(crate) const EMPTY: Self = Self {
        to_send: 0,
        changed: false,
        owed: false,
        post: 0,
        wanted: false,
        begun: false,
        some_marked: false,
    };

    /// Whether something of our map is to be sent.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        self.to_send > 0 || self.changed
    }

    /// The connection came up: the peer gets our map first.
    pub(crate) const fn came_up(&mut self) {
        (self.to_send, self.changed) = (MAP_FRAGMENTS, false);
    }

    /// Our map changed. `is_owed`: the peer must receive it, also after a reconnection.
    pub(crate) const fn change(&mut self, is_up: bool, is_owed: bool) {
        // A map that is half sent goes again when it is through.
        self.changed = is_up;
        self.owed |= is_owed;
    }

    /// Returns the index of the fragment of our map to send next, and whether its completion must be reported.
    pub(crate) const fn next_fragment(&mut self) -> (u8, bool) {
        if self.to_send == 0 {
            self.to_send = MAP_FRAGMENTS;
        }
        (MAP_FRAGMENTS - self.to_send, self.to_send == 1 && self.owed)
    }

    /// The next fragment was post `number`. Returns whether it was the last one.
    pub(crate) const fn fragment_posted(&mut self, number: u64) -> bool {
        if self.to_send == MAP_FRAGMENTS {
            // Later changes go with the next map.
            self.changed = false;
        }
        self.post = number;
        self.to_send -= 1;
        self.to_send == 0
    }

    /// Posts up to `number` completed.
    pub(crate) const fn completed(&mut self, number: u64) {
        if self.owed && !self.is_due() && self.post <= number {
            self.owed = false;
        }
    }

    /// The peer may never come back: it gets our map only if it does.
    pub(crate) const fn forgo(&mut self, somebody_waits: bool) {
        self.owed = false;
        self.wanted &= somebody_waits;
    }

    /// A socket waits for the peer's map.
    pub(crate) const fn want(&mut self) {
        self.wanted = true;
    }

    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub(crate) const fn is_owed(&self) -> bool {
        self.owed
    }

    /// A fragment of the peer's map arrived. Returns whether it is the second.
    pub(crate) const fn fragment_arrived(&mut self) -> bool {
        self.begun = !self.begun;
        self.wanted &= self.begun;
        !self.begun
    }

    pub(crate) const fn set_marked(&mut self, some: bool) {
        self.some_marked = some;
    }

    /// Returns whether some ports of the peer take no messages.
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
/// 64-bit words of a fragment of it.
pub(crate) const FRAGMENT_WORDS: usize = FRAGMENT_LEN / 8;

/// The map of a peer: port `p` is bit `p % 64` of word `p / 64`.
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

    /// Takes words from `first` on as they arrived; gives the ports cleared by it, as [`port_mask`] folds them.
    pub(crate) fn replace(&mut self, first: usize, arrived: impl Iterator<Item = u64>) -> u64 {
        let mut cleared = 0;
        for (word, new) in self.0.iter_mut().skip(first).zip(arrived) {
            cleared |= *word & !new;
            *word = new;
        }
        cleared
    }
}

/// A port as `RDS_CMSG_CONG_UPDATE` tells of it: all ports that are equal modulo 64 share a bit.
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
