//! Sequence numbers of peers that were evicted from the table of connections.
//!
//! Retransmitted messages below the expected sequence number are duplicates.

use dat_nostd::Instant;

use crate::connection::Connection;

/// Peers of one port GID may occupy one `SHARE`th of the table.
const SHARE: usize = 8;

with_empty! {
    /// State of a peer without an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Remembered {
        foreign: u128 = 0,
        /// Interface ID of the port GID, which has the share.
        port: u64 = 0,
        /// Sequence number that is expected next from the peer.
        pub(crate) next_sequence: u64 = 0,
        kept_at: Instant = Instant::ORIGIN,
        tos: u8 = 0,
        /// As [`Rx::is_unsettled`](super::Rx).
        pub(crate) is_unsettled: bool = false,
    }
}

impl Remembered {
    /// Captures the state of a connection that loses its entry.
    pub(crate) fn of(connection: &Connection, now: Instant) -> Self {
        let [.., a, b, c, d, e, f, g, h] = connection.foreign_gid;
        Self {
            foreign: connection.foreign,
            port: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            next_sequence: connection.rx.next_sequence,
            kept_at: now,
            tos: connection.tos,
            is_unsettled: !connection.is_settled(),
        }
    }

    const fn is_of(&self, foreign: u128, tos: u8) -> bool {
        self.foreign == foreign && self.tos == tos
    }
}

/// All remembered peers.
pub(crate) struct RememberedPeers<'s>(&'s mut [Remembered]);

impl<'s> RememberedPeers<'s> {
    pub(crate) fn new(entries: &'s mut [Remembered]) -> Self {
        entries.fill(Remembered::EMPTY);
        Self(entries)
    }

    /// Stores a peer that has sent messages.
    ///
    /// The peers of a port have a [`SHARE`] of the table. Beyond it the port's oldest entry is
    /// replaced, so that a port cannot flush the peers of other ports. A full table replaces the
    /// oldest of all entries.
    pub(crate) fn keep(&mut self, peer: Remembered) {
        if peer.next_sequence == 0 {
            return;
        }
        let theirs = self.0.iter().filter(|known| known.foreign != 0 && known.port == peer.port).count();
        let is_full = theirs >= (self.0.len() / SHARE).max(1);
        let may_go = |known: &Remembered| known.foreign != 0 && (!is_full || known.port == peer.port);
        let entry = if let Some(place) = self.0.iter().position(|known| known.is_of(peer.foreign, peer.tos)) {
            self.0.get_mut(place)
        } else if let Some(place) = self.0.iter().position(|known| known.foreign == 0 && !is_full) {
            self.0.get_mut(place)
        } else {
            self.0.iter_mut().filter(|known| may_go(known)).min_by_key(|known| known.kept_at)
        };
        if let Some(entry) = entry {
            *entry = peer;
        }
    }

    /// Removes a peer, which gets an entry again.
    pub(crate) fn take(&mut self, foreign: u128, tos: u8) -> Option<Remembered> {
        let known = self.0.iter_mut().find(|known| known.is_of(foreign, tos))?;
        Some(core::mem::replace(known, Remembered::EMPTY))
    }

    /// Returns the addresses of peers that may lack an acknowledgement, IPv4 mapped.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = u128> + '_ {
        self.0.iter().filter(|known| known.is_unsettled).map(|known| known.foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(foreign: u128, port: u64, seconds: u64) -> Remembered {
        let kept_at = Instant::from_nanos(seconds);
        Remembered { foreign, port, next_sequence: foreign as u64, kept_at, ..Remembered::EMPTY }
    }

    #[test]
    fn a_port_flushes_its_own_peers_only() {
        let mut table = [Remembered::EMPTY; 16];
        let mut peers = RememberedPeers::new(&mut table);
        for honest in 1..=14 {
            peers.keep(peer(honest, honest as u64, 1));
        }
        for forged in 100..200 {
            peers.keep(peer(forged, 99, forged as u64));
        }
        for honest in 1..=14 {
            assert_eq!(peers.take(honest, 0).map(|peer| peer.next_sequence), Some(honest as u64));
        }
        let left: std::vec::Vec<_> = (100..200).filter(|&forged| peers.take(forged, 0).is_some()).collect();
        assert_eq!(left, [198, 199], "the newest");
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut table = [Remembered::EMPTY; 4];
        let mut peers = RememberedPeers::new(&mut table);
        for number in 1..=4 {
            peers.keep(peer(number, number as u64, 10 - number as u64));
        }
        peers.keep(peer(2, 2, 20));
        peers.keep(peer(5, 5, 21));
        assert_eq!(peers.take(4, 0), None, "the oldest");
        assert_eq!(peers.take(2, 1), None, "another type of service");
        assert_eq!(peers.take(2, 0), Some(peer(2, 2, 20)), "replaced, and not twice");
        assert_eq!(peers.take(2, 0), None, "taken out");
        peers.keep(peer(0, 0, 30));
        assert_eq!(peers.0.iter().filter(|known| known.foreign != 0).count(), 3, "nothing came from it");
    }
}
