//! Where the numbers of messages begin, so that no message is taken for another: across reconnections, across boots, and when a peer's
//! entry was another peer's in the meantime.

use crate::ids::ConnectionId;
use crate::protocol::Protocol;

/// The number after that of the last message of a peer whose entry another peer has now.
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

impl Protocol<'_> {
    /// The number of the first message to a peer that has no entry: larger than that of any message before, in this boot and in others,
    /// because no node sends a message each nanosecond.
    pub(crate) fn first_sequence(&self) -> u64 {
        let elapsed = self.now.saturating_duration_since(self.started).as_nanos() as u64;
        self.config.generation.first_sequence().saturating_add(elapsed)
    }

    /// Keeps what has to be known of a peer that loses its entry: those of its messages that were here already. Of several peers that
    /// are kept, the one that was kept longest is forgotten.
    pub(crate) fn remember(&mut self, id: ConnectionId) {
        let connection = self.connections.at(id);
        let (foreign, tos, next_sequence) = (connection.foreign, connection.tos, connection.rx.next_sequence);
        if next_sequence == 0 {
            return;
        }
        let known = self.remembered.iter().position(|known| known.foreign == foreign && known.tos == tos);
        let free = known.or_else(|| self.remembered.iter().position(|known| known.foreign == 0));
        let place = free.unwrap_or(0);
        // The rest moves up: the last place is the latest.
        let rest = self.remembered.get_mut(place..).unwrap_or_default();
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
        let known = self.remembered.iter().find(|known| known.foreign == foreign && known.tos == tos);
        known.map_or(0, |known| known.next_sequence)
    }
}
