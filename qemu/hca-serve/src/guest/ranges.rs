//! Ordered set of disjoint ranges of device addresses. The cost of a look-up, an addition or a
//! removal grows with the logarithm of the number of ranges, in any order of operations.

use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;

/// A value for a range of device addresses.
#[derive(Debug)]
struct Entry<T> {
    start: u64,
    size: u64,
    value: T,
}

/// Values by range of addresses.
#[derive(Debug)]
pub struct Ranges<T> {
    /// Slot of each range, by its start.
    order: BTreeMap<u64, usize>,
    slots: Vec<Option<Entry<T>>>,
    free: Vec<usize>,
    limit: usize,
    /// Slot of the last look-up, because the next one often has the same.
    last: Cell<usize>,
}

impl<T> Ranges<T> {
    /// Creates an empty set of at most `limit` ranges, allocated as needed.
    pub fn new(limit: usize) -> Self {
        Self { order: BTreeMap::new(), slots: Vec::new(), free: Vec::new(), limit, last: Cell::new(0) }
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds `size` addresses from `start` on.
    ///
    /// # Errors
    /// - `EINVAL`: the range is empty or exceeds the address space.
    /// - `EEXIST`: the range overlaps an existing one.
    /// - `ENOSPC`: there are too many ranges.
    pub fn insert(&mut self, start: u64, size: u64, value: T) -> Result<(), Errno> {
        let end = start.checked_add(size).filter(|&end| end > start).ok_or(Errno::INVAL)?;
        if self.len() >= self.limit {
            return Err(Errno::NOSPC);
        }
        let before = self.order.range(..end).next_back().and_then(|(_, slot)| self.entry(*slot));
        if before.is_some_and(|before| before.start.saturating_add(before.size) > start) {
            return Err(Errno::EXIST);
        }
        let entry = Some(Entry { start, size, value });
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        if let Some(place) = self.slots.get_mut(slot) {
            *place = entry;
        }
        self.order.insert(start, slot);
        Ok(())
    }

    /// Removes every range within the given one and returns their values.
    ///
    /// # Errors
    /// `EINVAL`: the given range cuts an existing one, and nothing is removed.
    pub fn remove(&mut self, start: u64, size: u64) -> Result<Vec<T>, Errno> {
        let end = start.saturating_add(size);
        // Only two ranges can be cut: the one that contains the first address, and the last one
        // that starts before the end.
        let cut_at_start = self.order.range(..start).next_back().and_then(|(_, slot)| self.entry(*slot));
        let cut_at_end = self.order.range(..end).next_back().and_then(|(_, slot)| self.entry(*slot));
        if cut_at_start.is_some_and(|entry| entry.start.saturating_add(entry.size) > start)
            || cut_at_end.is_some_and(|entry| entry.start.saturating_add(entry.size) > end)
        {
            return Err(Errno::INVAL);
        }
        let within: Vec<(u64, usize)> = self.order.range(start..end).map(|(at, slot)| (*at, *slot)).collect();
        let mut removed = Vec::with_capacity(within.len());
        for (at, slot) in within {
            let Some(place) = self.slots.get_mut(slot) else { continue };
            removed.extend(place.take().map(|entry| entry.value));
            self.order.remove(&at);
            self.free.push(slot);
        }
        Ok(removed)
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.order.clear();
        self.slots.clear();
        self.free.clear();
    }

    fn entry(&self, slot: usize) -> Option<&Entry<T>> {
        self.slots.get(slot)?.as_ref()
    }

    /// Returns the value whose range contains `address`, the offset in it, and the number of
    /// addresses after this offset.
    pub fn find(&self, address: u64) -> Option<(&T, u64, u64)> {
        let holds = |entry: &&Entry<T>| address.wrapping_sub(entry.start) < entry.size;
        let entry = match self.entry(self.last.get()).filter(holds) {
            Some(entry) => entry,
            None => {
                let slot = *self.order.range(..=address).next_back()?.1;
                let entry = self.entry(slot).filter(holds)?;
                self.last.set(slot);
                entry
            }
        };
        let offset = address - entry.start;
        Some((&entry.value, offset, entry.size - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn remove(ranges: &mut Ranges<char>, start: u64, size: u64) -> Result<(), Errno> {
        ranges.remove(start, size).map(drop)
    }

    #[test]
    fn ranges_do_not_overlap_and_whole_ones_are_removed() {
        let mut ranges = Ranges::new(16);
        ranges.insert(PAGE, 2 * PAGE, 'a').expect("room");
        assert_eq!(ranges.insert(0, 2 * PAGE, 'b'), Err(Errno::EXIST), "overlaps its start");
        assert_eq!(ranges.insert(2 * PAGE, PAGE, 'b'), Err(Errno::EXIST), "lies within");
        assert_eq!(ranges.insert(0, 9 * PAGE, 'b'), Err(Errno::EXIST), "lies around it");
        assert_eq!(ranges.insert(u64::MAX - PAGE + 1, 2 * PAGE, 'b'), Err(Errno::INVAL), "passes the end");
        assert_eq!(ranges.insert(9 * PAGE, 0, 'b'), Err(Errno::INVAL), "empty");
        ranges.insert(4 * PAGE, PAGE, 'b').expect("room");
        for (start, pages) in [(PAGE, 1), (2 * PAGE, 9), (0, 2), (2 * PAGE, 3), (PAGE + 1, 1), (2 * PAGE, 0)]
        {
            assert_eq!(
                remove(&mut ranges, start, pages * PAGE),
                Err(Errno::INVAL),
                "cuts one: {pages} at {start:#x}"
            );
        }
        assert_eq!(ranges.len(), 2, "a range that is cut stays, and so do the others");
        assert_eq!(
            (remove(&mut ranges, 3 * PAGE, PAGE), remove(&mut ranges, 9 * PAGE, PAGE)),
            (Ok(()), Ok(())),
            "nothing there"
        );
        assert_eq!(remove(&mut ranges, 0, 4 * PAGE), Ok(()));
        assert_eq!((ranges.len(), remove(&mut ranges, 4 * PAGE, PAGE), ranges.len()), (1, Ok(()), 0));
        for page in 0..16 {
            ranges.insert(page << 20, PAGE, 'c').expect("room");
        }
        assert_eq!(ranges.insert(99 << 20, PAGE, 'c'), Err(Errno::NOSPC));
        ranges.clear();
        assert!(ranges.find(0).is_none());
    }

    #[test]
    fn what_is_removed_is_not_found_and_its_slot_serves_again() {
        let mut ranges = Ranges::new(4);
        ranges.insert(0, PAGE, 'a').expect("room");
        ranges.insert(PAGE, PAGE, 'b').expect("room");
        assert_eq!(ranges.find(PAGE + 5), Some((&'b', 5, PAGE - 5)));
        remove(&mut ranges, PAGE, PAGE).expect("whole");
        assert_eq!(ranges.find(PAGE + 5), None, "not by the last look-up either");
        ranges.insert(7 * PAGE, PAGE, 'c').expect("room");
        assert_eq!(ranges.slots.len(), 2);
        assert_eq!((ranges.find(7 * PAGE), ranges.find(8 * PAGE)), (Some((&'c', 0, PAGE)), None));
        assert_eq!(ranges.find(0), Some((&'a', 0, PAGE)));
    }

    #[test]
    fn the_last_address_belongs_to_a_range_that_ends_there() {
        let mut ranges = Ranges::new(4);
        ranges.insert(u64::MAX - PAGE, PAGE, 'a').expect("room");
        assert_eq!(ranges.find(u64::MAX - 1), Some((&'a', PAGE - 1, 1)));
        assert_eq!(ranges.find(u64::MAX), None);
        remove(&mut ranges, 0, u64::MAX).expect("all");
        assert_eq!(ranges.len(), 0);
    }
}
