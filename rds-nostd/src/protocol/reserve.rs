//! The reserve of receives: one unfinished message at a time is completed with it, so that connections that each hold a part of a long
//! message do not block each other.
//!
//! It is given to whoever can be completed with what is left of it, first to the one that was the first to ask while another had it;
//! whoever has it and does not go on while another wants it loses it soon, with the connection, and is not given it again for a while:
//! no connection of its port is, whenever it is made. Nor is who hangs up before that. Nobody gets it for a socket that is congested: what
//! lies there unread would be taken from all others.

use dat_nostd::{Duration, Instant};

use crate::connection::Rx;
use crate::ids::ConnectionId;
use crate::protocol::Protocol;
use crate::reason::DownReason;
use crate::wire::fragments;

/// How long a message that has the reserve may take once another wants it, beside so much for each fragment that has not come: together an
/// eighth of a second for the longest.
const PATIENCE: Duration = Duration::from_millis(100);
const PER_FRAGMENT: Duration = Duration::from_micros(100);
/// With a message that has had the reserve for so long it had its turn, however the connection ends.
const TURN: Duration = Duration::from_millis(10);
/// How long the reserve is not for a peer that lost it.
const BARRED: Duration = Duration::from_secs(8);

impl Protocol<'_> {
    /// As many receives as a connection's unfinished message still needs, if it is its turn.
    pub(super) fn share_of_reserve(&mut self, id: ConnectionId) -> Option<u32> {
        let wanted = self.wanted_of_reserve(id).filter(|&wanted| wanted > 0)?;
        match self.reserve_of {
            Some(holder) if holder == id => return Some(wanted),
            Some(holder) if self.wanted_of_reserve(holder).is_some() => {
                self.ask_for_reserve(id, holder);
                return None;
            }
            _ => {}
        }
        let next = self.reserve_next.filter(|&next| next != id);
        if next.is_some_and(|next| self.waits(next) && self.could_complete(next)) || !self.could_complete(id)
        {
            return None;
        }
        (self.reserve_of, self.reserve_next) = (Some(id), None);
        self.reserve_since = self.now;
        Some(wanted)
    }

    /// Frames that a connection's unfinished message lacks, if it may be completed with the reserve.
    fn wanted_of_reserve(&self, id: ConnectionId) -> Option<u32> {
        let rx = &self.connections.at(id).rx;
        let port = self.frames.message(rx.partial?).dport;
        let may = self.now >= rx.barred_until && !self.sockets.is_congested(port);
        self.missing(rx).filter(|_| may)
    }

    /// Whether a connection that asked would take it still: it may have got ordinary receives since.
    fn waits(&self, id: ConnectionId) -> bool {
        self.wants_receives(id) && self.wanted_of_reserve(id).is_some_and(|wanted| wanted > 0)
    }

    /// Whether so much of the reserve is left. What others may still take of the common part does not count.
    fn could_complete(&self, id: ConnectionId) -> bool {
        let taken = self.receiving.beyond().saturating_sub(self.receiving.common());
        let left = self.limits.reserve.saturating_sub(taken);
        self.wanted_of_reserve(id).is_some_and(|wanted| wanted <= left)
    }

    /// Fragments of the unfinished message that there are no receives for.
    fn missing(&self, rx: &Rx) -> Option<u32> {
        Some(self.to_come(rx)?.saturating_sub(u32::from(rx.ring.waiting())))
    }

    /// Fragments of it that have not come.
    fn to_come(&self, rx: &Rx) -> Option<u32> {
        let begun = self.frames.message(rx.partial?);
        // A message that is too long needs no more than the longest: its fragments are freed on arrival.
        let len = (begun.len as usize).min(self.limits.longest_received);
        Some(fragments(len).saturating_sub(usize::from(begun.frames)) as u32)
    }

    /// A connection waits for what another one has, which is to make haste.
    fn ask_for_reserve(&mut self, id: ConnectionId, holder: ConnectionId) {
        if self.reserve_next.is_none_or(|next| !self.waits(next)) {
            self.reserve_next = Some(id);
        }
        let rx = &self.connections.at(holder).rx;
        let until = self.now + PATIENCE + PER_FRAGMENT * self.to_come(rx).unwrap_or(0);
        if until < rx.partial_until {
            self.connections.at_mut(holder).rx.partial_until = until;
            self.connections.arm(holder, until);
        }
    }

    /// A connection's message is complete: it is another one's turn.
    pub(super) fn give_reserve_up(&mut self, id: ConnectionId) {
        if self.reserve_of == Some(id) {
            self.reserve_of = None;
        }
    }

    /// A connection's message was not completed in time.
    pub(super) fn bar_from_reserve(&mut self, id: ConnectionId, now: Instant) {
        if self.reserve_of == Some(id) && self.reserve_next.is_some() {
            let lost = self.connections.at(id);
            let (foreign, gid) = (lost.foreign, lost.foreign_gid);
            for id in self.connections.ids() {
                let connection = self.connections.at_mut(id);
                if connection.is_of(foreign, gid) {
                    connection.rx.barred_until = now + BARRED;
                }
            }
        }
        self.give_reserve_up(id);
    }

    /// A connection that is up is one of a peer that lost the reserve on another one: it does not get it either.
    pub(super) fn bar_as_its_peer(&mut self, id: ConnectionId) {
        let connection = self.connections.at(id);
        let (foreign, gid) = (connection.foreign, connection.foreign_gid);
        let theirs = self.connections.iter().filter(|(_, connection)| connection.is_of(foreign, gid));
        if let Some(latest) = theirs.map(|(_, connection)| connection.rx.barred_until).max() {
            self.connections.at_mut(id).rx.barred_until = latest;
        }
    }

    /// A connection ends. Unless that is for this side's sake, it is as if its message was not completed in time.
    #[cold]
    pub(crate) fn turn_ends(&mut self, id: ConnectionId, reason: DownReason) {
        use DownReason::{Idle, Local, NoResources, Recovered};
        let for_our_sake = matches!(reason, Local | Recovered | NoResources | Idle);
        let had_its_turn =
            self.connections.at(id).rx.partial.is_some() && self.now >= self.reserve_since + TURN;
        if had_its_turn && !for_our_sake {
            self.bar_from_reserve(id, self.now);
        }
    }
}
