//! Admission of peers, and the choice of their entries.
//!
//! If both sides connect simultaneously, the attempt of the lower address wins. The higher one
//! aborts its own attempt. The lower one holds the peer's request until its own is decided: a Linux
//! peer refuses our request while its own is in flight, and then the held request is accepted
//! immediately.

use dat_nostd::{Duration, Instant};

use crate::connection::{Connection, Objects, Reconnect, STANDS, State};
use crate::ids::ConnectionId;
use crate::protocol::Protocol;
use crate::reason::DownReason;

/// Idle time after which a connection may be evicted for another peer.
const IDLE: Duration = Duration::from_secs(10);

/// A peer's request, after its verification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Peer address, IPv4 mapped; type of service; and GID of the port that sent the request.
    pub(crate) remote: u128,
    pub(crate) tos: u8,
    pub(crate) gid: [u8; 16],
}

/// Decision on a peer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Accept it. With a reason, first close the connection's endpoint for that reason.
    Accept(ConnectionId, Option<DownReason>),
    /// Hold it until our own request is decided.
    Hold(ConnectionId),
    Refuse,
}

impl Protocol<'_> {
    /// Returns the connection to a peer with this type of service. Creates it if an entry is free,
    /// idle, or that of an unreachable peer.
    pub(crate) fn connection_for(&mut self, foreign: u128, tos: u8) -> Option<ConnectionId> {
        if let Some(id) = self.connections.find(foreign, tos) {
            return Some(id);
        }
        let id = match self.connections.free() {
            Some(id) => id,
            None => {
                let id = self.longest_idle().or_else(|| self.unreachable())?;
                self.move_out(id);
                id
            }
        };
        self.forget_map(id);
        // The zone belongs to the entry, unless another connection of the former peer uses it.
        let mut objects = self.connections.at(id).objects;
        let zone = core::mem::take(&mut self.connections.at_mut(id).objects.zone);
        if self.zone_is_shared(zone) {
            objects = Objects { epoch: objects.epoch, ..Objects::EMPTY };
        }
        let peer = self.move_in(foreign, tos);
        let mut connection = Connection { state: State::Down, peer, objects, ..Connection::EMPTY };
        connection.tx.next = connection.peer.queue.head();
        connection.reconnect = Reconnect::new(self.now, connection.tx.next.is_some());
        self.connections.insert(id, connection);
        self.connections.make_due(id);
        Some(id)
    }

    /// Returns the connection that has been down and idle for longest. Peers that lost the reserve
    /// come last, because their entries store that.
    fn longest_idle(&self) -> Option<ConnectionId> {
        let idle = |c: &Connection| c.state == State::Down && c.is_idle() && !self.holds_memory(c);
        let idle = self.connections.iter().filter(|(_, connection)| idle(connection));
        let value = |c: &Connection| (c.peer.barred_until > self.now, c.reconnect.busy_at);
        idle.min_by_key(|(_, connection)| value(connection)).map(|(id, _)| id)
    }

    /// Returns an established connection that may be evicted for another peer, because it has been
    /// idle.
    pub(crate) fn find_evictable(&self, now: Instant) -> Option<ConnectionId> {
        // Posts without CQE have certainly completed after this time.
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

    /// Returns peers that may lack an acknowledgement, IPv4 mapped.
    pub(crate) fn unsettled_peers(&self) -> impl Iterator<Item = u128> + '_ {
        let connected = self.connections.iter().filter(|(_, connection)| !connection.is_settled());
        connected.map(|(_, connection)| connection.peer.foreign).chain(self.remembered.unsettled())
    }

    /// Returns whether memory is offered to the peer or registered for it, so that the entry must
    /// not be reused.
    pub(crate) fn holds_memory(&self, connection: &Connection) -> bool {
        let zone = connection.objects.zone;
        self.regions.any_in(zone) || self.operations.memories().any_in(zone)
    }

    /// Returns whether there is no entry for a new peer.
    pub(crate) fn is_full_for(&self, foreign: u128, tos: u8) -> bool {
        self.connections.find(foreign, tos).is_none()
            && !self.has_idle_entry()
            && self.unreachable().is_none()
    }

    /// Returns whether an entry is free or idle.
    pub(crate) fn has_idle_entry(&self) -> bool {
        self.connections.free().is_some() || self.longest_idle().is_some()
    }

    /// Returns whether a connection uses this zone.
    pub(crate) fn zone_is_shared(&self, zone: u64) -> bool {
        zone != 0 && self.connections.iter().any(|(_, connection)| connection.objects.zone == zone)
    }

    /// Returns whether a request for a new connection exceeds the share of its port, whatever
    /// addresses the port uses.
    pub(crate) fn has_its_share(&self, request: &Request, now: Instant) -> bool {
        let Request { remote, tos, gid } = *request;
        if self.connections.find(remote, tos).is_some() {
            return false;
        }
        let is_theirs = |c: &Connection| c.peer.foreign == remote || c.peer.gid == gid;
        // Idle entries do not count, except for a while after a connection: otherwise a port could
        // connect and disconnect under one address after another.
        let counts = |c: &Connection| c.state != State::Down || !c.is_idle() || c.reconnect.is_new(now);
        let theirs = self.connections.iter().filter(|(_, c)| is_theirs(c) && counts(c)).count();
        theirs >= usize::from(self.config.connections_per_peer.max(1))
    }

    /// Decides on a request.
    pub(crate) fn admit(&mut self, request: &Request, now: Instant) -> Admission {
        let Request { remote, tos, gid } = *request;
        if self.has_its_share(request, now) {
            return Admission::Refuse;
        }
        let Some(id) = self.connection_for(remote, tos) else { return Admission::Refuse };
        let connection = self.connections.at_mut(id);
        // The address has moved to another port, or the request is forged. The current port retains
        // it while it responds.
        let moved = connection.peer.gid != gid && connection.peer.gid != [0; 16];
        if connection.state == State::Up && moved {
            // The acknowledgement fails if the port is gone.
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
            // The peer has restarted, without state of the old connection.
            State::Accepting | State::Up | State::Failed => {
                let failed = reconnect.broken_by.get();
                Admission::Accept(id, Some(failed.unwrap_or(DownReason::Replaced)))
            }
        }
    }

    /// Records that a request is being accepted.
    pub(crate) fn accepting(&mut self, id: ConnectionId, gid: [u8; 16], now: Instant) {
        self.connections_changed = true;
        let connection = self.connections.at_mut(id);
        connection.peer.gid = gid;
        connection.reconnect.accepted(now);
    }
}
