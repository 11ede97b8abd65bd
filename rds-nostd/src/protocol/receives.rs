//! Receives: how many a connection may have posted.
//!
//! Each connection has a share of the frames that no other one can take. Beyond it there are common frames, for messages that wait to be
//! read, and a reserve that one unfinished message at a time is completed with: connections that each hold a part of a long message do
//! not block each other. Where frames are short the HCA tells the peer to wait, and nothing is lost.

use crate::connection::{Cookie, CookieKind};
use crate::ids::ConnectionId;
use crate::protocol::Protocol;
use crate::wire::fragments;

/// Receives posted at once, and completions of receives taken at once, at most.
pub(crate) const BURST: usize = 32;

impl Protocol<'_> {
    /// Takes frames for receives that a connection is to post, as many as it may have and `out` has room for: puts down address and cookie
    /// of each. [`receives_posted`](Self::receives_posted) says what became of them.
    #[inline(always)]
    pub(crate) fn take_receives(&mut self, id: ConnectionId, out: &mut [(u64, u64)]) -> usize {
        let connection = self.connections.at(id);
        let missing = self.limits.receive_depth.saturating_sub(connection.rx.posted_count);
        if missing == 0 {
            return 0;
        }
        let mut room = self.receiving.room(connection.rx.used).min(u32::from(missing));
        if room == 0 {
            if !self.may_use_reserve(id) {
                self.counters.rx_ring_starved += 1;
                self.starve(id);
                return 0;
            }
            room = 1;
        }
        let Self { connections, frames, receiving, .. } = self;
        let connection = connections.at_mut(id);
        let epoch = connection.objects.epoch;
        let cookie = Cookie { kind: CookieKind::Receive, connection: id, epoch, number: 0 }.encode();
        let (out, _) = out.split_at_mut(out.len().min(room as usize));
        let rx = &mut connection.rx;
        let taken = frames.take_receives(&mut rx.posted, cookie, out);
        rx.posted_count += taken as u16;
        receiving.take(&mut rx.used, taken as u32);
        taken
    }

    /// Of the receives taken last, the HCA got `posted`.
    #[inline(always)]
    pub(crate) fn receives_posted(&mut self, id: ConnectionId, taken: usize, posted: usize) {
        if posted < taken {
            self.take_back(id, taken - posted);
            self.starve(id);
        }
    }

    #[cold]
    fn take_back(&mut self, id: ConnectionId, count: usize) {
        let Self { connections, frames, receiving, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        let keep = usize::from(rx.posted_count).saturating_sub(count);
        frames.cut_chain(&mut rx.posted, keep);
        rx.posted_count = keep as u16;
        receiving.give(&mut rx.used, count as u32);
    }

    /// The connection is looked at again when frames come free, and in the next poll.
    #[cold]
    fn starve(&mut self, id: ConnectionId) {
        self.starved = true;
        self.connections.make_due(id);
    }

    /// Whether a connection may take from the reserve: to go on with its unfinished message, if no other is at it.
    #[cold]
    fn may_use_reserve(&mut self, id: ConnectionId) -> bool {
        let rx = &self.connections.at(id).rx;
        let Some(message) = rx.partial else { return false };
        let other = self.reserve_of.filter(|&other| other != id);
        if other.is_some_and(|other| self.connections.at(other).rx.partial.is_some()) {
            return false;
        }
        self.reserve_of = Some(id);
        let begun = self.frames.message(message);
        let missing = fragments(begun.len as usize).saturating_sub(usize::from(begun.frames));
        let room = self.receiving.common() + self.limits.reserve > self.receiving.beyond();
        usize::from(rx.posted_count) < missing && room
    }

    /// After the endpoint is gone: takes back what was posted to it, and what came of an unfinished message.
    pub(crate) fn take_all_back(&mut self, id: ConnectionId) {
        let count = usize::from(self.connections.at(id).rx.posted_count);
        self.take_back(id, count);
        if let Some(message) = self.connections.at_mut(id).rx.partial.take() {
            self.give_received(message);
            // Somebody else may have waited for the reserve.
            self.starved = true;
        }
    }
}
