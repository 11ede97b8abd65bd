//! What is behind a memory key: page lists and parts of other keys (PRM, software context formats).

use super::interleaved::Interleaved;
use crate::guest_memory::DmaFault;

/// Bytes of an octoword, the unit of translation lists.
pub const OCTOWORD: usize = 16;

/// The low `log` bits.
pub(super) const fn mask(log: u32) -> u64 {
    (1 << log) - 1
}

/// How a key turns addresses into device addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The address is the device address.
    Physical,
    /// The device's own memory; addresses count from its first byte.
    Device {
        /// Where in the device's memory.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// A list of pages of `1 << log_page_size` bytes.
    Mtt {
        /// Device address of each page; the low bits carry the page's own access rights.
        entries: Vec<u64>,
        /// log2 of bytes.
        log_page_size: u32,
        /// Whether the low two bits of an entry are its rights (`create_mkey_in.pg_access`).
        page_access: bool,
    },
    /// Parts of other keys, one after the other.
    Klm(KlmList),
    /// Parts of other keys in turn, in rounds. What a UMR makes of a KLM list, and a list again.
    Interleaved(Interleaved),
    /// Equal parts of `1 << log_entity_size` bytes of other keys.
    Ksm {
        /// The parts.
        entries: Vec<Klm>,
        /// log2 of bytes.
        log_entity_size: u32,
    },
}

impl Translation {
    /// The entries of an indirect key that name another key.
    pub(super) fn references(&self) -> impl Iterator<Item = u32> {
        let (klms, ksms): (&[Klm], &[Klm]) = match self {
            Self::Klm(list) => (list.entries(), &[]),
            Self::Interleaved(layout) => (layout.parts(), &[]),
            Self::Ksm { entries, .. } => (&[], entries),
            Self::Physical | Self::Device { .. } | Self::Mtt { .. } => (&[], &[]),
        };
        klms.iter().filter(|klm| klm.byte_count != 0).chain(ksms).map(|klm| klm.key)
    }
}

/// A KLM list, with what finds an address in it without a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KlmList {
    entries: Vec<Klm>,
    /// Bytes of the list up to the end of each entry.
    ends: Vec<u64>,
}

impl KlmList {
    /// A list of `entries`.
    #[must_use]
    pub fn new(entries: Vec<Klm>) -> Self {
        let mut list = Self { entries, ends: Vec::new() };
        list.sum_from(0);
        list
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[Klm] {
        &self.entries
    }

    /// Bytes of all entries together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes of the entries from `first` up to `end`.
    pub(super) fn bytes_of(&self, first: usize, end: usize) -> u64 {
        let before = |index: usize| match index.min(self.ends.len()).checked_sub(1) {
            Some(last) => self.ends.get(last).copied().unwrap_or(0),
            None => 0,
        };
        before(end).saturating_sub(before(first))
    }

    /// Changes the entries from `first` on.
    pub(super) fn change(&mut self, first: usize, change: impl FnOnce(&mut Vec<Klm>)) {
        change(&mut self.entries);
        self.sum_from(first);
    }

    fn sum_from(&mut self, first: usize) {
        self.ends.truncate(first);
        let mut end = self.bytes();
        for klm in self.entries.get(self.ends.len()..).unwrap_or_default() {
            // At most 2^32 entries of less than 2^32 bytes.
            end += u64::from(klm.byte_count);
            self.ends.push(end);
        }
    }

    /// The number of the entry that holds byte `offset`.
    pub(super) fn index(&self, offset: u64) -> Option<usize> {
        Some(self.ends.partition_point(|end| *end <= offset)).filter(|index| *index < self.ends.len())
    }

    /// The entry that holds byte `offset`, and how many bytes of it lie before.
    pub(super) fn find(&self, offset: u64) -> Option<(&Klm, u64)> {
        let index = self.index(offset)?;
        let (klm, end) = (self.entries.get(index)?, self.ends.get(index)?);
        Some((klm, u64::from(klm.byte_count).saturating_sub(end - offset)))
    }
}

/// One entry of a KLM or KSM list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Klm {
    /// Bytes (KLM only).
    pub(crate) byte_count: u32,
    /// The key they belong to.
    pub(crate) key: u32,
    /// Their address under that key.
    pub(crate) address: u64,
}

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Device address, or the place in the device's own memory.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// The device's own memory.
    pub(crate) own: bool,
}

impl Segment {
    /// Returns the address in the guest's memory.
    ///
    /// # Errors
    /// [`DmaFault`]: the range is in the device's own memory.
    #[inline]
    pub(crate) fn in_guest(&self) -> Result<u64, DmaFault> {
        if self.own {
            Err(DmaFault { address: self.address, len: self.len as usize })
        } else {
            Ok(self.address)
        }
    }
}

/// What translations found, and what they cost.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    /// The memory, in order.
    pub(crate) list: Vec<Segment>,
    /// Keys and list entries that were looked at.
    pub(crate) steps: u64,
}

impl Segments {
    /// Returns the steps since the last call.
    pub(crate) fn take_steps(&mut self) -> u64 {
        std::mem::take(&mut self.steps)
    }

    /// Adds a range of the host's memory, joined to the last one where they touch.
    pub(crate) fn push(&mut self, address: u64, len: u64) {
        self.add(Segment { address, len, own: false });
    }

    /// Adds a range of the device's own.
    pub(super) fn push_own(&mut self, address: u64, len: u64) {
        self.add(Segment { address, len, own: true });
    }

    fn add(&mut self, segment: Segment) {
        let Segment { address, len, own } = segment;
        if let Some(last) = self.list.last_mut()
            && last.own == own
            && last.address.wrapping_add(last.len) == address
        {
            last.len += len;
            return;
        }
        if len > 0 {
            self.list.push(segment);
        }
    }

    /// One more look at a key or an entry. Answers whether it is within what one translation may take.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        self.steps += 1;
        self.steps <= MAX_STEPS
    }
}

/// Looks at keys and entries that one translation may take: twice what a packet of 4096 single bytes behind the deepest nesting
/// takes.
const MAX_STEPS: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_finds_its_bytes_and_steps_over_empty_entries() {
        let klm = |byte_count, key| Klm { byte_count, key, address: 0x1000 };
        let mut list = KlmList::new(vec![klm(0, 1), klm(16, 2), klm(0, 3), klm(0, 4), klm(4, 5), klm(0, 6)]);
        let found = |list: &KlmList, offset| list.find(offset).map(|(klm, skip)| (klm.key, skip));
        assert_eq!([found(&list, 0), found(&list, 15)], [Some((2, 0)), Some((2, 15))]);
        assert_eq!(
            [found(&list, 16), found(&list, 19), found(&list, 20)],
            [Some((5, 0)), Some((5, 3)), None]
        );
        assert_eq!((list.bytes(), list.bytes_of(1, 4), list.bytes_of(2, 99)), (20, 16, 4));
        list.change(4, |entries| entries[4] = klm(u32::MAX, 7));
        assert_eq!((found(&list, 19), list.bytes()), (Some((7, 3)), 16 + u64::from(u32::MAX)));
        assert_eq!(KlmList::default().find(0), None);
    }
}
