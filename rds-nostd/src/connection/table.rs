//! Table of connections: a hash table by peer, a list of due connections, and a heap of deadlines.

use dat_nostd::Instant;

use crate::connection::{Connection, Cookie, Peer, State};
use crate::ids::ConnectionId;

with_empty! {
    /// Links of a connection in the lists of the table.
    #[derive(Debug)]
    pub(crate) struct Links {
        /// Next connection in the same bucket.
        bucket_next: Option<ConnectionId> = None,
        /// Next due connection, and whether this one is in the list.
        due_next: Option<ConnectionId> = None,
        is_due: bool = false,
        /// Index in the heap of deadlines plus 1, and the deadline.
        place: u16 = 0,
        deadline: Instant = Instant::ORIGIN,
    }
}

/// All connections of a node.
pub(crate) struct Connections<'s> {
    entries: &'s mut [Connection],
    /// First connection of each bucket.
    buckets: &'s mut [Option<ConnectionId>],
    /// Connections with a deadline, as a binary heap.
    heap: &'s mut [Option<ConnectionId>],
    waiting: usize,
    /// Connections that the next poll visits, in order.
    due_head: Option<ConnectionId>,
    due_tail: Option<ConnectionId>,
    /// Entries beyond this were never used.
    used: usize,
    /// Mixed into the hash, so that peers cannot choose addresses that share a bucket.
    seed: u64,
    /// Fallback for invalid identifiers, which do not occur.
    nowhere: Connection,
}

impl<'s> Connections<'s> {
    pub(crate) fn new(
        entries: &'s mut [Connection],
        buckets: &'s mut [Option<ConnectionId>],
        heap: &'s mut [Option<ConnectionId>],
        seed: u64,
    ) -> Self {
        let count = entries.len().min(ConnectionId::MOST).min(buckets.len()).min(heap.len());
        let (entries, _) = entries.split_at_mut(count);
        entries.fill_with(|| Connection::EMPTY);
        buckets.fill(None);
        heap.fill(None);
        Self {
            entries,
            buckets,
            heap,
            waiting: 0,
            due_head: None,
            due_tail: None,
            used: 0,
            seed: seed | 1,
            nowhere: Connection::EMPTY,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entry of an identifier, which always comes from this table.
    #[inline]
    pub(crate) fn at(&self, id: ConnectionId) -> &Connection {
        self.entries.get(id.index()).unwrap_or(&self.nowhere)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: ConnectionId) -> &mut Connection {
        self.entries.get_mut(id.index()).unwrap_or(&mut self.nowhere)
    }

    /// Returns the connection of a socket's route, or of a cookie, which the device may have forged.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: Option<ConnectionId>) -> Option<&mut Connection> {
        self.entries.get_mut(id.map_or(usize::MAX, ConnectionId::index))
    }

    /// Decodes a cookie, if it belongs to a connection's current endpoint.
    #[inline]
    pub(crate) fn current(&self, bits: u64) -> Option<Cookie> {
        let cookie = Cookie::decode(bits)?;
        let objects = &self.entries.get(cookie.connection.index())?.objects;
        (objects.ep != 0 && objects.epoch == cookie.epoch).then_some(cookie)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> + '_ {
        let known = self.entries.iter().take(self.used).enumerate();
        known.filter(|(_, c)| c.state != State::Free).map(|(index, c)| (ConnectionId::new(index), c))
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnectionId> + use<> {
        (0..self.used).map(ConnectionId::new)
    }

    fn bucket(&self, foreign: u128) -> usize {
        let mixed = (foreign as u64 ^ (foreign >> 64) as u64 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed ^ (mixed >> 29)) * self.buckets.len() as u128) >> 64) as usize
    }

    /// Returns the connections to a peer.
    pub(crate) fn of_peer(&self, foreign: u128) -> impl Iterator<Item = (ConnectionId, &Connection)> + '_ {
        let first = self.buckets.get(self.bucket(foreign)).copied().flatten();
        let chain = core::iter::successors(first, |&id| self.at(id).links.bucket_next);
        chain.map(|id| (id, self.at(id))).filter(move |(_, c)| c.peer.foreign == foreign)
    }

    /// Returns the connection to a peer with this type of service.
    #[inline]
    pub(crate) fn find(&self, foreign: u128, tos: u8) -> Option<ConnectionId> {
        self.of_peer(foreign).find(|(_, c)| c.peer.tos == tos).map(|(id, _)| id)
    }

    /// Returns a free entry.
    pub(crate) fn free(&self) -> Option<ConnectionId> {
        if self.used < self.entries.len() {
            return Some(ConnectionId::new(self.used));
        }
        self.entries.iter().position(|c| c.state == State::Free).map(ConnectionId::new)
    }

    /// Inserts a connection into a free entry, which may still be in the list of due connections.
    pub(crate) fn insert(&mut self, id: ConnectionId, connection: Connection) {
        let bucket = self.bucket(connection.peer.foreign);
        self.used = self.used.max(id.index() + 1);
        let entry = self.at_mut(id);
        let Links { due_next, is_due, .. } = entry.links;
        *entry = Connection { links: Links { due_next, is_due, ..Links::EMPTY }, ..connection };
        if let Some(first) = self.buckets.get_mut(bucket) {
            let next = first.replace(id);
            self.at_mut(id).links.bucket_next = next;
        }
    }

    /// Frees an entry, and returns its peer. Its DAT objects remain.
    pub(crate) fn remove(&mut self, id: ConnectionId) -> Peer {
        self.disarm(id);
        let bucket = self.bucket(self.at(id).peer.foreign);
        let next = self.at(id).links.bucket_next;
        let mut link = self.buckets.get_mut(bucket);
        // The borrow of a link ends before the next entry is looked up.
        while let Some(other) = link.as_deref().copied().flatten().filter(|other| *other != id) {
            link = self.entries.get_mut(other.index()).map(|entry| &mut entry.links.bucket_next);
        }
        if let Some(link) = link {
            *link = next;
        }
        // A due entry is visited once more, without effect.
        let entry = self.at_mut(id);
        let Links { due_next, is_due, .. } = entry.links;
        let (objects, links) = (entry.objects, Links { due_next, is_due, ..Links::EMPTY });
        core::mem::replace(entry, Connection { objects, links, ..Connection::EMPTY }).peer
    }

    /// Makes a connection due, so that the next poll visits it.
    #[inline]
    pub(crate) fn make_due(&mut self, id: ConnectionId) {
        if !self.at(id).links.is_due {
            self.add_due(id);
        }
    }

    #[inline(never)]
    fn add_due(&mut self, id: ConnectionId) {
        let links = &mut self.at_mut(id).links;
        (links.is_due, links.due_next) = (true, None);
        match self.due_tail {
            Some(tail) => self.at_mut(tail).links.due_next = Some(id),
            None => self.due_head = Some(id),
        }
        self.due_tail = Some(id);
    }

    /// Returns the last connection that is due now. A round ends with it, because connections that
    /// become due during the round are appended.
    pub(crate) const fn last_due(&self) -> Option<ConnectionId> {
        self.due_tail
    }

    pub(crate) fn pop_due(&mut self) -> Option<ConnectionId> {
        let id = self.due_head?;
        let links = &mut self.at_mut(id).links;
        links.is_due = false;
        self.due_head = links.due_next.take();
        if self.due_head.is_none() {
            self.due_tail = None;
        }
        Some(id)
    }

    /// Sets a deadline at which a connection becomes due. An earlier deadline remains.
    pub(crate) fn arm(&mut self, id: ConnectionId, deadline: Instant) {
        let links = &mut self.at_mut(id).links;
        if links.place == 0 {
            links.deadline = deadline;
            let place = self.waiting;
            self.waiting += 1;
            self.put(place, id);
            self.rise(place);
        } else if deadline < links.deadline {
            links.deadline = deadline;
            let place = usize::from(links.place) - 1;
            self.rise(place);
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let first = self.heap.first().copied().flatten().filter(|_| self.waiting > 0)?;
        Some(self.at(first).links.deadline)
    }

    /// Makes the connections due whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(first) = self.heap.first().copied().flatten()
            && self.deadline().is_some_and(|deadline| deadline <= now)
        {
            self.disarm(first);
            self.make_due(first);
        }
    }

    fn disarm(&mut self, id: ConnectionId) {
        let place = usize::from(core::mem::take(&mut self.at_mut(id).links.place));
        let Some(place) = place.checked_sub(1) else { return };
        self.waiting -= 1;
        let last = self.heap.get_mut(self.waiting).and_then(Option::take);
        if let Some(last) = last
            && place < self.waiting
        {
            self.put(place, last);
            self.rise(place);
            self.sink(place);
        }
    }

    fn put(&mut self, place: usize, id: ConnectionId) {
        if let Some(entry) = self.heap.get_mut(place) {
            *entry = Some(id);
        }
        self.at_mut(id).links.place = place as u16 + 1;
    }

    fn key(&self, place: usize) -> Instant {
        let id = self.heap.get(place).copied().flatten();
        id.map_or(Instant::MAX, |id| self.at(id).links.deadline)
    }

    fn swap(&mut self, one: usize, other: usize) {
        let (a, b) = (self.heap.get(one).copied().flatten(), self.heap.get(other).copied().flatten());
        if let (Some(a), Some(b)) = (a, b) {
            self.put(one, b);
            self.put(other, a);
        }
    }

    fn rise(&mut self, mut place: usize) {
        while let Some(parent) = place.checked_sub(1).map(|before| before / 2)
            && self.key(place) < self.key(parent)
        {
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        let least = |table: &Self, place: usize| {
            let children = (2 * place + 1..=2 * place + 2).filter(|child| *child < table.waiting);
            children.min_by_key(|child| table.key(*child))
        };
        while let Some(child) = least(self, place)
            && self.key(child) < self.key(place)
        {
            self.swap(place, child);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn with<T>(count: usize, run: impl FnOnce(&mut Connections<'_>) -> T) -> T {
        let mut entries: std::vec::Vec<Connection> = (0..count).map(|_| Connection::EMPTY).collect();
        let (mut buckets, mut heap) = (std::vec![None; count], std::vec![None; count]);
        run(&mut Connections::new(&mut entries, &mut buckets, &mut heap, 7))
    }

    fn peer(foreign: u128, tos: u8) -> Connection {
        let peer = Peer { foreign, tos, ..Peer::EMPTY };
        Connection { state: State::Down, peer, ..Connection::EMPTY }
    }

    #[test]
    fn peers_are_found_until_they_are_removed() {
        with(50, |table| {
            for number in 0..50u128 {
                let id = table.free().unwrap();
                table.insert(id, peer(number / 2, (number % 2) as u8));
            }
            assert!(table.free().is_none());
            for number in (0..50u128).step_by(3) {
                let id = table.find(number / 2, (number % 2) as u8).unwrap();
                table.remove(id);
            }
            for number in 0..50u128 {
                let found = table.find(number / 2, (number % 2) as u8);
                assert_eq!(found.is_none(), number % 3 == 0, "{number}");
            }
            let id = table.free().unwrap();
            table.insert(id, peer(77, 0));
            assert_eq!(table.find(77, 0), Some(id));
        });
    }

    #[test]
    fn due_once_and_in_order() {
        with(4, |table| {
            for number in 0..4 {
                table.insert(ConnectionId::new(number), peer(number as u128, 0));
            }
            for number in [2, 0, 2, 3] {
                table.make_due(ConnectionId::new(number));
            }
            let order: std::vec::Vec<_> =
                std::iter::from_fn(|| table.pop_due()).map(ConnectionId::index).collect();
            assert_eq!(order, [2, 0, 3]);
            assert!(table.last_due().is_none());
        });
    }

    proptest! {
        /// Due connections are visited in order, even if entries are reused in between.
        #[test]
        fn due_though_entries_change_hands(steps in prop::collection::vec((0u8..4, 0usize..5), 1..100)) {
            with(5, |table| {
                let mut model: std::collections::VecDeque<usize> = std::collections::VecDeque::new();
                for number in 0..5 {
                    table.insert(ConnectionId::new(number), peer(number as u128, 0));
                }
                for ((action, number), step) in steps.into_iter().zip(100..) {
                    let id = ConnectionId::new(number);
                    match action {
                        0 | 1 => {
                            table.make_due(id);
                            if !model.contains(&number) {
                                model.push_back(number);
                            }
                        }
                        2 => prop_assert_eq!(table.pop_due().map(ConnectionId::index), model.pop_front()),
                        _ => {
                            table.remove(id);
                            table.insert(id, peer(step, 0));
                        }
                    }
                    prop_assert_eq!(table.last_due().map(ConnectionId::index), model.back().copied());
                }
                Ok(())
            })?;
        }

        /// Deadlines expire as in a model with an ordered map, whatever is armed and removed in
        /// between.
        #[test]
        fn deadlines_expire_in_time(steps in prop::collection::vec((0u8..4, 0usize..9, 0u64..100), 1..200)) {
            with(9, |table| {
                let mut model: BTreeMap<usize, u64> = BTreeMap::new();
                for number in 0..9 {
                    table.insert(ConnectionId::new(number), peer(number as u128, 0));
                }
                for (action, number, time) in steps {
                    let id = ConnectionId::new(number);
                    match action {
                        0 | 1 => {
                            table.arm(id, Instant::from_nanos(time));
                            let known = model.entry(number).or_insert(time);
                            *known = time.min(*known);
                        }
                        2 => {
                            table.expire(Instant::from_nanos(time));
                            let mut due: std::vec::Vec<_> =
                                std::iter::from_fn(|| table.pop_due()).map(ConnectionId::index).collect();
                            due.sort_unstable();
                            let expected: std::vec::Vec<_> =
                                model.iter().filter(|(_, at)| **at <= time).map(|(number, _)| *number).collect();
                            prop_assert_eq!(due, expected);
                            model.retain(|_, at| *at > time);
                        }
                        _ => {
                            table.disarm(id);
                            model.remove(&number);
                        }
                    }
                    prop_assert_eq!(table.deadline().map(Instant::as_nanos), model.values().min().copied());
                }
                Ok(())
            })?;
        }
    }
}
