//! Numbered objects of one kind.

/// Objects by number. Numbers are handed out in ascending order and re-used only after the whole range was, so that a
/// number just destroyed is not at once somebody else's.
#[derive(Debug)]
pub struct Table<T> {
    first: u32,
    limit: u32,
    next: u32,
    count: u32,
    slots: Vec<Option<Box<T>>>,
}

impl<T> Table<T> {
    /// A table whose numbers are `first` up to `first + limit - 1`.
    #[must_use]
    pub const fn new(first: u32, limit: u32) -> Self {
        Self { first, limit, next: 0, count: 0, slots: Vec::new() }
    }

    /// Number of objects.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// The number that the next [`insert`](Self::insert) will use, `None` when the table is full.
    #[must_use]
    pub fn vacant(&self) -> Option<u32> {
        if self.count >= self.limit {
            return None;
        }
        let free = |slot: u32| self.slots.get(slot as usize).is_none_or(Option::is_none);
        let slot = (self.next..self.limit).chain(0..self.next.min(self.limit)).find(|&slot| free(slot))?;
        Some(self.first + slot)
    }

    /// Adds the object that `make` gives for its number; `None` when the table is full.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let number = self.vacant()?;
        let slot = (number - self.first) as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        let place = self.slots.get_mut(slot)?;
        *place = Some(Box::new(make(number)));
        self.count += 1;
        self.next = (slot as u32 + 1) % self.limit.max(1);
        Some(number)
    }

    /// The object `number`.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number.checked_sub(self.first)? as usize)?.as_deref()
    }

    /// The object `number`, to change it.
    #[must_use]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number.checked_sub(self.first)? as usize)?.as_deref_mut()
    }

    /// Whether `number` exists.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    /// Takes the object `number` out.
    pub fn remove(&mut self, number: u32) -> Option<Box<T>> {
        let slot = number.checked_sub(self.first)? as usize;
        let object = self.slots.get_mut(slot)?.take()?;
        self.count -= 1;
        Some(object)
    }

    /// All objects with their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().zip(self.first..).filter_map(|(slot, number)| Some((number, slot.as_deref()?)))
    }

    /// All objects with their numbers, ascending, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots
            .iter_mut()
            .zip(self.first..)
            .filter_map(|(slot, number)| Some((number, slot.as_deref_mut()?)))
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.count = 0;
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_number_comes_back_last() {
        let mut table = Table::new(0x10, 3);
        assert_eq!(table.insert(|n| n), Some(0x10));
        assert_eq!(table.insert(|n| n), Some(0x11));
        assert!(table.remove(0x10).is_some());
        assert!(table.remove(0x10).is_none());
        assert_eq!(table.insert(|n| n), Some(0x12));
        assert_eq!(table.insert(|n| n), Some(0x10));
        assert_eq!(table.insert(|n| n), None);
        assert_eq!(table.iter().map(|(n, _)| n).collect::<Vec<_>>(), [0x10, 0x11, 0x12]);
        assert_eq!(table.get(3), None);
    }
}
