//! The port's partitions. P_Keys are looked up by value, because a subnet manager may use any
//! index.

use driver_mlx::PKey;

/// Entries used; no supported card has more.
const ENTRIES: usize = 128;

/// A port's P_Key table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions {
    keys: [PKey; ENTRIES],
    len: u8,
}

impl Partitions {
    /// Fills the table by `read`, which returns the number of entries.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(crate) fn read<E>(read: impl FnOnce(&mut [PKey]) -> Result<usize, E>) -> Result<Self, E> {
        let mut keys = [PKey::new(0); ENTRIES];
        let len = read(&mut keys)?.min(ENTRIES) as u8;
        Ok(Self { keys, len })
    }

    /// A table of the default partition, for tests.
    #[cfg(test)]
    pub(crate) fn default_only() -> Self {
        let mut keys = [PKey::new(0); ENTRIES];
        keys[0] = PKey::DEFAULT;
        Self { keys, len: 1 }
    }

    fn keys(&self) -> &[PKey] {
        self.keys.get(..usize::from(self.len)).unwrap_or_default()
    }

    fn find(&self, key: PKey) -> Option<(u16, PKey)> {
        let found = self.keys().iter().position(|own| *own == key && key.partition() != 0);
        found.map(|index| (index as u16, key))
    }

    /// Returns index and value of the port's entry for the partition of `key`. Prefers a full
    /// member, because limited members do not reach each other (IBTA 10.9.1.1).
    pub fn member_of(&self, key: PKey) -> Option<(u16, PKey)> {
        self.find(key.full_member()).or_else(|| self.find(PKey::new(key.partition())))
    }

    /// Returns the index of the entry that a peer with `key` reaches; `None` in another partition,
    /// or if both are limited members.
    pub fn reached_by(&self, key: PKey) -> Option<u16> {
        let full = key == key.full_member();
        self.member_of(key).filter(|(_, own)| full || *own == own.full_member()).map(|(index, _)| index)
    }

    /// Returns index and value of the entry for the port's own paths and IP. The default partition's
    /// full member comes first, because the subnet administrator is in that partition. The full
    /// member of index 0's partition follows, then index 0.
    pub(crate) fn preferred(&self) -> (u16, PKey) {
        let first = self.keys().first().copied().unwrap_or_default();
        self.find(PKey::DEFAULT).or_else(|| self.find(first.full_member())).unwrap_or((0, first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(keys: &[u16]) -> Partitions {
        let read = |to: &mut [PKey]| {
            to.iter_mut().zip(keys).for_each(|(to, key)| *to = PKey::new(*key));
            Ok::<_, ()>(keys.len())
        };
        Partitions::read(read).expect("never fails")
    }

    #[test]
    fn a_full_member_is_preferred() {
        for (keys, preferred) in [
            (&[0xffff][..], (0, 0xffff)),
            (&[0x7fff, 0xffff], (1, 0xffff)),
            (&[0x7fff, 0, 0x8001, 0xffff], (3, 0xffff)),
            (&[0x8001, 0xffff], (1, 0xffff)),
            (&[0x0001, 0x8002, 0x8001], (2, 0x8001)),
            // A limited member reaches the full ones of the default partition; another partition
            // would not.
            (&[0x7fff, 0x8001], (0, 0x7fff)),
            // A port without partitions yet.
            (&[0, 0], (0, 0)),
            (&[], (0, 0)),
        ] {
            let (index, key) = table(keys).preferred();
            assert_eq!((index, key.get()), preferred, "{keys:x?}");
        }
    }

    #[test]
    fn peers_are_reached_in_their_partition() {
        let table = table(&[0x7fff, 0x8001, 0xffff, 0x0002, 0]);
        let own = |key| table.member_of(PKey::new(key)).map(|(index, _)| index);
        assert_eq!([0xffff, 0x7fff, 0x8001, 1, 0x8002, 2].map(own), [2, 2, 1, 1, 3, 3].map(Some));
        assert_eq!([0x8003, 3, 0, 0x8000].map(own), [None; 4]);
        let reached = |key| table.reached_by(PKey::new(key));
        assert_eq!([0xffff, 0x7fff, 0x8001, 1, 0x8002].map(reached), [2, 2, 1, 1, 3].map(Some));
        // Both would be limited members.
        assert_eq!([2, 3, 0].map(reached), [None; 3]);
    }
}
