//! Pings and pongs: sequenced messages without payload to and from port 0, which belong to no
//! socket.

use crate::connection::Connection;
use crate::frames::{Marks, Use};
use crate::ids::ConnectionId;
use crate::protocol::Protocol;
use crate::wire::Flags;

/// Maximum of unacknowledged pongs to a peer. Beyond it pings get no reply.
const MAX_PONGS: u8 = 16;

impl Protocol<'_> {
    /// Replies to a ping from port `dport`. Drops and counts the reply if frames are short, the
    /// port is congested, or the peer does not acknowledge earlier pongs.
    pub(crate) fn pong(&mut self, id: ConnectionId, dport: u16) {
        let congested = self.maps.get(id.index()).is_some_and(|map| map.is_marked(dport));
        if self.connections.at(id).tx.pongs >= MAX_PONGS
            || congested
            || !self.queue_echo(id, (0, dport), Flags::empty())
        {
            self.counters.recv_ping_dropped += 1;
        } else {
            self.counters.send_pong += 1;
        }
    }

    /// Probes an unresponsive peer.
    ///
    /// If the peer has messages to acknowledge, the probe is a ping with ACK_REQUIRED, because
    /// Linux acknowledges the tail of a burst only on request. The pong goes to an unbound port.
    /// Otherwise, and while a ping is unacknowledged, the probe is an acknowledgement, which fails
    /// if the peer is dead.
    pub(crate) fn probe(&mut self, id: ConnectionId) {
        let connection = self.connections.at(id);
        let (tx, is_waiting) = (&connection.tx, connection.has_unacknowledged());
        let pings = tx.next.is_none() && is_waiting && tx.ping <= tx.highest_ack;
        let sequence = connection.peer.next_tx;
        let mut unbound = || (2..=u16::MAX).rev().find(|&port| self.sockets.of_peers(port).is_none());
        let sport = if pings { unbound() } else { None };
        let queued = sport.is_some_and(|sport| self.queue_echo(id, (sport, 0), Flags::ACK_REQUIRED));
        let Connection { tx, rx, .. } = self.connections.at_mut(id);
        rx.ack_wanted |= !queued;
        if queued {
            tx.ping = sequence;
            self.counters.send_ping += 1;
        }
    }

    /// Queues a message without payload between these ports. Returns false, without side effects,
    /// if frames are short.
    fn queue_echo(&mut self, id: ConnectionId, (sport, dport): (u16, u16), flags: Flags) -> bool {
        let Connection { peer, tx, .. } = self.connections.at_mut(id);
        if self.sending.fair_room(peer.frames) == 0 {
            return false;
        }
        let message = self.frames.begin(Use::Send, |frame| {
            (frame.sport, frame.dport, frame.flags, frame.len) = (sport, dport, flags.bits(), 0);
            frame.marks = Marks::PONG | Marks::SETTLED;
        });
        let Some(message) = message else { return false };
        tx.pongs += 1;
        self.append(id, message, 1);
        true
    }
}
