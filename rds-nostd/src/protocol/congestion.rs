//! Congestion maps: ports of a node that accept no more messages. Linux `net/rds/cong.c`.
//!
//! A port is marked in this node's map when its socket has received more than its receive buffer,
//! or more than its part of the frames. Every peer gets each change of the map, and then sends no
//! messages to marked ports. A port is cleared when half of that has been read. The limit is soft:
//! messages that were sent before the peer received the map are accepted.

use crate::connection::{Connection, FRAGMENT_WORDS, Map, State, port_mask};
use crate::frames::Use;
use crate::ids::{ConnectionId, FrameId};
use crate::protocol::Protocol;
use crate::socket::Wants;
use crate::wire::{CONGESTION_MAP_LEN, Flags, Header};

impl Protocol<'_> {
    /// Prepares the frames that contain our map.
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

    /// Returns the word of our map that contains `port`: frame, index in its payload, value.
    fn own_word(&self, port: u16) -> Option<(FrameId, usize, u64)> {
        let at = usize::from(port / 64);
        let frame = self.own_map.get(at / FRAGMENT_WORDS).copied().flatten()?;
        let index = at % FRAGMENT_WORDS;
        Some((frame, index, self.frames.payload_word(frame, index)))
    }

    /// Returns whether `port` is marked in our map.
    pub(crate) fn own_port_is_marked(&self, port: u16) -> bool {
        self.own_word(port).is_some_and(|(_, _, word)| word & port_mask(port) != 0)
    }

    /// Marks or clears a port of ours, and sends the map to all peers. A peer that is down is
    /// reconnected only if a port clears, because its sockets may wait for that. Every peer
    /// gets the map when it connects. Port 0 stands for sockets that peers cannot reach: with loopback
    /// addresses, or unbound.
    fn mark_own_port(&mut self, port: u16, marked: bool) {
        let Some((frame, index, word)) = self.own_word(port).filter(|_| port != 0) else { return };
        let bit = port_mask(port);
        self.frames.set_payload_word(frame, index, if marked { word | bit } else { word & !bit });
        self.counters.cong_update_queued += 1;
        self.maps_changed = true;
        for id in self.connections.ids() {
            let connection = self.connections.at_mut(id);
            let is_up = connection.state == State::Up;
            connection.map.change(is_up, !marked && !connection.reconnect.is_backoff_exhausted());
            connection.tx.fast_until = 0;
            if is_up || connection.wants_up() {
                self.connections.make_due(id);
            }
        }
        if !marked {
            self.ports_cleared(bit);
        }
    }

    /// Marks a socket's port if the socket is over its limits.
    #[inline(never)]
    pub(crate) fn crowded(&mut self, slot: usize) {
        self.pool_short |= self.receiving.beyond() > self.limits.congested_common;
        let (most, short) = (self.limits.congested_frames, self.pool_short);
        let Some(socket) = self.sockets.get_mut(slot) else { return };
        // A socket that is read regularly does not exhaust the frames.
        let short = short && socket.unread.count() > most / 8;
        if (short || socket.unread.exceeds(most)) && !socket.congested {
            socket.congested = true;
            let port = socket.peers_port;
            self.mark_own_port(port, true);
        }
    }

    /// Clears a socket's port if the socket is under its limits again, or those of all sockets if
    /// the pool is no longer short.
    pub(crate) fn relieve(&mut self, slot: usize) {
        let mut slots = slot..slot + 1;
        if self.pool_short && self.receiving.beyond() <= self.limits.congested_common / 2 {
            (self.pool_short, slots) = (false, 0..self.sockets.len());
        }
        let (most, short) = (self.limits.congested_frames, self.pool_short);
        for slot in slots {
            let Some(socket) = self.sockets.get_mut(slot) else { return };
            // While the pool is short, only sockets without unread messages are cleared.
            if socket.congested && socket.unread.is_low(most) && (!short || socket.unread.count() == 0) {
                socket.congested = false;
                let port = socket.peers_port;
                self.mark_own_port(port, false);
            }
        }
    }

    /// Processes a fragment of a peer's map, in `frame`.
    pub(crate) fn map_arrived(&mut self, id: ConnectionId, frame: FrameId) {
        let Some(map) = self.maps.get_mut(id.index()) else { return };
        let Connection { map: state, tx, .. } = self.connections.at_mut(id);
        let second = state.fragment_arrived();
        let first = if second { FRAGMENT_WORDS } else { 0 };
        let arrived = (0..FRAGMENT_WORDS).map(|index| self.frames.payload_word(frame, index));
        let cleared = map.replace(first, arrived);
        state.set_marked(map.has_marks());
        // From here on each message must check the map.
        tx.fast_until = 0;
        if second {
            self.counters.cong_update_received += 1;
            self.map_generation += 1;
        }
        self.ports_cleared(cleared);
    }

    /// Reports cleared ports to the sockets that wait for them.
    fn ports_cleared(&mut self, mask: u64) {
        for socket in self.sockets.iter_mut().filter(|socket| socket.monitor) {
            socket.cleared |= socket.refused & mask;
            socket.refused &= !mask;
        }
    }

    /// Clears a peer's map and all routes to its entry, because the entry is reused for another
    /// peer.
    pub(crate) fn forget_map(&mut self, id: ConnectionId) {
        if let Some(map) = self.maps.get_mut(id.index()) {
            *map = Map::EMPTY;
        }
        for socket in self.sockets.iter_mut() {
            if socket.route == Some(id) {
                socket.route = None;
            }
            if matches!(socket.wants, Wants::Frames(of, _) if of == id) {
                socket.wants = Wants::Nothing;
            }
        }
    }
}
