//! What is due on a connection, and how it comes up and goes down.

use dat_nostd::{Instant, Wake};

use crate::connection::{Connection, Cookie, CookieKind, PROBE, State};
use crate::ids::ConnectionId;
use crate::log::log;
use crate::protocol::Protocol;
use crate::reason::DownReason;

/// Numbers that a peer may expect: beyond, a node would come to the end of all numbers.
const MOST_EXPECTED: u64 = 1 << 63;

/// What is due on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Ask the peer for a connection.
    Connect,
    /// Post receives and what is to be sent.
    Serve,
    /// End it.
    Break(DownReason),
    Nothing,
}

impl Protocol<'_> {
    /// What is due now.
    pub(crate) fn due(&mut self, id: ConnectionId, now: Instant) -> Due {
        let connection = self.connections.at_mut(id);
        match connection.state {
            State::Free | State::Failed => Due::Nothing,
            State::Down if !connection.wants_up() => Due::Nothing,
            State::Down if now >= connection.reconnect.retry_at => Due::Connect,
            State::Down => {
                let retry_at = connection.reconnect.retry_at;
                self.connections.arm(id, retry_at);
                Due::Nothing
            }
            State::Connecting | State::Accepting => Due::Serve,
            State::Up => self.due_up(id, now),
        }
    }

    fn due_up(&mut self, id: ConnectionId, now: Instant) -> Due {
        let connection = self.connections.at_mut(id);
        let is_planned = connection.rx.is_planned(connection.links.is_armed(), now);
        if is_planned && !connection.waits_for_peer() {
            connection.reconnect.probe_at = None;
            return Due::Serve;
        }
        self.plan(id, now)
    }

    /// Arms the next deadline of the connection, and acts on deadlines that have passed.
    #[inline(never)]
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
            // A frame arrived meanwhile.
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

    /// When to look again, if nothing happens before.
    pub(crate) fn poll_at(&self) -> Wake {
        self.connections.deadline().into_iter().chain(self.absent.retry_at()).min().into()
    }

    /// What the peer says to expect of this node's next message, when the connection is about to come up. If an earlier boot got further
    /// than this one begins, it goes on from there: else the peer would take what is sent again after a break for what it had then.
    pub(crate) fn peer_expects(&mut self, id: ConnectionId, expects: u64) {
        let behind = expects.saturating_sub(self.first_unacknowledged(id));
        let connection = self.connections.at_mut(id);
        let mut next = connection.tx.queue.head();
        // Once it was up, the peer expects what it was sent.
        if connection.reconnect.was_up || behind == 0 || expects >= MOST_EXPECTED {
            return;
        }
        connection.tx.next_sequence = connection.tx.next_sequence.saturating_add(behind);
        while let Some(message) = next {
            let descriptor = self.frames.message_mut(message);
            descriptor.sequence = descriptor.sequence.saturating_add(behind);
            next = descriptor.next_message;
        }
        // It may say so in every request until the connection is up.
        if core::mem::replace(&mut self.connections.at_mut(id).reconnect.numbers_raised, true) {
            return;
        }
        self.counters.send_numbers_raised += 1;
        log!(
            warn,
            "rds: a peer says that it knows numbers of an earlier boot that are larger by {=u64} than this boot's: then the clock was \
             set back, or there is none; messages to it are numbered from {=u64}",
            behind,
            expects
        );
    }

    /// Number of the oldest message that the peer has not acknowledged, or of the next one.
    fn first_unacknowledged(&self, id: ConnectionId) -> u64 {
        let tx = &self.connections.at(id).tx;
        tx.queue.head().map_or(tx.next_sequence, |head| self.frames.message(head).sequence)
    }

    /// The endpoint is connected.
    pub(crate) fn came_up(&mut self, id: ConnectionId, gid: Option<[u8; 16]>, now: Instant) {
        let first = self.first_unacknowledged(id);
        let connection = self.connections.at_mut(id);
        connection.state = State::Up;
        connection.reconnect.came_up(now, first);
        connection.reconnect.busy_at = now;
        connection.map.came_up();
        let (kind, epoch) = (CookieKind::Message, connection.objects.epoch);
        connection.tx.begin(Cookie { kind, connection: id, epoch, number: 0 }.encode());
        connection.foreign_gid = gid.unwrap_or(connection.foreign_gid);
        self.bar_as_its_peer(id);
        self.connections.make_due(id);
    }

    /// Remembers and counts why a connection or an attempt ended.
    pub(crate) fn note_down(&mut self, id: ConnectionId, reason: DownReason) {
        if let Some(count) = self.counters.downs.get_mut(reason as usize) {
            *count += 1;
        }
        let reconnect = &mut self.connections.at_mut(id).reconnect;
        reconnect.downs += 1;
        reconnect.last_down.set(reason);
    }

    /// The endpoint is gone: what the peer may not have waits for the next one. An HCA that works touches nothing of it any more; of one that
    /// has failed, the receives are withheld.
    pub(crate) fn endpoint_gone(&mut self, id: ConnectionId, failed: bool) {
        let Connection { tx, reconnect, .. } = self.connections.at_mut(id);
        reconnect.acknowledged(tx.highest_ack);
        self.requeue(id);
        self.take_all_back(id, failed);
        self.connections.at_mut(id).reset();
    }

    /// The connection is lost: the next one is made after a random wait.
    pub(crate) fn went_down(&mut self, id: ConnectionId, reason: DownReason, now: Instant) {
        self.counters.conn_reset += 1;
        self.stirred = true;
        self.note_down(id, reason);
        let random = self.random();
        let reconnect = &mut self.connections.at_mut(id).reconnect;
        let was_for_nothing = reconnect.wait(now, random);
        reconnect.busy_at = now;
        let in_vain = reconnect.is_in_vain();
        if was_for_nothing || in_vain {
            self.drop_pongs(id);
        }
        if in_vain {
            self.forgo(id);
        }
        self.connections.make_due(id);
    }
}
