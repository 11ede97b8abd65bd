//! Due work of a connection, and its transitions up and down.

use dat_nostd::{Instant, Wake};

use crate::connection::{Connection, Cookie, CookieKind, PROBE, State};
use crate::ids::ConnectionId;
use crate::log::log;
use crate::protocol::Protocol;
use crate::reason::DownReason;

/// Maximum sequence number that a peer may expect. Beyond it the numbers would run out.
const MOST_EXPECTED: u64 = 1 << 63;

/// Due work of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Request a connection from the peer.
    Connect,
    /// Post receives and sends.
    Serve,
    /// Break it.
    Break(DownReason),
    Nothing,
}

impl Protocol<'_> {
    /// Returns the work that is due now.
    pub(crate) fn due(&mut self, id: ConnectionId, now: Instant) -> Due {
        let connection = self.connections.at_mut(id);
        match connection.state {
            State::Down if connection.wants_up() => {
                let retry_at = connection.reconnect.retry_at;
                if now >= retry_at {
                    return Due::Connect;
                }
                self.connections.arm(id, retry_at);
                Due::Nothing
            }
            State::Free | State::Failed | State::Down => Due::Nothing,
            State::Connecting | State::Accepting => Due::Serve,
            State::Up => self.plan(id, now),
        }
    }

    /// Arms the next deadline of the connection, and handles deadlines that have passed.
    fn plan(&mut self, id: ConnectionId, now: Instant) -> Due {
        let connection = self.connections.at_mut(id);
        let mut deadline = Instant::MAX;
        if connection.tx.cancelled_until > Instant::ORIGIN {
            deadline = connection.tx.cancelled_until;
            if now >= deadline {
                return Due::Break(DownReason::Local);
            }
        }
        if connection.rx.partial.is_some() {
            if now >= connection.rx.partial_until {
                if connection.rx.ring.waiting() > 0 {
                    self.bar_from_reserve(id, now);
                    return Due::Break(DownReason::Stalled);
                }
                connection.rx.excuse(now);
            }
            deadline = deadline.min(connection.rx.partial_until);
        }
        let busy_at = connection.reconnect.busy_at;
        let probe_at = match connection.reconnect.probe_at {
            _ if !connection.waits_for_peer() => None,
            None => Some(now + PROBE),
            // A frame has arrived meanwhile.
            Some(at) if now >= at && now < busy_at + PROBE => Some(busy_at + PROBE),
            Some(at) if now >= at => {
                self.probe(id);
                Some(now + PROBE)
            }
            later => later,
        };
        let Connection { rx, reconnect, .. } = self.connections.at_mut(id);
        reconnect.probe_at = probe_at;
        deadline = deadline.min(probe_at.unwrap_or(Instant::MAX));
        deadline = deadline.min(rx.delay_acknowledgement(busy_at, now));
        if deadline < Instant::MAX {
            self.connections.arm(id, deadline);
        }
        Due::Serve
    }

    /// Returns the time of the next poll, if nothing happens before.
    pub(crate) fn poll_at(&self) -> Wake {
        self.connections.deadline().into_iter().chain(self.absent.retry_at()).min().into()
    }

    /// Applies the sequence number that the peer expects, before the connection comes up. If an
    /// earlier boot got further than the start of this one, numbering continues from there.
    /// Otherwise the peer would take messages that are retransmitted after a break for duplicates.
    pub(crate) fn peer_expects(&mut self, id: ConnectionId, expects: u64) {
        let behind = expects.saturating_sub(self.first_unacknowledged(id));
        let connection = self.connections.at_mut(id);
        let mut next = connection.peer.queue.head();
        // After the first connection the peer expects our own numbering.
        if connection.peer.was_up || behind == 0 || expects >= MOST_EXPECTED {
            return;
        }
        connection.peer.next_tx = connection.peer.next_tx.saturating_add(behind);
        while let Some(message) = next {
            let descriptor = self.frames.message_mut(message);
            descriptor.sequence = descriptor.sequence.saturating_add(behind);
            next = descriptor.next_message;
        }
        self.counters.send_numbers_raised += 1;
        log!(
            warn,
            "rds: a peer expects numbers of an earlier boot, {=u64} beyond this boot's: the clock is set back, or missing. \
             Numbering continues from {=u64}",
            behind,
            expects
        );
    }

    /// Returns the sequence number of the oldest unacknowledged message, or of the next one.
    fn first_unacknowledged(&self, id: ConnectionId) -> u64 {
        let peer = &self.connections.at(id).peer;
        peer.queue.head().map_or(peer.next_tx, |head| self.frames.message(head).sequence)
    }

    /// Records that the endpoint is connected.
    pub(crate) fn came_up(&mut self, id: ConnectionId, gid: Option<[u8; 16]>, now: Instant) {
        let first = self.first_unacknowledged(id);
        let connection = self.connections.at_mut(id);
        (connection.state, connection.peer.was_up) = (State::Up, true);
        connection.reconnect.came_up(now, first);
        connection.reconnect.busy_at = now;
        connection.map.came_up();
        let (kind, epoch) = (CookieKind::Message, connection.objects.epoch);
        connection.tx.begin(Cookie { kind, connection: id, epoch, number: 0 }.encode());
        connection.peer.gid = gid.unwrap_or(connection.peer.gid);
        self.bar_as_its_peer(id);
        self.connections.make_due(id);
    }

    /// Stores and counts the reason why a connection or an attempt ended.
    pub(crate) fn note_down(&mut self, id: ConnectionId, reason: DownReason) {
        if let Some(count) = self.counters.downs.get_mut(reason as usize) {
            *count += 1;
        }
        let reconnect = &mut self.connections.at_mut(id).reconnect;
        reconnect.downs += 1;
        reconnect.last_down.set(reason);
    }

    /// Requeues everything that the peer may lack after the endpoint was freed. A working HCA no
    /// longer accesses the frames. The receives of a failed HCA are withheld.
    pub(crate) fn endpoint_gone(&mut self, id: ConnectionId, failed: bool) {
        let connection = self.connections.at_mut(id);
        // A message that requeueing drops may have carried the last acknowledgement.
        connection.peer.is_unsettled = !connection.is_settled();
        connection.reconnect.acknowledged(connection.tx.highest_ack);
        self.requeue(id);
        self.take_all_back(id, failed);
        self.connections.at_mut(id).reset();
    }

    /// Records the loss of a connection and schedules its backoff.
    pub(crate) fn went_down(&mut self, id: ConnectionId, reason: DownReason, now: Instant) {
        self.counters.conn_reset += 1;
        self.connections_changed = true;
        self.note_down(id, reason);
        let random = self.random();
        let Connection { peer, reconnect, .. } = self.connections.at_mut(id);
        let (was_up, was_for_nothing) = reconnect.wait(now, random);
        peer.reachable_at = if was_up { now } else { peer.reachable_at };
        reconnect.busy_at = now;
        let in_vain = reconnect.is_backoff_exhausted();
        if was_for_nothing || in_vain {
            self.drop_pongs(id);
        }
        if in_vain {
            self.stop_reconnecting(id);
        }
        self.connections.make_due(id);
    }
}
