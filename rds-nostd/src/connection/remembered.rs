//! Peers whose entries others have now.

/// The number after that of the last message of such a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remembered {
    foreign: u128,
    next_sequence: u64,
    tos: u8,
}

impl Remembered {
    /// All zero bytes: no peer has the address `::`.
    pub(crate) const NOBODY: Self = Self { foreign: 0, next_sequence: 0, tos: 0 };
}

/// All of them that are remembered, longest first.
pub(crate) struct RememberedPeers<'s>(&'s mut [Remembered]);

impl<'s> RememberedPeers<'s> {
    pub(crate) fn new(entries: &'s mut [Remembered]) -> Self {
        entries.fill(Remembered::NOBODY);
        Self(entries)
    }

    /// Keeps what has to be known of a peer that loses its entry: those of its messages that were here already. Of several peers that
    /// are kept, the one that was kept longest is forgotten.
    pub(crate) fn keep(&mut self, foreign: u128, tos: u8, next_sequence: u64) {
        if next_sequence == 0 {
            return;
        }
        let known = self.0.iter().position(|known| known.foreign == foreign && known.tos == tos);
        let free = known.or_else(|| self.0.iter().position(|known| known.foreign == 0));
        let place = free.unwrap_or(0);
        // The rest moves up: the last place is the latest.
        let rest = self.0.get_mut(place..).unwrap_or_default();
        let count = rest.iter().take_while(|known| known.foreign != 0).count();
        if count > 1 {
            rest.get_mut(..count).unwrap_or_default().rotate_left(1);
        }
        if let Some(entry) = rest.get_mut(count.saturating_sub(1)) {
            *entry = Remembered { foreign, next_sequence, tos };
        }
    }

    /// The number that a peer's next message has at least, if it comes again.
    pub(crate) fn recall(&self, foreign: u128, tos: u8) -> u64 {
        let known = self.0.iter().find(|known| known.foreign == foreign && known.tos == tos);
        known.map_or(0, |known| known.next_sequence)
    }
}
