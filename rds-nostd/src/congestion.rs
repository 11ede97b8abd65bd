//! Congestion maps: which ports of a node take no more messages. Linux `net/rds/cong.c`.
//!
//! A port whose socket has received more than its receive buffer, or more than its part of the frames, is marked in this
//! node's map; every peer gets the map whenever it changes, and sends nothing more to a marked port. A port is cleared when
//! half of that has been read. The limit is soft: what a peer had sent before it knew is still taken.

use dat_nostd::{Adapter, Platform};

use crate::connection::State;
use crate::frames::{Link, Use};
use crate::node::Rds;
use crate::wire::{CONGESTION_MAP_LEN, FRAGMENT_LEN, Flags, Header};

/// 64-bit words of a map.
const WORDS: usize = CONGESTION_MAP_LEN / 8;
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

    /// Takes words from `first` on as they arrived; gives the ports cleared by it, as [`port_mask`] folds them.
    fn replace(&mut self, first: usize, bytes: &[u8]) -> u64 {
        let mut cleared = 0;
        let words = self.0.get_mut(first..).unwrap_or_default();
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            let new = u64::from_le_bytes(*bytes);
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

impl Rds<'_> {
    /// Prepares the frames that our map is sent from.
    pub(crate) fn create_map(&mut self) {
        for link in &mut self.map_frames {
            let Some(index) = self.frames.take(Use::Send) else { return };
            *link = Link::to(index);
            let header = Header {
                len: CONGESTION_MAP_LEN as u32,
                flags: Flags::CONG_BITMAP,
                ..Header::acknowledgement(0)
            };
            self.frames.clear(index);
            self.frames.write_header(index, &header.encode());
        }
    }

    /// The byte of our map that has `port`, and where it is: frame and offset in its payload.
    fn own_byte(&self, port: u16) -> Option<(usize, usize, u8)> {
        let at = usize::from(port / 8);
        let frame = self.map_frames.get(at / FRAGMENT_LEN)?.get()?;
        let mut byte = [0];
        self.frames.read_payload_at(frame, at % FRAGMENT_LEN, &mut byte);
        Some((frame, at % FRAGMENT_LEN, byte[0]))
    }

    /// Whether we told our peers that `port` takes no more.
    pub(crate) fn own_port_is_marked(&self, port: u16) -> bool {
        self.own_byte(port).is_some_and(|(_, _, byte)| byte >> (port % 8) & 1 != 0)
    }

    /// Marks or clears a port of ours; all peers are to hear of it.
    fn mark_own_port(&mut self, port: u16, marked: bool) {
        let Some((frame, offset, byte)) = self.own_byte(port) else { return };
        let bit = 1 << (port % 8);
        let byte = if marked { byte | bit } else { byte & !bit };
        self.frames.write_payload_at(frame, offset, &[byte]);
        self.counters.cong_update_queued += 1;
        self.maps_changed = true;
        for connection in &mut *self.connections {
            // A map that is half sent goes again when it is through.
            connection.map_changed = connection.state == State::Up;
            connection.map_owed = true;
        }
        if !marked {
            self.ports_cleared(port_mask(port));
        }
    }

    /// Sends the map to everybody if it has changed.
    pub(crate) fn send_changed_maps<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) {
        if core::mem::take(&mut self.maps_changed) {
            for connection in 0..self.connections.len() {
                self.transmit(adapter, connection);
            }
        }
    }

    /// What a socket's receive queue grew by.
    #[inline(never)]
    pub(crate) fn charge(&mut self, slot: usize, bytes: usize, frames: usize) {
        self.unread_frames += frames;
        self.pool_short |= self.unread_frames > self.limits.congested_pool;
        let (most, short) = (self.limits.congested_frames, self.pool_short);
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        socket.receive_bytes += bytes;
        socket.receive_frames += frames;
        let full = socket.receive_bytes > socket.receive_buffer || socket.receive_frames > most || short;
        if full && !socket.congested {
            socket.congested = true;
            let port = socket.port;
            self.mark_own_port(port, true);
        }
    }

    /// What a socket's receive queue shrank by.
    pub(crate) fn discharge(&mut self, slot: usize, bytes: usize, frames: usize) {
        self.unread_frames -= frames;
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.receive_bytes -= bytes;
            socket.receive_frames -= frames;
        }
        if self.pool_short && self.unread_frames <= self.limits.congested_pool / 2 {
            self.pool_short = false;
            for slot in 0..self.sockets.len() {
                self.relieve(slot);
            }
        } else {
            self.relieve(slot);
        }
    }

    /// Clears a socket's port if it may be.
    pub(crate) fn relieve(&mut self, slot: usize) {
        let (most, short) = (self.limits.congested_frames, self.pool_short);
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        let low = socket.receive_bytes <= socket.receive_buffer / 2 && socket.receive_frames <= most / 2;
        // With the pool short, a socket without anything unread is not what makes it so.
        if socket.congested && low && (!short || socket.receive_frames == 0) {
            socket.congested = false;
            let port = socket.port;
            self.mark_own_port(port, false);
        }
    }

    /// A fragment of a peer's map, in `frame`.
    pub(crate) fn map_arrived(&mut self, connection: usize, frame: usize) {
        let (Some(state), Some(map)) = (self.connections.get_mut(connection), self.maps.get_mut(connection))
        else {
            return;
        };
        let second = state.map_begun;
        state.map_begun = !second;
        let mut at = if second { FRAGMENT_LEN / 8 } else { 0 };
        let mut cleared = 0;
        let mut bytes = [0; 256];
        for offset in (0..FRAGMENT_LEN).step_by(bytes.len()) {
            self.frames.read_payload_at(frame, offset, &mut bytes);
            cleared |= map.replace(at, &bytes);
            at += bytes.len() / 8;
        }
        if second {
            state.map_wanted = false;
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
        for socket in self.sockets.iter_mut().filter(|socket| socket.open && socket.monitor) {
            socket.cleared |= socket.refused & mask;
            socket.refused &= !mask;
        }
    }

    /// Whether a peer told that `port` of it takes no more.
    pub(crate) fn port_is_congested(&self, connection: usize, port: u16) -> bool {
        self.maps.get(connection).is_some_and(|map| map.is_marked(port))
    }

    /// Forgets what a peer told and what is sent its way, because the entry is another peer's from now on.
    pub(crate) fn forget_map(&mut self, connection: usize) {
        if let Some(map) = self.maps.get_mut(connection) {
            *map = Map::EMPTY;
        }
        for socket in self.sockets.iter_mut().filter(|socket| usize::from(socket.route) == connection) {
            socket.route_to = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_linux_puts_them() {
        let mut bytes = [0; CONGESTION_MAP_LEN];
        // Port 6000: byte 750, bit 0.
        bytes[750] = 1;
        let mut map = Map::EMPTY;
        assert_eq!(map.replace(0, &bytes), 0, "nothing was marked");
        let marked: std::vec::Vec<u16> = (0..=u16::MAX).filter(|&port| map.is_marked(port)).collect();
        assert_eq!(marked, [6000]);
        assert_eq!(port_mask(6000), 1 << 48);
        bytes[750] = 0;
        bytes[8191] = 0x80;
        assert_eq!(map.replace(0, &bytes), 1 << 48, "what was cleared");
        assert!(map.is_marked(65535) && !map.is_marked(6000));
    }

    #[test]
    fn halves_are_taken_one_by_one() {
        let mut map = Map::EMPTY;
        map.replace(WORDS / 2, &[0xff; FRAGMENT_LEN]);
        assert!(!map.is_marked(32767) && map.is_marked(32768) && map.is_marked(65535));
        map.replace(WORDS / 2 + WORDS, &[0xff; 8]);
    }
}
