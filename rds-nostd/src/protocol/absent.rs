//! Eviction of unreachable peers, whose messages wait without an entry.

use dat_nostd::{Duration, Instant};

use crate::connection::{Absent, AbsentPeers, Connection, State};
use crate::frames::{Marks, Queue};
use crate::ids::{ConnectionId, SocketHandle};
use crate::protocol::Protocol;

/// Time after which an unreachable peer may be evicted.
const UNREACHABLE: Duration = Duration::from_secs(45);

impl Protocol<'_> {
    /// Makes connections due whose deadlines have passed, and gives an absent peer an idle entry
    /// for an attempt.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.connections.expire(now);
        let due = self.absent.next_due(now);
        if let Some((foreign, tos)) = due.filter(|_| self.has_idle_entry()) {
            self.connection_for(foreign, tos);
        }
    }

    /// Returns the connection of the peer that has been unreachable for longest, if it may be
    /// evicted.
    ///
    /// Not evicted are connections with unread messages or with memory of operations, and those
    /// whose messages would take more than half of the common frames.
    pub(crate) fn unreachable(&self) -> Option<ConnectionId> {
        let gone = self.connections.iter().filter(|(_, connection)| self.is_gone(connection));
        gone.min_by_key(|(_, connection)| connection.reconnect.reachable_at).map(|(id, _)| id)
    }

    fn is_gone(&self, connection: &Connection) -> bool {
        let Connection { tx, rx, reconnect, .. } = connection;
        // Common frames in use without this connection and all absent peers.
        let own = tx.frames.saturating_sub(self.sending.share());
        let others = self.sending.beyond().saturating_sub(self.absent.frames() + own);
        connection.state == State::Down
            && reconnect.is_backoff_exhausted()
            && self.now >= reconnect.reachable_at + UNREACHABLE
            && reconnect.held_request == 0
            && rx.held() == 0
            && tx.operations == 0
            && tx.frames <= self.sending.common() / 2
            && tx.frames <= self.sending.common().saturating_sub(others)
            && !self.holds_memory(connection)
            && !self.frames.messages(tx.queue.head()).any(|(_, descriptor)| descriptor.is(Marks::LENT))
    }

    /// Moves the messages of an unreachable peer out of its entry, which the caller reuses.
    pub(crate) fn move_out(&mut self, id: ConnectionId) {
        let Connection { foreign, tos, tx, reconnect, .. } = self.connections.at_mut(id);
        let peer = Absent {
            foreign: *foreign,
            tos: *tos,
            queue: core::mem::replace(&mut tx.queue, Queue::EMPTY),
            frames: tx.frames,
            next_sequence: tx.next_sequence,
            was_up: reconnect.was_up,
            numbers_raised: reconnect.numbers_raised,
            reachable_at: reconnect.reachable_at,
            moved_at: self.now,
        };
        self.sending.give(&mut tx.frames, peer.frames);
        if peer.queue.is_empty() {
            return;
        }
        let most = self.sending.common() / 2;
        let has_room = |protocol: &Self| {
            let free = protocol.sending.common().saturating_sub(protocol.sending.beyond());
            protocol.absent.frames() + peer.frames <= most && peer.frames <= free
        };
        while !has_room(self) {
            let Some(longest) = self.absent.take_longest() else { break };
            self.drop_absent(longest);
        }
        self.sending.take_common(peer.frames);
        if let Some(longest) = self.absent.put(peer) {
            self.drop_absent(longest);
        }
    }

    /// Moves the messages of a peer back into its new entry.
    pub(crate) fn move_in(&mut self, id: ConnectionId) {
        let Connection { foreign, tos, .. } = self.connections.at(id);
        let Some(peer) = self.absent.take(*foreign, *tos) else { return };
        self.sending.give_common(peer.frames);
        let Connection { tx, reconnect, .. } = self.connections.at_mut(id);
        self.sending.take(&mut tx.frames, peer.frames);
        (tx.queue, tx.next, tx.next_sequence) = (peer.queue, peer.queue.head(), peer.next_sequence);
        (reconnect.was_up, reconnect.numbers_raised) = (peer.was_up, peer.numbers_raised);
        reconnect.returns(peer.reachable_at);
        self.connections.make_due(id);
    }

    /// Drops the messages of a peer. Their senders get
    /// [`RdsError::Unreachable`](crate::RdsError::Unreachable).
    fn drop_absent(&mut self, mut peer: Absent) {
        while let Some(message) = self.frames.pop_front(&mut peer.queue) {
            let owner = self.frames.message(message).owner();
            if let Ok(socket) = self.sockets.open_mut(owner) {
                socket.gave_up = true;
            }
            self.settle(message);
            self.frames.give_message(message);
            self.counters.send_drop_unreachable += 1;
        }
        self.sending.give_common(peer.frames);
    }

    /// Drops messages of a socket to absent peers: to one peer and port, or all.
    pub(crate) fn cancel_absent(&mut self, owner: SocketHandle, to: Option<(u128, u8, u16)>) {
        let is_meant =
            |peer: &Absent| to.is_none_or(|(foreign, tos, _)| peer.foreign == foreign && peer.tos == tos);
        let mut absent = core::mem::replace(&mut self.absent, AbsentPeers::EMPTY);
        absent.change(is_meant, |peer| {
            let mut kept = Queue::EMPTY;
            while let Some(message) = self.frames.pop_front(&mut peer.queue) {
                let descriptor = self.frames.message(message);
                let is_port = to.is_none_or(|(_, _, port)| descriptor.dport == port);
                if !descriptor.is_of(owner) || !is_port {
                    self.frames.push_back(&mut kept, message);
                    continue;
                }
                self.settle(message);
                let count = self.frames.give_message(message);
                peer.frames -= count;
                self.sending.give_common(count);
            }
            peer.queue = kept;
        });
        self.absent = absent;
    }
}
