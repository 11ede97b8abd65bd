//! Posted receives of connections.
//!
//! Each connection has a share of the frames that no other one can take. The common frames beyond
//! the shares serve unread messages: a connection may use as many of them as it leaves to the
//! others. A [reserve](super::reserve) serves unfinished messages. Without receives the HCA sends
//! RNR NAKs, and no message is lost.

use crate::connection::{Connection, Cookie, CookieKind, Objects};
use crate::frames::{Frames, Place, Ready, SHORT, Use};
use crate::ids::{ConnectionId, MessageId};
use crate::protocol::Protocol;

/// Maximum of receive completions per batch. After a batch the connections that it made due are
/// served.
pub(crate) const BURST: usize = 32;

/// Receives to post: addresses, and cookies with the frames.
pub(crate) struct Receives<'p, 's> {
    frames: &'p Frames<'s>,
    ready: Ready<'p, 's>,
    cookie: u64,
}

impl Iterator for Receives<'_, '_> {
    type Item = (u64, u64);

    #[inline]
    fn next(&mut self) -> Option<(u64, u64)> {
        let frame = self.ready.next()?;
        Some((self.frames.address(frame), self.cookie | u64::from(frame.bits())))
    }
}

impl Protocol<'_> {
    /// Returns whether a connection needs a refill: few receives are posted, and reposting them
    /// unchanged is impossible.
    #[inline]
    pub(crate) fn wants_receives(&self, id: ConnectionId) -> bool {
        let ring = &self.connections.at(id).rx.ring;
        ring.outstanding() <= self.limits.refill_at && self.rings.is_short(ring)
    }

    /// Posts receives up to the connection's limit, or until frames run out. `post` returns the
    /// number that the HCA accepted.
    pub(crate) fn refill(
        &mut self,
        id: ConnectionId,
        post: impl FnOnce(&Objects, Receives<'_, '_>) -> usize,
    ) {
        self.clear_slots(id);
        self.fill(id);
        let Self { connections, frames, rings, .. } = self;
        let Connection { rx, objects, .. } = connections.at_mut(id);
        let epoch = objects.epoch;
        let cookie = Cookie { kind: CookieKind::Receive, connection: id, epoch, number: 0 }.encode();
        rx.expect(cookie);
        let ready = rings.ready(id, &rx.ring);
        let posted = post(objects, Receives { frames, ready, cookie });
        rings.posted(&mut rx.ring, posted as u16);
        if rings.ready(id, &rx.ring).next().is_some() {
            self.starve(id);
        }
    }

    /// Moves unread messages out of the pending slots of a connection's ring. Short messages are
    /// copied to the arena; all others leave with their frames.
    fn clear_slots(&mut self, id: ConnectionId) {
        let Self { connections, frames, rings, sockets, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        if !rx.ring.has_unread() {
            return;
        }
        for index in 0..rings.depth() {
            let Some(frame) = rings.unread(id, &rx.ring, frames, index) else { continue };
            let entry = frames.at(frame);
            let from = Place::of(MessageId::starting(frame));
            let socket = sockets.get_mut(usize::from(entry.socket));
            let Some(socket) = socket.filter(|_| entry.len <= SHORT && entry.marks.is_empty()) else {
                rings.remove_unread(id, &mut rx.ring, frames, frame);
                continue;
            };
            if let Some(to) = frames.copy_to(&mut rx.arena, frame) {
                frames.replace(&mut socket.received, from, to);
                frames.at_mut(frame).used = Use::Ring;
                rx.ring.free();
            } else {
                rings.remove_unread(id, &mut rx.ring, frames, frame);
                frames.open_arena(&mut rx.arena, frame, id, &mut socket.received);
            }
        }
    }

    /// Fills a connection's ring up to its limit.
    fn fill(&mut self, id: ConnectionId) {
        loop {
            let room = self.room_for_receives(id);
            let Self { connections, frames, rings, receiving, limits, .. } = self;
            let rx = &mut connections.at_mut(id).rx;
            let added = rings.fill(id, &mut rx.ring, frames, room);
            receiving.take(&mut rx.used, added.into());
            if u32::from(added) < room {
                return self.starve(id);
            }
            if room == 0 || rx.ring.waiting() > limits.refill_at {
                return;
            }
        }
    }

    /// Returns the number of frames that a connection's ring may take now.
    fn room_for_receives(&mut self, id: ConnectionId) -> u32 {
        let rx = &self.connections.at(id).rx;
        let missing = u32::from(self.rings.depth() - rx.ring.filled());
        // The share is enough while few messages are unread.
        if self.receiving.covers(rx.used, missing) {
            return missing;
        }
        match self.receiving.fair_room(rx.used).min(missing) {
            0 if rx.ring.waiting() > self.limits.refill_at => 0,
            0 => self.room_in_reserve(id).min(missing),
            room => room,
        }
    }

    /// Makes a connection without receives due for the next poll, and for freed frames.
    #[cold]
    fn starve(&mut self, id: ConnectionId) {
        self.starved = true;
        let now = self.now;
        self.connections.at_mut(id).rx.excuse(now);
        self.connections.make_due(id);
    }

    /// Returns the number of receives that a connection may take from the reserve. Without any, it
    /// waits for freed frames.
    #[cold]
    fn room_in_reserve(&mut self, id: ConnectionId) -> u32 {
        let room = self.share_of_reserve(id).unwrap_or(0);
        if room == 0 {
            self.counters.rx_ring_starved += 1;
            self.starve(id);
        }
        room
    }

    /// Frees the posted receives and the unfinished message of a closed endpoint. Unread messages
    /// remain. The frames of receives are withheld if the device has `failed`, because it may still
    /// write to them.
    pub(crate) fn take_all_back(&mut self, id: ConnectionId, failed: bool) {
        let Self { connections, frames, rings, receiving, .. } = self;
        let rx = &mut connections.at_mut(id).rx;
        for frame in rings.drain(id, &mut rx.ring) {
            if frames.at(frame).used == Use::Unread {
                frames.leave_ring(frame);
                continue;
            }
            receiving.give_one(&mut rx.used);
            if failed {
                frames.withhold(frame);
            } else {
                frames.give(frame);
            }
        }
        if let Some(message) = rx.partial.take() {
            self.give_received(message);
            // Another connection may wait for the reserve.
            self.give_reserve_up(id);
            self.starved = true;
        }
    }
}
