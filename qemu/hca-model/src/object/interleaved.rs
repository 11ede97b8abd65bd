//! Interleaved layouts of indirect keys: some parts of other keys in turn, each a stride further in every round (PRM, UMR; the
//! repeat block of a translation list).

use super::translation::{Klm, KlmList, OCTOWORD};
use mlx5_prm::Field;

/// What stands in the place of a key in the block that begins the layout.
const REPEAT: u32 = 0x400;
/// The block: operation, rounds, entries behind it.
const OPERATION: Field = Field::bits(0x04, 31, 0);
const COUNT: Field = Field::bits(0x08, 31, 0);
const ENTRIES: Field = Field::bits(0x0c, 15, 0);
/// An entry: stride, bytes, key, address.
const STRIDE: Field = Field::bits(0x00, 31, 16);
const BYTES: Field = Field::bits(0x00, 15, 0);
const KEY: Field = Field::bits(0x04, 31, 0);
const ADDRESS: Field = Field::quad(0x08);

/// Whether `list` begins with the block of an interleaved layout.
pub(super) fn is_interleaved(list: &[u8]) -> bool {
    list.len() >= OCTOWORD && OPERATION.get32(list) == REPEAT
}

/// An interleaved layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interleaved {
    /// Rounds.
    count: u32,
    /// One round's parts.
    round: KlmList,
    /// How much further each part is in the next round.
    strides: Vec<u16>,
}

impl Interleaved {
    /// The layout that `list` describes; `None` when it holds fewer entries than it says.
    #[must_use]
    pub fn parse(list: &[u8]) -> Option<Self> {
        let (head, entries) = list.split_at_checked(OCTOWORD)?;
        let len = ENTRIES.get32(head) as usize * OCTOWORD;
        let (mut round, mut strides) = (Vec::new(), Vec::new());
        for entry in entries.get(..len)?.chunks_exact(OCTOWORD) {
            round.push(Klm {
                byte_count: BYTES.get32(entry),
                key: KEY.get32(entry),
                address: ADDRESS.get(entry),
            });
            strides.push(STRIDE.get32(entry) as u16);
        }
        Some(Self { count: COUNT.get32(head), round: KlmList::new(round), strides })
    }

    /// Bytes of all rounds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // At most 2^16 entries of 2^16 bytes in 2^32 rounds; a sum of 2^64 is none that a key can have.
        self.round.bytes().saturating_mul(u64::from(self.count))
    }

    /// The parts of one round.
    #[must_use]
    pub fn parts(&self) -> &[Klm] {
        self.round.entries()
    }

    /// Each part with all that it takes of its key over the rounds: from its address on, and how many bytes.
    pub(super) fn reach(&self) -> impl Iterator<Item = (Klm, u64)> {
        let last = u64::from(self.count.saturating_sub(1));
        self.parts().iter().zip(&self.strides).map(move |(part, stride)| {
            (*part, (last * u64::from(*stride)).saturating_add(part.byte_count.into()))
        })
    }

    /// Where byte `offset` is: the key, the address under it, and how many bytes follow there.
    pub(super) fn find(&self, offset: u64) -> Option<(u32, u64, u64)> {
        let len = self.round.bytes();
        let round = offset.checked_div(len).filter(|round| *round < u64::from(self.count))?;
        let index = self.round.index(offset % len)?;
        let (part, skip) = self.round.find(offset % len)?;
        let stride = u64::from(*self.strides.get(index)?);
        let address = part.address.wrapping_add(round * stride).wrapping_add(skip);
        Some((part.key, address, u64::from(part.byte_count) - skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: u32, entries: &[(u16, u16, u32, u64)]) -> Vec<u8> {
        let mut list = vec![0; OCTOWORD];
        OPERATION.set(&mut list, REPEAT);
        COUNT.set(&mut list, count);
        ENTRIES.set(&mut list, entries.len() as u32);
        for (stride, bytes, key, address) in entries {
            let mut entry = [0; OCTOWORD];
            STRIDE.set(&mut entry, *stride);
            BYTES.set(&mut entry, *bytes);
            KEY.set(&mut entry, *key);
            ADDRESS.set(&mut entry, *address);
            list.extend(entry);
        }
        list
    }

    #[test]
    fn rounds_go_on_by_their_strides() {
        let list = list(3, &[(10, 8, 1, 0x1000), (32, 4, 2, 0x2000)]);
        assert!(is_interleaved(&list));
        let layout = Interleaved::parse(&list).expect("whole");
        assert_eq!(layout.bytes(), 36);
        assert_eq!(layout.find(0), Some((1, 0x1000, 8)));
        assert_eq!(layout.find(9), Some((2, 0x2001, 3)));
        assert_eq!(layout.find(12), Some((1, 0x100a, 8)));
        assert_eq!(layout.find(35), Some((2, 0x2043, 1)));
        assert_eq!(layout.find(36), None);
        let reach: Vec<u64> = layout.reach().map(|(_, bytes)| bytes).collect();
        assert_eq!(reach, [28, 68]);
    }

    #[test]
    fn lists_that_lie_or_are_empty_lead_nowhere() {
        let mut short = list(2, &[(1, 1, 1, 0), (1, 1, 1, 0)]);
        short.truncate(2 * OCTOWORD);
        assert_eq!(Interleaved::parse(&short), None);
        for (count, entries) in [(0, vec![(8, 8, 1, 0)]), (5, vec![]), (u32::MAX, vec![(8, 0, 1, 0)])] {
            let layout = Interleaved::parse(&list(count, &entries)).expect("whole");
            assert_eq!((layout.bytes(), layout.find(0)), (0, None));
        }
        let huge = list(u32::MAX, &[(u16::MAX, u16::MAX, 1, 0)]);
        let layout = Interleaved::parse(&huge).expect("whole");
        let last = layout.bytes() - 1;
        assert_eq!(layout.find(last).map(|(_, _, left)| left), Some(1));
        assert!(!is_interleaved(&[]) && !is_interleaved(&[0; OCTOWORD]));
    }
}
