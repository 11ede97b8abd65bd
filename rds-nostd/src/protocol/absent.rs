//! Eviction of unreachable peers, whose messages wait without an entry.

use core::net::Ipv6Addr;

use dat_nostd::{Duration, Instant};

use crate::connection::{AbsentPeers, Connection, Peer, State};
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
        gone.min_by_key(|(_, connection)| connection.peer.reachable_at).map(|(id, _)| id)
    }

    fn is_gone(&self, connection: &Connection) -> bool {
        let Connection { peer, tx, rx, reconnect, .. } = connection;
        connection.state == State::Down
            && reconnect.is_backoff_exhausted()
            && self.now >= peer.reachable_at + UNREACHABLE
            && reconnect.held_request == 0
            && rx.held() == 0
            && tx.operations == 0
            && self.sending.can_leave(peer.frames, 0, self.absent.frames())
            && !self.holds_memory(connection)
            && !self.frames.messages(peer.queue.head()).any(|(_, descriptor)| descriptor.is(Marks::LENT))
    }

    /// Moves a peer out of its entry, which the caller reuses. Its messages wait.
    pub(crate) fn move_out(&mut self, id: ConnectionId) {
        let is_unsettled = !self.connections.at(id).is_settled();
        let peer = Peer { is_unsettled, ..self.connections.remove(id) };
        self.remembered.keep(&peer, self.now);
        if peer.queue.is_empty() {
            return;
        }
        while !self.sending.can_leave(peer.frames, self.absent.frames(), 0) {
            let Some(longest) = self.absent.take_longest() else { break };
            self.drop_absent(longest);
        }
        self.sending.leave(peer.frames);
        if let Some(longest) = self.absent.put(peer, self.now) {
            self.drop_absent(longest);
        }
    }

    /// Returns the peer that gets an entry, with its messages and numbers if it had one before.
    pub(crate) fn move_in(&mut self, foreign: u128, tos: u8) -> Peer {
        let mut peer = self.absent.take(foreign, tos).unwrap_or(Peer {
            foreign,
            tos,
            v4: Ipv6Addr::from_bits(foreign).to_ipv4_mapped(),
            next_tx: self.first_sequence(),
            reachable_at: self.now,
            ..Peer::EMPTY
        });
        self.remembered.recall(&mut peer);
        self.sending.enter(peer.frames);
        peer
    }

    /// Drops the messages of a peer. Their senders get
    /// [`RdsError::Unreachable`](crate::RdsError::Unreachable).
    fn drop_absent(&mut self, mut peer: Peer) {
        while let Some(message) = self.frames.pop_front(&mut peer.queue) {
            let owner = self.frames.message(message).owner();
            if let Ok(socket) = self.sockets.open_mut(owner) {
                socket.gave_up = true;
            }
            self.settle(message);
            let count = self.frames.give_message(message);
            self.sending.give_common(&mut peer.frames, count);
            self.counters.send_drop_unreachable += 1;
        }
    }

    /// Drops messages of a socket to absent peers: to one peer and port, or all.
    pub(crate) fn cancel_absent(&mut self, owner: SocketHandle, to: Option<(u128, u8, u16)>) {
        let mut absent = core::mem::replace(&mut self.absent, AbsentPeers::EMPTY);
        absent.change(|peer| {
            let mut kept = Queue::EMPTY;
            while let Some(message) = self.frames.pop_front(&mut peer.queue) {
                let descriptor = self.frames.message(message);
                let destination = (peer.foreign, peer.tos, descriptor.dport);
                if !descriptor.is_of(owner) || to.is_some_and(|to| to != destination) {
                    self.frames.push_back(&mut kept, message);
                    continue;
                }
                self.settle(message);
                let count = self.frames.give_message(message);
                self.sending.give_common(&mut peer.frames, count);
            }
            peer.queue = kept;
        });
        self.absent = absent;
    }
}
