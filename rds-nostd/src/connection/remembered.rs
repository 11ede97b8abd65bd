//! Sequence numbers of peers that were evicted from the table of connections.
//!
//! Retransmitted messages below the expected sequence number are duplicates.

use dat_nostd::Instant;

use crate::connection::Peer;

/// Peers of one port GID may occupy one `SHARE`th of the table.
const SHARE: usize = 8;

with_empty! {
    /// State of a peer without an entry.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Remembered {
        foreign: u128 = 0,
        /// Interface ID of the port GID, which has the share.
        port: u64 = 0,
        /// As in [`Peer`].
        next_rx: u64 = 0,
        kept_at: Instant = Instant::ORIGIN,
        tos: u8 = 0,
        is_unsettled: bool = false,
    }
}

impl Remembered {
    fn of(peer: &Peer, kept_at: Instant) -> Self {
        let &Peer { foreign, tos, next_rx, is_unsettled, gid: [.., a, b, c, d, e, f, g, h], .. } = peer;
        let port = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        Self { foreign, port, next_rx, kept_at, tos, is_unsettled }
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

    /// Stores a peer that has sent messages, and loses its entry.
    ///
    /// The peers of a port have a [`SHARE`] of the table. Beyond it the port's oldest entry is
    /// replaced, so that a port cannot flush the peers of other ports. A full table replaces the
    /// oldest of all entries.
    pub(crate) fn keep(&mut self, peer: &Peer, now: Instant) {
        if peer.next_rx == 0 {
            return;
        }
        let peer = Remembered::of(peer, now);
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

    /// Moves the numbers of a peer back, which gets an entry again.
    pub(crate) fn recall(&mut self, peer: &mut Peer) {
        if let Some(known) = self.0.iter_mut().find(|known| known.is_of(peer.foreign, peer.tos)) {
            (peer.next_rx, peer.is_unsettled) = (known.next_rx, known.is_unsettled);
            *known = Remembered::EMPTY;
        }
    }

    /// Returns the addresses of peers that may lack an acknowledgement, IPv4 mapped.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = u128> + '_ {
        self.0.iter().filter(|known| known.is_unsettled).map(|known| known.foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps a peer of a port, from which messages up to the number of its address have arrived.
    fn keep(peers: &mut RememberedPeers<'_>, foreign: u128, port: u64, nanos: u64) {
        let gid = u128::from(port).to_be_bytes();
        let peer = Peer { foreign, gid, next_rx: foreign as u64, ..Peer::EMPTY };
        peers.keep(&peer, Instant::from_nanos(nanos));
    }

    /// Returns the number that a peer recalls, or 0.
    fn recalled(peers: &mut RememberedPeers<'_>, foreign: u128, tos: u8) -> u64 {
        let mut peer = Peer { foreign, tos, ..Peer::EMPTY };
        peers.recall(&mut peer);
        peer.next_rx
    }

    #[test]
    fn a_port_flushes_its_own_peers_only() {
        let mut table = [Remembered::EMPTY; 16];
        let mut peers = RememberedPeers::new(&mut table);
        for honest in 1..=14 {
            keep(&mut peers, honest, honest as u64, 1);
        }
        for forged in 100..200 {
            keep(&mut peers, forged, 99, forged as u64);
        }
        for honest in 1..=14 {
            assert_eq!(recalled(&mut peers, honest, 0), honest as u64);
        }
        let left: std::vec::Vec<_> =
            (100..200).filter(|&forged| recalled(&mut peers, forged, 0) > 0).collect();
        assert_eq!(left, [198, 199], "the newest");
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut table = [Remembered::EMPTY; 4];
        let mut peers = RememberedPeers::new(&mut table);
        for number in 1..=4 {
            keep(&mut peers, number, number as u64, 10 - number as u64);
        }
        keep(&mut peers, 2, 2, 20);
        keep(&mut peers, 5, 5, 21);
        assert_eq!(recalled(&mut peers, 4, 0), 0, "the oldest");
        assert_eq!(recalled(&mut peers, 2, 1), 0, "another type of service");
        assert_eq!(recalled(&mut peers, 2, 0), 2, "replaced, and not twice");
        assert_eq!(recalled(&mut peers, 2, 0), 0, "taken out");
        keep(&mut peers, 0, 0, 30);
        assert_eq!(peers.0.iter().filter(|known| known.foreign != 0).count(), 3, "nothing came from it");
    }
}
