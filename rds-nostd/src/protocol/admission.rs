//! Whom a connection is made with, and in which entry.
//!
//! When both sides ask at once, the attempt of the lower address stands. The higher one gives its own up for it; the lower one
//! keeps the other's request until it knows what becomes of its own: a Linux peer refuses ours while it asks itself, and its
//! request is then accepted at once.

use dat_nostd::{Duration, Instant};

use crate::connection::{Broken, Connection, Objects, Remembered, STANDS, State};
use crate::ids::ConnectionId;
use crate::protocol::Protocol;
use crate::reason::DownReason;

/// How long a connection that nothing moves on keeps its entry when another peer wants it.
const IDLE: Duration = Duration::from_secs(10);

/// A peer's request, as far as it is believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Who asks, IPv4 mapped; for what type of service; and the port GID that the request came from.
    pub(crate) remote: u128,
    pub(crate) tos: u8,
    pub(crate) gid: [u8; 16],
}

/// What to do with a peer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Take it; what the connection has of an endpoint goes before, for this reason.
    Accept(ConnectionId, Option<DownReason>),
    /// Wait for what becomes of this side's own.
    Hold(ConnectionId),
    Refuse,
}

impl Protocol<'_> {
    /// The connection to a peer with this type of service; a new one if there is room, perhaps in the entry of one that has nothing to
    /// move.
    pub(crate) fn connection_for(&mut self, foreign: u128, tos: u8) -> Option<ConnectionId> {
        if let Some(id) = self.connections.find(foreign, tos) {
            return Some(id);
        }
        let id = match self.connections.free() {
            Some(id) => id,
            None => {
                let id = self.longest_idle().or_else(|| self.unreachable())?;
                self.move_out(id);
                self.remembered.keep(Remembered::of(self.connections.at(id), self.now));
                self.connections.remove(id);
                id
            }
        };
        self.forget_map(id);
        // The zone goes with the entry, unless another connection of the former peer has it, too.
        let mut objects = self.connections.at(id).objects;
        let zone = core::mem::take(&mut self.connections.at_mut(id).objects.zone);
        if self.zone_is_shared(zone) {
            objects = Objects { epoch: objects.epoch, ..Objects::NONE };
        }
        let mut connection = Connection { state: State::Down, foreign, tos, objects, ..Connection::EMPTY };
        connection.tx.next_sequence = self.first_sequence();
        connection.rx.reset();
        if let Some(known) = self.remembered.take(foreign, tos) {
            (connection.rx.next_sequence, connection.rx.is_unsettled) =
                (known.next_sequence, known.is_unsettled);
        }
        (connection.reconnect.busy_at, connection.reconnect.reachable_at) = (self.now, self.now);
        self.connections.insert(id, connection);
        self.move_in(id);
        Some(id)
    }

    /// Of the connections that are down and have nothing to move, the one that has been so for longest; those of peers that lost the reserve
    /// last, as it is known by them.
    fn longest_idle(&self) -> Option<ConnectionId> {
        let idle = |c: &Connection| c.state == State::Down && c.is_idle() && !self.holds_memory(c);
        let idle = self.connections.iter().filter(|(_, connection)| idle(connection));
        let value = |c: &Connection| (c.rx.barred_until > self.now, c.reconnect.busy_at);
        idle.min_by_key(|(_, connection)| value(connection)).map(|(id, _)| id)
    }

    /// A connection that is up and could go for another peer's sake: nothing has moved on it for a while.
    pub(crate) fn dispensable(&self, now: Instant) -> Option<ConnectionId> {
        // Of posts that were not asked to be reported nobody knows that they are done; after this time they are.
        let idle = |c: &Connection| {
            c.state == State::Up
                && c.is_idle()
                && !c.rx.owes_acknowledgement()
                && now >= c.reconnect.busy_at + IDLE
                && !self.holds_memory(c)
        };
        let idle = self.connections.iter().filter(|(_, connection)| idle(connection));
        idle.min_by_key(|(_, connection)| connection.reconnect.busy_at).map(|(id, _)| id)
    }

    /// Peers that may not have the acknowledgement of a message that arrived, IPv4 mapped.
    pub(crate) fn unsettled_peers(&self) -> impl Iterator<Item = u128> + '_ {
        let connected = self.connections.iter().filter(|(_, connection)| !connection.is_settled());
        connected.map(|(_, connection)| connection.foreign).chain(self.remembered.unsettled())
    }

    /// Whether memory is offered to the peer, or registered for it: that stays, whoever else comes.
    pub(crate) fn holds_memory(&self, connection: &Connection) -> bool {
        let zone = connection.objects.zone;
        self.regions.any_in(zone) || self.operations.memories().any_in(zone)
    }

    /// Whether there is no entry for a peer that is new.
    pub(crate) fn is_full_for(&self, foreign: u128, tos: u8) -> bool {
        self.connections.find(foreign, tos).is_none()
            && !self.has_idle_entry()
            && self.unreachable().is_none()
    }

    /// Returns whether an entry is free, or of no use to its peer.
    pub(crate) fn has_idle_entry(&self) -> bool {
        self.connections.free().is_some() || self.longest_idle().is_some()
    }

    /// Whether a connection has this zone.
    pub(crate) fn zone_is_shared(&self, zone: u64) -> bool {
        zone != 0 && self.connections.iter().any(|(_, connection)| connection.objects.zone == zone)
    }

    /// Whether a request asks for a new connection though its port has as many as one peer may have, whatever addresses they give.
    pub(crate) fn has_its_share(&self, request: &Request, now: Instant) -> bool {
        let Request { remote, tos, gid } = *request;
        if self.connections.find(remote, tos).is_some() {
            return false;
        }
        let is_theirs = |c: &Connection| c.foreign == remote || c.foreign_gid == gid;
        // Entries that anybody may have do not count, but for a while those that a connection was made in a short time ago: else who hangs
        // up could ask under one name after the other.
        let counts = |c: &Connection| c.state != State::Down || !c.is_idle() || c.reconnect.is_new(now);
        let theirs = self.connections.iter().filter(|(_, c)| is_theirs(c) && counts(c)).count();
        theirs >= usize::from(self.config.connections_per_peer.max(1))
    }

    /// What to do with a request.
    pub(crate) fn admit(&mut self, request: &Request, now: Instant) -> Admission {
        let Request { remote, tos, gid } = *request;
        if self.has_its_share(request, now) {
            return Admission::Refuse;
        }
        let Some(id) = self.connection_for(remote, tos) else { return Admission::Refuse };
        let connection = self.connections.at_mut(id);
        // The address may have moved to another port; or somebody else gives it. While the port that it was at is there, it is its.
        let moved = connection.foreign_gid != gid && connection.foreign_gid != [0; 16];
        if connection.state == State::Up && moved {
            // An acknowledgement finds out whether it is.
            connection.rx.ack_wanted = true;
            self.connections.make_due(id);
            return Admission::Refuse;
        }
        let reconnect = &connection.reconnect;
        let too_often = match connection.state {
            State::Free | State::Connecting | State::Failed => false,
            State::Down | State::Accepting => reconnect.accepted_within(now, reconnect.stands()),
            State::Up => reconnect.accepted_within(now, reconnect.stands()) || now < reconnect.up_at + STANDS,
        };
        if too_often {
            self.counters.connect_too_often += 1;
            return Admission::Refuse;
        }
        match connection.state {
            State::Free => Admission::Refuse,
            State::Down => Admission::Accept(id, None),
            State::Connecting => {
                self.counters.connect_raced += 1;
                if self.local < remote {
                    Admission::Hold(id)
                } else {
                    Admission::Accept(id, Some(DownReason::Raced))
                }
            }
            // The peer has begun anew: what it knew of the old connection is gone.
            State::Accepting | State::Up | State::Failed => {
                let failed = reconnect.broken_by.map(Broken::reason);
                Admission::Accept(id, Some(failed.unwrap_or(DownReason::Replaced)))
            }
        }
    }

    /// A request is being accepted.
    pub(crate) fn accepting(&mut self, id: ConnectionId, gid: [u8; 16], now: Instant) {
        self.stirred = true;
        let connection = self.connections.at_mut(id);
        connection.foreign_gid = gid;
        connection.reconnect.accepted(now);
    }
}
