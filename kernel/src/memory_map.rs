//! Usable memory: the loader's map reduced to whole pages of RAM, from which regions are taken.

use crate::pvh::{MemoryMapEntry, TYPE_RAM};
use heapless::Vec;

/// Page size of the map's bounds in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Most separate ranges kept.
pub const MAX_RANGES: usize = 64;

/// Physical addresses `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
}

impl Range {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Returns whether an address is in both ranges.
    #[must_use]
    pub const fn overlaps(&self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The map has more separate ranges than [`MAX_RANGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRanges;

impl core::fmt::Display for TooManyRanges {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "memory: the map has more than {MAX_RANGES} separate ranges")
    }
}

impl core::error::Error for TooManyRanges {}

/// Disjoint ranges of usable RAM, in whole pages, lowest first.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    ranges: Vec<Range, MAX_RANGES>,
}

impl MemoryMap {
    /// No memory at all.
    #[must_use]
    pub const fn new() -> Self {
        MemoryMap { ranges: Vec::new() }
    }

    /// Takes the RAM entries, cut to whole pages, less every entry of another type that overlaps them.
    ///
    /// # Errors
    /// [`TooManyRanges`].
    pub fn from_entries(
        entries: impl Iterator<Item = MemoryMapEntry> + Clone,
    ) -> Result<MemoryMap, TooManyRanges> {
        let mut map = MemoryMap::new();
        for entry in entries.clone().filter(|entry| entry.kind == TYPE_RAM) {
            let end = entry.address.saturating_add(entry.len);
            let start = entry.address.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
            map.insert(Range { start, end: end - end % PAGE_BYTES })?;
        }
        for entry in entries.filter(|entry| entry.kind != TYPE_RAM) {
            map.remove(Range { start: entry.address, end: entry.address.saturating_add(entry.len) })?;
        }
        Ok(map)
    }

    /// The ranges, lowest first.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Whether all of `range` is in one of the ranges.
    #[must_use]
    pub fn contains(&self, range: Range) -> bool {
        self.ranges.iter().any(|free| free.start <= range.start && range.end <= free.end)
    }

    /// Bytes in all ranges together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.len()))
    }

    /// Adds a range, joining it with those it touches.
    fn insert(&mut self, mut new: Range) -> Result<(), TooManyRanges> {
        if new.is_empty() {
            return Ok(());
        }
        self.ranges.retain(|old| {
            let apart = old.end < new.start || new.end < old.start;
            if !apart {
                new.start = new.start.min(old.start);
                new.end = new.end.max(old.end);
            }
            apart
        });
        let at = self.ranges.iter().position(|old| old.start > new.start).unwrap_or(self.ranges.len());
        self.ranges.insert(at, new).map_err(|_| TooManyRanges)
    }

    /// Takes away every page that `hole` touches.
    ///
    /// # Errors
    /// [`TooManyRanges`] when a range would have to be split and there is no room.
    pub fn remove(&mut self, hole: Range) -> Result<(), TooManyRanges> {
        if hole.is_empty() {
            return Ok(());
        }
        let start = hole.start - hole.start % PAGE_BYTES;
        let end = hole.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let mut left = Vec::<Range, MAX_RANGES>::new();
        for range in &self.ranges {
            let below = Range { start: range.start, end: range.end.min(start) };
            let above = Range { start: range.start.max(end), end: range.end };
            for part in [below, above] {
                if !part.is_empty() {
                    left.push(part).map_err(|_| TooManyRanges)?;
                }
            }
        }
        self.ranges = left;
        Ok(())
    }

    /// Takes `len` bytes at the lowest address that is a multiple of `align` (a power of two) and at least
    /// `lowest`. Nothing when no range is large enough, or the rest could not be kept.
    pub fn take(&mut self, len: u64, align: u64, lowest: u64) -> Option<Range> {
        let len = len.checked_next_multiple_of(PAGE_BYTES)?;
        let found = self.ranges.iter().find_map(|range| {
            let start = range.start.max(lowest).checked_next_multiple_of(align.max(PAGE_BYTES))?;
            let end = start.checked_add(len)?;
            (end <= range.end).then_some(Range { start, end })
        })?;
        self.remove(found).ok()?;
        Some(found)
    }

    /// The longest run of memory at or above `lowest`, in bytes: what an error message should offer.
    #[must_use]
    pub fn longest_bytes(&self, lowest: u64) -> u64 {
        self.ranges.iter().map(|range| range.end.saturating_sub(range.start.max(lowest))).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ram(address: u64, len: u64) -> MemoryMapEntry {
        MemoryMapEntry { address, len, kind: TYPE_RAM }
    }

    const fn reserved(address: u64, len: u64) -> MemoryMapEntry {
        MemoryMapEntry { address, len, kind: 2 }
    }

    const fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    /// q35, -m 512, with the 12 GiB that must not be taken for RAM.
    const Q35: [MemoryMapEntry; 6] = [
        ram(0, 0x9fc00),
        reserved(0x9fc00, 0x400),
        reserved(0xf0000, 0x10000),
        ram(0x100000, 0x1fee_0000),
        reserved(0x1ffe_0000, 0x20000),
        reserved(0xfd_0000_0000, 0x3_0000_0000),
    ];

    #[test]
    fn q35() {
        let map = MemoryMap::from_entries(Q35.iter().copied()).unwrap();
        assert_eq!(map.ranges(), [range(0, 0x9f000), range(0x100000, 0x1ffe_0000)]);
        assert_eq!(map.total_bytes(), 0x9f000 + 0x1fee_0000);
        assert!(map.contains(range(0x100000, 0x1ffe_0000)) && map.contains(range(0x200000, 0x300000)));
        assert!(!map.contains(range(0x9e000, 0x101000)) && !map.contains(range(0xff000, 0x101000)));
    }

    #[test]
    fn overlaps_and_neighbours() {
        let entries = [ram(0x5000, 0x2000), ram(0x1000, 0x4000), ram(0x6800, 0x2000), reserved(0x3800, 0x10)];
        let map = MemoryMap::from_entries(entries.iter().copied()).unwrap();
        assert_eq!(map.ranges(), [range(0x1000, 0x3000), range(0x4000, 0x8000)]);
    }

    #[test]
    fn take_is_lowest_aligned_and_taken_once() {
        let mut map = MemoryMap::from_entries(Q35.iter().copied()).unwrap();
        map.remove(range(0x20_0000, 0x34_5678)).unwrap();
        let first = map.take(64 << 20, 2 << 20, 1 << 20).unwrap();
        assert_eq!(first, range(0x40_0000, 0x440_0000));
        assert_eq!(map.take(4096, 4096, 1 << 20), Some(range(0x10_0000, 0x10_1000)));
        assert_eq!(map.take(64 << 20, 4096, 0x20_0000), Some(range(0x440_0000, 0x840_0000)));
        assert_eq!(map.take(512 << 20, 4096, 0), None);
        assert_eq!(map.longest_bytes(0), 0x1ffe_0000 - 0x840_0000);
    }

    #[test]
    fn hostile_maps() {
        let ends = [ram(u64::MAX - 10, 10), ram(0xffff_ffff_ffff_f000, u64::MAX), ram(0x1001, 0xffe)];
        assert_eq!(MemoryMap::from_entries(ends.iter().copied()).unwrap().total_bytes(), 0);
        let many = (0..65).map(|i| ram(i * 0x2000, 0x1000));
        assert_eq!(MemoryMap::from_entries(many).unwrap_err(), TooManyRanges);
    }
}
