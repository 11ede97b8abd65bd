//! Device addresses: which the device may use, and which are taken.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The smallest unit of mapping.
pub(crate) const PAGE: u64 = 4096;
/// Large pages of IOMMUs: memory that agrees with its device address modulo this is mapped by few
/// entries.
const LARGE_PAGE: u64 = 2 << 20;
/// Nothing is mapped below: page 0 means nothing to firmware, and devices tend to have other uses
/// for the lowest addresses.
const LOWEST: u64 = LARGE_PAGE;

/// An allocator of device addresses.
#[derive(Debug)]
pub(crate) struct Iovas {
    /// Usable ranges, in order, page-aligned, the last byte included.
    usable: Vec<RangeInclusive<u64>>,
    /// Allocated ranges: bytes by first address.
    taken: BTreeMap<u64, u64>,
}

impl Iovas {
    /// All of `ranges` that is whole pages.
    pub(crate) fn new(ranges: impl IntoIterator<Item = RangeInclusive<u64>>) -> Self {
        let whole = |range: RangeInclusive<u64>| {
            let start = (*range.start()).max(LOWEST).checked_next_multiple_of(PAGE)?;
            // The last page of the address space is left out, because the address after it does not
            // fit into 64 bits.
            let end = (range.end().checked_add(1).unwrap_or(u64::MAX) / PAGE * PAGE).checked_sub(1)?;
            (start < end).then_some(start..=end)
        };
        let mut usable: Vec<_> = ranges.into_iter().filter_map(whole).collect();
        usable.sort_by_key(|range| *range.start());
        Self { usable, taken: BTreeMap::new() }
    }

    /// Takes `len` bytes (whole pages) for memory at `va`, with which the address agrees modulo a
    /// large page if the memory has one. None if there is no room.
    pub(crate) fn take(&mut self, va: u64, len: u64) -> Option<u64> {
        let align = if len >= LARGE_PAGE { LARGE_PAGE } else { PAGE };
        for range in &self.usable {
            let mut at = *range.start();
            while let Some(start) = congruent(at, va, align)
                && let Some(last) = start.checked_add(len - 1)
                && last <= *range.end()
            {
                // The last that begins before the end of this one is the only one that may reach
                // into it.
                match self.taken.range(..=last).next_back() {
                    Some((taken, bytes)) if taken + bytes > start => at = taken + bytes,
                    _ => {
                        self.taken.insert(start, len);
                        return Some(start);
                    }
                }
            }
        }
        None
    }

    /// Returns the bytes of the allocated range that begins at `start`.
    pub(crate) fn len_of(&self, start: u64) -> Option<u64> {
        self.taken.get(&start).copied()
    }

    /// Gives back what begins at `start`; its bytes. None if nothing does.
    pub(crate) fn give_back(&mut self, start: u64) -> Option<u64> {
        self.taken.remove(&start)
    }
}

/// The first address from `at` on that agrees with `va` modulo `align`.
fn congruent(at: u64, va: u64, align: u64) -> Option<u64> {
    at.checked_add(va.wrapping_sub(at) % align)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn addresses_agree_with_memory_and_do_not_overlap() {
        let mut iovas = Iovas::new([0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1]);
        let large = iovas.take(0x7f00_0030_1000, 4 * MIB).unwrap();
        assert_eq!(large % LARGE_PAGE, 0x10_1000);
        let small = iovas.take(0x7f00_0030_1000, PAGE).unwrap();
        assert_eq!((small, small < large), (LOWEST, true), "the gap before is used");
        let next = iovas.take(0x1000, 2 * PAGE).unwrap();
        assert_eq!(next, LOWEST + PAGE);
        assert_eq!(iovas.give_back(small), Some(PAGE));
        assert_eq!(iovas.give_back(small), None);
        assert_eq!(iovas.take(0x5000, PAGE), Some(LOWEST));
    }

    #[test]
    fn nothing_leads_outside_the_ranges() {
        let mut iovas = Iovas::new([4 * MIB + 1..=4 * MIB + 3 * PAGE + 5, u64::MAX - 8191..=u64::MAX]);
        assert_eq!(iovas.take(0, PAGE), Some(4 * MIB + PAGE));
        assert_eq!(iovas.take(0, PAGE), Some(4 * MIB + 2 * PAGE));
        assert_eq!(iovas.take(0, PAGE), Some(u64::MAX - 8191));
        assert_eq!(iovas.take(0, PAGE), None);
        assert!(Iovas::new([0..=100, 4096..=8000]).take(0, PAGE).is_none());
    }

    #[test]
    fn many_ranges_come_and_go() {
        let mut iovas = Iovas::new([LOWEST..=LOWEST + 64 * PAGE - 1]);
        let mut held = Vec::new();
        for round in 0..1000_u64 {
            if round % 3 == 2 {
                let start: u64 = held.remove((round as usize * 7) % held.len());
                assert!(iovas.give_back(start).is_some());
            } else if let Some(start) = iovas.take(round * PAGE, (1 + round % 5) * PAGE) {
                held.push(start);
            }
            let all: Vec<_> = iovas.taken.iter().collect();
            assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= *pair[1].0));
        }
        assert_eq!(held.len(), iovas.taken.len());
    }
}
