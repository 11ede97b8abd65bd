//! Datagrams that wait until their sender's MAC address is resolved.

use ib_mgmt::mad::{Mad, MadAddress};

/// Datagrams that wait at once. The oldest gives way, so that senders that do not exist cannot keep others out.
const HELD: usize = 8;

/// Datagrams in the order in which they came.
#[derive(Debug)]
pub(crate) struct Held {
    entries: [Option<(Mad, MadAddress)>; HELD],
    first: usize,
    len: usize,
}

impl Held {
    pub(crate) const fn new() -> Self {
        Self { entries: [const { None }; HELD], first: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a datagram. Returns whether the oldest was dropped for it.
    pub(crate) fn add(&mut self, mad: Mad, from: MadAddress) -> bool {
        let dropped = self.len == HELD && self.take().is_some();
        if let Some(entry) = self.entries.get_mut((self.first + self.len) % HELD) {
            *entry = Some((mad, from));
            self.len += 1;
        }
        dropped
    }

    /// Takes the oldest.
    pub(crate) fn take(&mut self) -> Option<(Mad, MadAddress)> {
        let taken = self.entries.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % HELD;
        self.len -= 1;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_types::Lid;
    use std::vec::Vec;

    #[test]
    fn the_oldest_gives_way() {
        let mut held = Held::new();
        for lid in 1..=HELD as u16 + 3 {
            let dropped = held.add(Mad::zeroed(), MadAddress::local(Lid::new(lid)));
            assert_eq!(dropped, lid > HELD as u16);
        }
        let lids: Vec<u16> = core::iter::from_fn(|| held.take()).map(|(_, from)| from.lid.get()).collect();
        assert_eq!(lids, (4..=HELD as u16 + 3).collect::<Vec<_>>());
        assert_eq!((held.len(), held.take().is_none()), (0, true));
        assert!(!held.add(Mad::zeroed(), MadAddress::local(Lid::new(1))));
    }
}
