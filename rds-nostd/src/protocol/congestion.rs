//! Congestion maps: which ports of a node take no more messages. Linux `net/rds/cong.c`.
//!
//! A port whose socket has received more than its receive buffer, or more than its part of the frames, is marked in this
//! node's map; every peer gets the map whenever it changes, and sends nothing more to a marked port. A port is cleared when
//! half of that has been read. The limit is soft: what a peer had sent before it knew is still taken.

use crate::connection::{Connection, FRAGMENT_WORDS, Map, State, port_mask};
use crate::frames::Use;
use crate::ids::{ConnectionId, FrameId};
use crate::protocol::Protocol;
use crate::socket::Wants;
use crate::wire::{CONGESTION_MAP_LEN, Flags, Header};

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

    /// Marks or clears a port of ours; all peers are to hear of it. Those that are not connected are asked for only to hear that a port is
    /// clear, which a socket of theirs may wait for; the rest they hear when they come.
    fn mark_own_port(&mut self, port: u16, marked: bool) {
        let Some((frame, index, word)) = self.own_word(port) else { return };
        let bit = port_mask(port);
        self.frames.set_payload_word(frame, index, if marked { word | bit } else { word & !bit });
        self.counters.cong_update_queued += 1;
        self.maps_changed = true;
        for id in self.connections.ids() {
            let connection = self.connections.at_mut(id);
            let is_up = connection.state == State::Up;
            connection.map.change(is_up, !marked && !connection.reconnect.is_in_vain());
            connection.tx.plain_until = 0;
            if is_up || connection.wants_up() {
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
        let Connection { map: state, tx, .. } = self.connections.at_mut(id);
        let second = state.fragment_arrived();
        let first = if second { FRAGMENT_WORDS } else { 0 };
        let arrived = (0..FRAGMENT_WORDS).map(|index| self.frames.payload_word(frame, index));
        let cleared = map.replace(first, arrived);
        state.set_marked(map.has_marks());
        // From here on messages look at the map.
        tx.plain_until = 0;
        if second {
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
