//! Receives: how many a connection may have posted.
//!
//! Each connection has a share of the frames that no other one can take. Beyond it there are common frames, for messages that wait to be
//! read, of which a connection may have as much as it leaves to the others, and a [reserve](super::reserve) for unfinished ones. Where
//! frames are short, short messages that nobody has read are packed; then the HCA tells the peer to wait, and nothing is lost.

use crate::connection::{Connection, Cookie, CookieKind, Objects};
use crate::frames::Receives;
use crate::ids::ConnectionId;
use crate::protocol::Protocol;

/// Completions of receives taken at once, at most: then those connections are looked at that something is due on because of them.
pub(crate) const BURST: usize = 32;

impl Protocol<'_> {
    /// Whether a connection has so few receives posted that more are worth it.
    #[inline(always)]
    pub(crate) fn wants_receives(&self, id: ConnectionId) -> bool {
        self.connections.at(id).rx.posted_count <= self.limits.refill_at
    }

    /// Posts receives until a connection has as many as it may have, or frames are short. In the latter case the HCA tells the peer to
    /// wait, and nothing is lost. `post` posts them, by address and cookie, and gives how many of them the HCA got.
    #[inline(always)]
    pub(crate) fn refill(
        &mut self,
        id: ConnectionId,
        mut post: impl FnMut(&Objects, &mut Receives<'_>) -> usize,
    ) {
        loop {
            let room = self.room_for_receives(id);
            if room == 0 {
                return;
            }
            let Self { connections, frames, receiving, limits, .. } = self;
            let Connection { rx, objects, .. } = connections.at_mut(id);
            let epoch = objects.epoch;
            let cookie = Cookie { kind: CookieKind::Receive, connection: id, epoch, number: 0 }.encode();
            rx.expect(cookie);
            let (taken, posted) = frames
                .post_receives(&mut rx.posted, cookie, room as usize, |receives| post(objects, receives));
            rx.posted_count += taken as u16;
            receiving.take(&mut rx.used, taken as u32);
            if posted < room as usize {
                self.take_back(id, taken - posted.min(taken));
                self.starve(id);
                return;
            }
            if rx.posted_count > limits.refill_at {
                return;
            }
        }
    }

    /// How many receives a connection may post now.
    #[inline(always)]
    fn room_for_receives(&mut self, id: ConnectionId) -> u32 {
        let rx = &self.connections.at(id).rx;
        let missing = self.limits.receive_depth.saturating_sub(rx.posted_count);
        // While little waits to be read its share is enough.
        if rx.used + u32::from(missing) <= self.receiving.share() {
            return missing.into();
        }
        match self.receiving.fair_room(rx.used).min(u32::from(missing)) {
            0 if !self.wants_receives(id) => 0,
            0 => self.make_room(id).min(u32::from(missing)),
            room => room,
        }
    }

    /// How many receives a connection may take that has used up its frames: what packing its unread messages brings, or of the reserve.
    #[cold]
    fn make_room(&mut self, id: ConnectionId) -> u32 {
        self.pack_unread(id);
        match self.receiving.fair_room(self.connections.at(id).rx.used) {
            0 => self.room_in_reserve(id),
            room => room,
        }
    }

    /// Packs the short messages that came over a connection and nobody has read. That looks at all unread messages, and so waits for several
    /// new ones, as long as there are receives for them.
    fn pack_unread(&mut self, id: ConnectionId) {
        let Self { connections, sockets, frames, receiving, limits, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        if rx.posted_count > limits.refill_at / 2 || !core::mem::take(&mut rx.some_short) {
            return;
        }
        let freed = sockets.iter_mut().map(|socket| frames.pack(&mut socket.received, id)).sum();
        receiving.give(&mut rx.used, freed);
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
        let now = self.now;
        self.connections.at_mut(id).rx.excuse(now);
        self.connections.make_due(id);
    }

    /// How many receives a connection may take from the reserve. Without any, it is looked at again when frames come free.
    #[cold]
    fn room_in_reserve(&mut self, id: ConnectionId) -> u32 {
        let room = self.share_of_reserve(id).unwrap_or(0);
        if room == 0 {
            self.counters.rx_ring_starved += 1;
            self.starve(id);
        }
        room
    }

    /// The HCA may still write to the receives that are posted.
    pub(crate) fn withhold_receives(&mut self, id: ConnectionId) {
        let Self { connections, frames, receiving, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        frames.withhold(&mut rx.posted);
        receiving.give(&mut rx.used, u32::from(core::mem::take(&mut rx.posted_count)));
    }

    /// After the endpoint is gone: takes back what was posted to it, and what came of an unfinished message.
    pub(crate) fn take_all_back(&mut self, id: ConnectionId) {
        let count = usize::from(self.connections.at(id).rx.posted_count);
        self.take_back(id, count);
        if let Some(message) = self.connections.at_mut(id).rx.partial.take() {
            self.give_received(message);
            // Somebody else may have waited for the reserve.
            self.give_reserve_up(id);
            self.starved = true;
        }
    }
}
