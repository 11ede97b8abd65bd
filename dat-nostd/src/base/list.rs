//! Lists through the slots of a table: what is due is found without a look at everything else. An object carries its link, so that
//! being in a list takes no other memory and an object is in each list at most once.

use core::marker::PhantomData;

use crate::base::handle::Typed;
use crate::base::table::Table;

/// No neighbour in this direction. (0 is "in no list", so that an empty slot is all zero bytes.)
const END: u32 = u32::MAX;

/// An object's place in a list `L`: its neighbours' slots plus one, or [`END`]; 0 while it is in none.
#[derive(Debug)]
pub(crate) struct Link<L> {
    next: u32,
    previous: u32,
    list: PhantomData<L>,
}

impl<L> Link<L> {
    /// In no list.
    pub(crate) const OUT: Self = Self { next: 0, previous: 0, list: PhantomData };

    fn is_in(&self) -> bool {
        self.next != 0
    }
}

/// What can be in a list `L`.
pub(crate) trait Linked<L> {
    fn link(&mut self) -> &mut Link<L>;
}

/// Objects with this field can be in the list.
macro_rules! linked {
    ($object:ident $(<$b:ident>)?, $list:ty, $($link:ident).+) => {
        impl$(<$b: driver_mlx::Bar>)? $crate::base::list::Linked<$list> for $object$(<$b>)? {
            fn link(&mut self) -> &mut $crate::base::list::Link<$list> {
                &mut self.$($link).+
            }
        }
    };
}
pub(crate) use linked;

/// A list of objects of one table, first in first out.
#[derive(Debug)]
pub(crate) struct List<L> {
    /// Slots plus one; 0 if the list is empty.
    first: u32,
    last: u32,
    len: u32,
    list: PhantomData<L>,
}

impl<L> Default for List<L> {
    fn default() -> Self {
        Self { first: 0, last: 0, len: 0, list: PhantomData }
    }
}

impl<L> List<L> {
    /// Objects in it.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an object at the end; nothing happens if it is in the list, or there is none in this slot.
    pub(crate) fn push<H: Typed, T: Linked<L>>(&mut self, table: &mut Table<'_, H, T>, slot: u16) {
        let Some(link) = table.at_mut(slot).map(Linked::link) else { return };
        if link.is_in() {
            return;
        }
        let place = u32::from(slot) + 1;
        (link.next, link.previous) = (END, if self.last == 0 { END } else { self.last });
        match neighbour(table, self.last) {
            Some(last) => last.next = place,
            None => self.first = place,
        }
        self.last = place;
        self.len += 1;
    }

    /// Takes an object out; nothing happens if it is not in the list.
    pub(crate) fn remove<H: Typed, T: Linked<L>>(&mut self, table: &mut Table<'_, H, T>, slot: u16) {
        let Some(link) = table.at_mut(slot).map(Linked::link) else { return };
        if !link.is_in() {
            return;
        }
        let (next, previous) = (link.next, link.previous);
        *link = Link::OUT;
        match neighbour(table, next) {
            Some(link) => link.previous = previous,
            None => self.last = if previous == END { 0 } else { previous },
        }
        match neighbour(table, previous) {
            Some(link) => link.next = next,
            None => self.first = if next == END { 0 } else { next },
        }
        self.len = self.len.saturating_sub(1);
    }

    /// Takes the first object out; its slot.
    pub(crate) fn pop<H: Typed, T: Linked<L>>(&mut self, table: &mut Table<'_, H, T>) -> Option<u16> {
        let slot = self.first.checked_sub(1)? as u16;
        self.remove(table, slot);
        Some(slot)
    }

    /// Moves the first object to the end; its slot. As many times as the list is long, it comes past every object, whatever a visit
    /// takes out or puts in.
    pub(crate) fn rotate<H: Typed, T: Linked<L>>(&mut self, table: &mut Table<'_, H, T>) -> Option<u16> {
        let slot = self.first.checked_sub(1)? as u16;
        if self.len > 1 {
            self.remove(table, slot);
            self.push(table, slot);
        }
        Some(slot)
    }
}

fn neighbour<'t, L, H: Typed, T: Linked<L>>(
    table: &'t mut Table<'_, H, T>,
    place: u32,
) -> Option<&'t mut Link<L>> {
    let slot = place.checked_sub(1).filter(|_| place != END)?;
    table.at_mut(slot as u16).map(Linked::link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::handle::PzHandle;
    use crate::base::table::Slot;
    use std::vec::Vec;

    struct Due;

    struct Object(Link<Due>);

    impl Linked<Due> for Object {
        fn link(&mut self) -> &mut Link<Due> {
            &mut self.0
        }
    }

    fn drain(list: &mut List<Due>, table: &mut Table<'_, PzHandle, Object>) -> Vec<u16> {
        core::iter::from_fn(|| list.pop(table)).collect()
    }

    #[test]
    fn first_in_first_out_and_each_once() {
        let mut slots = [const { Slot::EMPTY }; 6];
        let mut table: Table<'_, PzHandle, Object> = Table::new(&mut slots);
        for _ in 0..5 {
            assert!(table.insert(Object(Link::OUT)).is_ok());
        }
        let mut list = List::default();
        for slot in [3, 0, 3, 4, 1, 0, 5] {
            list.push(&mut table, slot);
        }
        assert_eq!(list.len(), 4, "slot 5 is vacant");
        for slot in [4, 4, 2] {
            list.remove(&mut table, slot);
        }
        assert_eq!(drain(&mut list, &mut table), [3, 0, 1]);
        assert!(list.is_empty());
        // At either end, and alone.
        for gone in [0, 1, 2] {
            for slot in [0, 1, 2] {
                list.push(&mut table, slot);
            }
            list.remove(&mut table, gone);
            list.push(&mut table, 4);
            let left: Vec<u16> = [0, 1, 2, 4].into_iter().filter(|slot| *slot != gone).collect();
            assert_eq!(drain(&mut list, &mut table), left);
        }
        list.push(&mut table, 2);
        list.remove(&mut table, 2);
        assert_eq!(list.pop(&mut table), None);
    }

    #[test]
    fn a_round_comes_past_all() {
        let mut slots = [const { Slot::EMPTY }; 4];
        let mut table: Table<'_, PzHandle, Object> = Table::new(&mut slots);
        let mut list = List::default();
        for slot in 0..4 {
            assert!(table.insert(Object(Link::OUT)).is_ok());
            list.push(&mut table, slot);
        }
        // The first visit takes itself and another out.
        let mut seen = Vec::new();
        for _ in 0..list.len() {
            let Some(slot) = list.rotate(&mut table) else { break };
            seen.push(slot);
            if slot == 0 {
                list.remove(&mut table, 0);
                list.remove(&mut table, 2);
            }
        }
        assert_eq!(seen, [0, 1, 3, 1]);
        assert_eq!(drain(&mut list, &mut table), [3, 1]);
    }
}
