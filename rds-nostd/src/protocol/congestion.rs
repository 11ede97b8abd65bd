//! Congestion maps: which ports of a node take no more messages. Linux `net/rds/cong.c`.
//!
//! A port whose socket has received more than its receive buffer, or more than its part of the frames, is marked in this
//! node's map; every peer gets the map whenever it changes, and sends nothing more to a marked port. A port is cleared when
//! half of that has been read. The limit is soft: what a peer had sent before it knew is still taken.

use crate::connection::State;
use crate::frames::Use;
use crate::ids::{ConnectionId, FrameId};
use crate::protocol::Protocol;
use crate::wire::{CONGESTION_MAP_LEN, FRAGMENT_LEN, Flags, Header};

/// 64-bit words of a map, and of a fragment of it.
const WORDS: usize = CONGESTION_MAP_LEN / 8;
const FRAGMENT_WORDS: usize = FRAGMENT_LEN / 8;
/// Fragments of a map.
pub(crate) const MAP_FRAGMENTS: u8 = (CONGESTION_MAP_LEN / FRAGMENT_LEN) as u8;

/// The map of a peer: port `p` is bit `p % 64` of word `p / 64`.
#[derive(Debug)]
pub(crate) struct Map([u64; WORDS]);

impl Map {
    pub(crate) const EMPTY: Self = Self([0; WORDS]);

    #[inline(always)]
    pub(crate) fn is_marked(&self, port: u16) -> bool {
        self.0.get(usize::from(port / 64)).is_some_and(|word| word >> (port % 64) & 1 != 0)
    }

    fn has_marks(&self) -> bool {
        self.0.iter().any(|word| *word != 0)
    }

    /// Takes words from `first` on as they arrived; gives the ports cleared by it, as [`port_mask`] folds them.
    fn replace(&mut self, first: usize, arrived: impl Iterator<Item = u64>) -> u64 {
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

impl Protocol<'_> {
    /// Prepares the frames that our map is sent from.
    pub(crate) fn create_map(&mut self) {
        for place in &mut self.own_map {
            *place = self.frames.take(Use::Send);
            let Some(frame) = *place else { return };
            for index in 0..FRAGMENT_WORDS {
                self.frames.set_payload_word(frame, index, 0);
            }
            let (len, flags) = (CONGESTION_MAP_LEN as u32, Flags::CONG_BITMAP);
            self.frames.write_header(frame, &Header { len, flags, ..Header::acknowledgement(0) });
        }
    }

    /// The word of our map that has `port`: frame, index in its payload, value.
    fn own_word(&self, port: u16) -> Option<(FrameId, usize, u64)> {
        let at = usize::from(port / 64);
        let frame = self.own_map.get(at / FRAGMENT_WORDS).copied().flatten()?;
        let index = at % FRAGMENT_WORDS;
        Some((frame, index, self.frames.payload_word(frame, index)))
    }

    /// Whether we told our peers that `port` takes no more.
    pub(crate) fn own_port_is_marked(&self, port: u16) -> bool {
        self.own_word(port).is_some_and(|(_, _, word)| word & port_mask(port) != 0)
    }

    /// Marks or clears a port of ours; all peers are to hear of it.
    fn mark_own_port(&mut self, port: u16, marked: bool) {
        let Some((frame, index, word)) = self.own_word(port) else { return };
        let bit = port_mask(port);
        self.frames.set_payload_word(frame, index, if marked { word | bit } else { word & !bit });
        self.counters.cong_update_queued += 1;
        self.maps_changed = true;
        for id in self.connections.ids() {
            let connection = self.connections.at_mut(id);
            // A map that is half sent goes again when it is through.
            connection.map.changed = connection.state == State::Up;
            connection.tx.plain_until = 0;
            connection.map.owed = true;
            if connection.map.changed || connection.wants_up() {
                self.connections.make_due(id);
            }
        }
        if !marked {
            self.ports_cleared(bit);
        }
    }

    /// A socket got more than it should hold.
    #[inline(never)]
    pub(crate) fn crowded(&mut self, slot: usize) {
        self.pool_short |= self.receiving.beyond() > self.limits.congested_common;
        let (most, short) = (self.limits.congested_frames, self.pool_short);
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        // A socket that is read from is not what makes the frames short.
        let short = short && socket.receive_frames > most / 8;
        let full = socket.receive_bytes > socket.receive_buffer || socket.receive_frames > most || short;
        if full && !socket.congested {
            socket.congested = true;
            self.mark_socket(slot, true);
        }
    }

    /// A socket has less than before, or may have more.
    pub(crate) fn relieve(&mut self, slot: usize) {
        if self.pool_short && self.receiving.beyond() <= self.limits.congested_common / 2 {
            self.pool_short = false;
            for slot in 0..self.sockets.len() {
                self.relieve_one(slot);
            }
        } else {
            self.relieve_one(slot);
        }
    }

    /// Clears a socket's port if it may be.
    fn relieve_one(&mut self, slot: usize) {
        let (most, short) = (self.limits.congested_frames, self.pool_short);
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        let low = socket.receive_bytes <= socket.receive_buffer / 2 && socket.receive_frames <= most / 2;
        // With the pool short, a socket without anything unread is not what makes it so.
        if socket.congested && low && (!short || socket.receive_frames == 0) {
            socket.congested = false;
            self.mark_socket(slot, false);
        }
    }

    /// Tells of a socket's port, if peers know it: those of loopback addresses and of unbound sockets are nobody's affair.
    fn mark_socket(&mut self, slot: usize, marked: bool) {
        if let Some(port) = self.sockets.get(slot).map(|socket| socket.peers_port)
            && port != 0
        {
            self.mark_own_port(port, marked);
        }
    }

    /// A fragment of a peer's map, in `frame`.
    pub(crate) fn map_arrived(&mut self, id: ConnectionId, frame: FrameId) {
        let Some(map) = self.maps.get_mut(id.index()) else { return };
        let state = &mut self.connections.at_mut(id).map;
        let second = state.begun;
        state.begun = !second;
        let first = if second { FRAGMENT_WORDS } else { 0 };
        let arrived = (0..FRAGMENT_WORDS).map(|index| self.frames.payload_word(frame, index));
        let cleared = map.replace(first, arrived);
        state.some_marked = map.has_marks();
        if second {
            state.wanted = false;
            self.counters.cong_update_received += 1;
            self.map_generation += 1;
        }
        self.ports_cleared(cleared);
    }

    /// Tells the sockets that wait for one of these ports.
    fn ports_cleared(&mut self, mask: u64) {
        if mask == 0 {
            return;
        }
        for socket in self.sockets.iter_mut().filter(|socket| socket.monitor) {
            socket.cleared |= socket.refused & mask;
            socket.refused &= !mask;
        }
    }

    /// Forgets what a peer told and what is sent its way, because the entry is another peer's from now on.
    pub(crate) fn forget_map(&mut self, id: ConnectionId) {
        if let Some(map) = self.maps.get_mut(id.index()) {
            *map = Map::EMPTY;
        }
        for socket in self.sockets.iter_mut().filter(|socket| socket.route == Some(id)) {
            socket.route = None;
        }
    }
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
