//! The reserve of receives completes one unfinished message at a time, so that connections with
//! parts of long messages do not block each other.
//!
//! The reserve goes to the first waiting connection whose message fits in what is left. A holder
//! that stalls while another connection waits is disconnected, and its port is barred for `BARRED`,
//! on all connections and after a reconnection. A holder that disconnects first is barred, too. A
//! message to a congested socket never gets the reserve, because its unread frames would be taken
//! from all other connections.

use dat_nostd::{Duration, Instant};

use crate::connection::{Connection, Peer, Rx};
use crate::ids::ConnectionId;
use crate::protocol::Protocol;
use crate::reason::DownReason;
use crate::wire::fragments;

/// Time limit of the holder's message once another connection waits, plus a time per missing
/// fragment: together an eighth of a second for the longest message.
const PATIENCE: Duration = Duration::from_millis(100);
const PER_FRAGMENT: Duration = Duration::from_micros(100);
/// A holder that had the reserve for this time has had its turn, however its connection ends.
const TURN: Duration = Duration::from_millis(10);
/// Time for which a peer that lost the reserve cannot get it again.
const BARRED: Duration = Duration::from_secs(8);

/// Turns of connections at the reserve.
#[derive(Default)]
pub(super) struct Turns {
    /// Connection whose unfinished message may use the reserve, since when, and the next one.
    holder: Option<ConnectionId>,
    since: Instant,
    next: Option<ConnectionId>,
}

#[cfg(test)]
impl Protocol<'_> {
    /// Returns the connection that has the reserve, and the next one.
    pub(super) const fn turns(&self) -> (Option<ConnectionId>, Option<ConnectionId>) {
        (self.turns.holder, self.turns.next)
    }
}

impl Protocol<'_> {
    /// Returns the number of receives that a connection's unfinished message lacks, if it has the
    /// reserve or gets it now.
    pub(super) fn share_of_reserve(&mut self, id: ConnectionId) -> Option<u32> {
        let wanted = self.wanted_of_reserve(id).filter(|&wanted| wanted > 0)?;
        match self.turns.holder {
            Some(holder) if holder == id => return Some(wanted),
            Some(holder) if self.wanted_of_reserve(holder).is_some() => {
                self.ask_for_reserve(id, holder);
                return None;
            }
            _ => {}
        }
        let next = self.turns.next.filter(|&next| next != id);
        if next.is_some_and(|next| self.waits(next) && self.could_complete(next)) || !self.could_complete(id)
        {
            return None;
        }
        self.turns = Turns { holder: Some(id), since: self.now, next: None };
        Some(wanted)
    }

    /// Returns the number of frames that a connection's unfinished message lacks, if it may use the
    /// reserve.
    fn wanted_of_reserve(&self, id: ConnectionId) -> Option<u32> {
        let Connection { peer, rx, .. } = self.connections.at(id);
        let port = self.frames.message(rx.partial?).dport;
        let may = self.now >= peer.barred_until && !self.sockets.is_congested(port);
        Some(self.to_come(rx)?.saturating_sub(u32::from(rx.ring.waiting()))).filter(|_| may)
    }

    /// Returns whether a waiting connection still needs the reserve: it may have got common frames
    /// since.
    fn waits(&self, id: ConnectionId) -> bool {
        self.wants_receives(id) && self.wanted_of_reserve(id).is_some_and(|wanted| wanted > 0)
    }

    /// Returns whether the rest of the reserve completes the message. Common frames that other
    /// connections may still take do not count.
    fn could_complete(&self, id: ConnectionId) -> bool {
        let left = self.receiving.left_of(self.limits.reserve);
        self.wanted_of_reserve(id).is_some_and(|wanted| wanted <= left)
    }

    /// Returns the number of missing fragments.
    fn to_come(&self, rx: &Rx) -> Option<u32> {
        let begun = self.frames.message(rx.partial?);
        // An oversized message needs no more than the maximum: its fragments are freed on arrival.
        let len = (begun.len as usize).min(self.limits.longest_received);
        Some(fragments(len).saturating_sub(usize::from(begun.frames)) as u32)
    }

    /// Queues a connection for the reserve, and shortens the holder's deadline.
    fn ask_for_reserve(&mut self, id: ConnectionId, holder: ConnectionId) {
        if self.turns.next.is_none_or(|next| !self.waits(next)) {
            self.turns.next = Some(id);
        }
        let rx = &self.connections.at(holder).rx;
        let until = self.now + PATIENCE + PER_FRAGMENT * self.to_come(rx).unwrap_or(0);
        if until < rx.partial_until {
            self.connections.at_mut(holder).rx.partial_until = until;
            self.connections.arm(holder, until);
        }
    }

    /// Frees the reserve after a connection's message is complete.
    pub(super) fn give_reserve_up(&mut self, id: ConnectionId) {
        if self.turns.holder == Some(id) {
            self.turns.holder = None;
        }
    }

    /// Bars a holder whose message was not completed in time, on all connections of its port.
    pub(super) fn bar_from_reserve(&mut self, id: ConnectionId, now: Instant) {
        if self.turns.holder == Some(id) && self.turns.next.is_some() {
            let &Peer { foreign, gid, .. } = &self.connections.at(id).peer;
            for id in self.connections.ids() {
                let peer = &mut self.connections.at_mut(id).peer;
                if peer.is_of(foreign, gid) {
                    peer.barred_until = now + BARRED;
                }
            }
        }
        self.give_reserve_up(id);
    }

    /// Bars a new connection if its peer lost the reserve on another one.
    pub(super) fn bar_as_its_peer(&mut self, id: ConnectionId) {
        let &Peer { foreign, gid, .. } = &self.connections.at(id).peer;
        let peers = self.connections.iter().map(|(_, connection)| &connection.peer);
        let theirs = peers.filter(|peer| peer.is_of(foreign, gid)).map(|peer| peer.barred_until);
        if let Some(latest) = theirs.max() {
            self.connections.at_mut(id).peer.barred_until = latest;
        }
    }

    /// Handles the end of a connection. Unless this side caused it, a holder is barred as for a
    /// timeout.
    #[cold]
    pub(crate) fn turn_ends(&mut self, id: ConnectionId, reason: DownReason) {
        use DownReason::{Idle, Local, NoResources, Recovered};
        let for_our_sake = matches!(reason, Local | Recovered | NoResources | Idle);
        let had_its_turn =
            self.connections.at(id).rx.partial.is_some() && self.now >= self.turns.since + TURN;
        if had_its_turn && !for_our_sake {
            self.bar_from_reserve(id, self.now);
        }
    }
}
