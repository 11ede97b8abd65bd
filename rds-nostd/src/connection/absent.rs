//! Unreachable peers that were evicted from the table of connections, with their unacknowledged
//! messages.

use dat_nostd::{Duration, Instant};

use crate::frames::Queue;

/// Capacity, in peers.
const PLACES: usize = 16;
/// Interval at which such a peer gets an entry again for an attempt.
const RETRY: Duration = Duration::from_secs(10);

/// An unreachable peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absent {
    /// Address, IPv4 mapped.
    pub(crate) foreign: u128,
    pub(crate) tos: u8,
    /// Unacknowledged messages and their frames, which count as common ones.
    pub(crate) queue: Queue,
    pub(crate) frames: u32,
    /// Sequence number of the next message.
    pub(crate) next_sequence: u64,
    /// As in [`Reconnect`](super::Reconnect).
    pub(crate) was_up: bool,
    pub(crate) numbers_raised: bool,
    pub(crate) reachable_at: Instant,
    /// Time of the eviction.
    pub(crate) moved_at: Instant,
}

/// All unreachable peers without an entry.
pub(crate) struct AbsentPeers {
    places: [Option<Absent>; PLACES],
    retry_at: Option<Instant>,
}

impl AbsentPeers {
    pub(crate) const EMPTY: Self = Self { places: [None; PLACES], retry_at: None };

    /// Adds a peer. If the list is full, removes and returns the peer that has been unreachable for
    /// longest.
    pub(crate) fn put(&mut self, peer: Absent) -> Option<Absent> {
        let dropped = if self.places.iter().all(Option::is_some) { self.take_longest() } else { None };
        self.retry_at = self.retry_at.or(Some(peer.moved_at + RETRY));
        if let Some(place) = self.places.iter_mut().find(|place| place.is_none()) {
            *place = Some(peer);
        }
        dropped
    }

    /// Removes a peer.
    pub(crate) fn take(&mut self, foreign: u128, tos: u8) -> Option<Absent> {
        let is_it = |peer: &mut Absent| peer.foreign == foreign && peer.tos == tos;
        let taken = self.places.iter_mut().find_map(|place| place.take_if(is_it));
        self.note_empty();
        taken
    }

    /// Removes the peer that has been unreachable for longest.
    pub(crate) fn take_longest(&mut self) -> Option<Absent> {
        let longest = self.iter().min_by_key(|peer| peer.reachable_at)?;
        let (foreign, tos) = (longest.foreign, longest.tos);
        self.take(foreign, tos)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Absent> {
        self.places.iter().flatten()
    }

    /// Returns the frames of all messages.
    pub(crate) fn frames(&self) -> u32 {
        self.iter().map(|peer| peer.frames).sum()
    }

    /// Changes the peers that `is_meant` selects. Removes peers without messages.
    pub(crate) fn change(&mut self, is_meant: impl Fn(&Absent) -> bool, mut change: impl FnMut(&mut Absent)) {
        for place in &mut self.places {
            if let Some(peer) = place.as_mut().filter(|peer| is_meant(peer)) {
                change(peer);
            }
            place.take_if(|peer| peer.queue.is_empty());
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
        self.iter().min_by_key(|peer| peer.moved_at).map(|peer| (peer.foreign, peer.tos))
    }

    fn note_empty(&mut self) {
        if self.places.iter().all(Option::is_none) {
            self.retry_at = None;
        }
    }
}
