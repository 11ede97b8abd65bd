//! Unreachable peers that were evicted from the table of connections, with their unacknowledged
//! messages.

use dat_nostd::{Duration, Instant};

use crate::connection::Peer;

/// Capacity, in peers.
const PLACES: usize = 16;
/// Interval at which such a peer gets an entry again for an attempt.
const RETRY: Duration = Duration::from_secs(10);

/// All unreachable peers without an entry. Their frames count as common ones.
pub(crate) struct AbsentPeers {
    /// Each with the time of its eviction.
    places: [Option<(Peer, Instant)>; PLACES],
    retry_at: Option<Instant>,
}

impl AbsentPeers {
    pub(crate) const EMPTY: Self = Self { places: [const { None }; PLACES], retry_at: None };

    /// Adds a peer. If the list is full, removes and returns the peer that has been unreachable for
    /// longest.
    pub(crate) fn put(&mut self, peer: Peer, now: Instant) -> Option<Peer> {
        let dropped = if self.places.iter().all(Option::is_some) { self.take_longest() } else { None };
        self.retry_at = self.retry_at.or(Some(now + RETRY));
        if let Some(place) = self.places.iter_mut().find(|place| place.is_none()) {
            *place = Some((peer, now));
        }
        dropped
    }

    /// Removes a peer.
    pub(crate) fn take(&mut self, foreign: u128, tos: u8) -> Option<Peer> {
        let is_it = |(peer, _): &mut (Peer, _)| peer.foreign == foreign && peer.tos == tos;
        let taken = self.places.iter_mut().find_map(|place| place.take_if(is_it));
        self.note_empty();
        taken.map(|(peer, _)| peer)
    }

    /// Removes the peer that has been unreachable for longest.
    pub(crate) fn take_longest(&mut self) -> Option<Peer> {
        let longest = self.iter().min_by_key(|peer| peer.reachable_at)?;
        let (foreign, tos) = (longest.foreign, longest.tos);
        self.take(foreign, tos)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.places.iter().flatten().map(|(peer, _)| peer)
    }

    /// Returns the frames of all messages.
    pub(crate) fn frames(&self) -> u32 {
        self.iter().map(|peer| peer.frames.count()).sum()
    }

    /// Changes all peers. Removes those without messages.
    pub(crate) fn change(&mut self, mut change: impl FnMut(&mut Peer)) {
        self.places.iter_mut().flatten().for_each(|(peer, _)| change(peer));
        for place in &mut self.places {
            place.take_if(|(peer, _)| peer.queue.is_empty());
        }
        self.note_empty();
    }

    /// Returns the time of the next attempt, or `None` if the list is empty.
    pub(crate) const fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Schedules the next attempt. If one is due, returns address and type of service of the peer
    /// that has waited longest.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<(u128, u8)> {
        if self.retry_at.is_none_or(|at| now < at) {
            return None;
        }
        self.retry_at = Some(now + RETRY);
        let longest = self.places.iter().flatten().min_by_key(|(_, moved_at)| *moved_at);
        longest.map(|(peer, _)| (peer.foreign, peer.tos))
    }

    fn note_empty(&mut self) {
        if self.places.iter().all(Option::is_none) {
            self.retry_at = None;
        }
    }
}
