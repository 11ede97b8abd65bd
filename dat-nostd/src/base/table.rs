//! Tables of objects: slots with generations, so that a handle outlives its object without harm.

use core::marker::PhantomData;

use crate::base::handle::{IaHandle, Typed};
use crate::base::ret::DatReturn;

/// A slot's content. `repr(u8)` keeps the vacant form all zero bytes, so that static storage lies in `.bss`.
#[derive(Debug)]
#[repr(u8)]
enum Content<T> {
    Vacant = 0,
    Occupied(T) = 1,
}

/// A slot of a table. Its first cache line holds the handle and the object's first 48 bytes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot<T> {
    /// The bits of the handle of the present or the last object here; 0 before the first. One comparison with a handle checks its
    /// kind, adapter, slot and generation.
    handle: u64,
    content: Content<T>,
    /// The consumer's context of the object here.
    context: u64,
    /// The next free slot plus one, while vacant and in the free list.
    next: u32,
}

impl<T> Slot<T> {
    /// An unused slot; all zero bytes.
    pub const EMPTY: Slot<T> = Slot { handle: 0, content: Content::Vacant, context: 0, next: 0 };

    /// Bytes of an object in the cache line that its place begins.
    pub(crate) const HOT: usize = 64 - size_of::<u64>() - align_of::<Content<u64>>();

    /// Of the present or the last object here; 0 before the first.
    fn generation(&self) -> u32 {
        crate::base::handle::Handle::from_bits(self.handle).generation()
    }
}

/// What belongs to an IA.
pub(crate) trait OfIa {
    /// The IA that it was made by.
    fn ia(&self) -> IaHandle;
}

/// Objects with a field `ia` are of that IA.
macro_rules! of_ia {
    ($object:ident $(<$b:ident>)?) => {
        impl$(<$b: driver_mlx::Bar>)? $crate::base::table::OfIa for $object$(<$b>)? {
            #[inline]
            fn ia(&self) -> $crate::base::handle::IaHandle {
                self.ia
            }
        }
    };
}
pub(crate) use of_ia;

/// The handle of an object, read from the table where it is needed: a register less in between.
pub(crate) struct HandleRef<'a, H> {
    bits: &'a u64,
    kind: PhantomData<H>,
}

impl<H: Typed> HandleRef<'_, H> {
    /// Returns the handle.
    #[inline]
    pub(crate) fn get(&self) -> H {
        H::from_bits(*self.bits)
    }
}

/// Objects of one kind. Freed slots are used again in the order of their freeing (as late as possible). A lookup touches the first
/// 16 bytes.
#[repr(C)]
pub(crate) struct Table<'s, H, T> {
    slots: &'s mut [Slot<T>],
    adapter: u8,
    /// Slots from here on were never used.
    fresh: u32,
    /// First and last free slot, plus one; 0 = none.
    free_first: u32,
    free_last: u32,
    count: u32,
    kind: PhantomData<H>,
}

impl<'s, H: Typed, T> Table<'s, H, T> {
    /// At most 65,536 places are used.
    pub(crate) fn new(slots: &'s mut [Slot<T>]) -> Self {
        Self { slots, adapter: 0, fresh: 0, free_first: 0, free_last: 0, count: 0, kind: PhantomData }
    }

    /// The adapter of handles from now on. Nothing may exist, unless it is the same.
    pub(crate) fn set_adapter(&mut self, adapter: u8) {
        debug_assert!(self.count == 0 || self.adapter == adapter);
        self.adapter = adapter;
    }

    /// How many objects can exist.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len().min(1 << 16)
    }

    /// How many exist.
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Puts an object in; gives it back if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<H, T> {
        let index = if (self.fresh as usize) < self.capacity() {
            self.fresh += 1;
            self.fresh - 1
        } else if self.free_first != 0 {
            let index = self.free_first - 1;
            let next = self.slots.get(index as usize).map_or(0, |slot| slot.next);
            self.free_first = next;
            if next == 0 {
                self.free_last = 0;
            }
            index
        } else {
            return Err(value);
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(value) };
        let generation = slot.generation().checked_add(1).unwrap_or(1);
        let handle = H::make(self.adapter, index as u16, generation);
        slot.handle = handle.any().bits();
        slot.next = 0;
        slot.context = 0;
        slot.content = Content::Occupied(value);
        self.count += 1;
        Ok(handle)
    }

    /// Returns whether no place is free.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity()
    }

    /// The slot number of a live object.
    pub(crate) fn check(&self, handle: H) -> Result<u16, DatReturn> {
        self.get(handle).map(|_| handle.any().slot())
    }

    fn slot_of(&self, handle: H) -> Option<&Slot<T>> {
        let any = handle.any();
        self.slots.get(any.slot() as usize).filter(|slot| slot.handle == any.bits())
    }

    /// The object, or INVALID_HANDLE.
    #[inline]
    pub(crate) fn get(&self, handle: H) -> Result<&T, DatReturn> {
        match self.slot_of(handle) {
            Some(Slot { content: Content::Occupied(value), .. }) => Ok(value),
            _ => Err(H::KIND.invalid()),
        }
    }

    /// The object, or INVALID_HANDLE.
    #[inline]
    pub(crate) fn get_mut(&mut self, handle: H) -> Result<&mut T, DatReturn> {
        let any = handle.any();
        match self.slots.get_mut(any.slot() as usize) {
            Some(Slot { handle, content: Content::Occupied(value), .. }) if *handle == any.bits() => {
                Ok(value)
            }
            _ => Err(H::KIND.invalid()),
        }
    }

    /// The place of the consumer's context of a live object.
    pub(crate) fn context_mut(&mut self, handle: H) -> Result<&mut u64, DatReturn> {
        self.get(handle)?;
        let slot = self.slots.get_mut(handle.any().slot() as usize);
        slot.map(|slot| &mut slot.context).ok_or(H::KIND.invalid())
    }

    /// The consumer's context of a live object.
    pub(crate) fn context(&self, handle: H) -> Result<u64, DatReturn> {
        self.get(handle)?;
        self.slot_of(handle).map(|slot| slot.context).ok_or(H::KIND.invalid())
    }

    /// The object in this slot, whatever its generation.
    #[inline]
    pub(crate) fn at(&self, slot: u16) -> Option<&T> {
        match self.slots.get(slot as usize) {
            Some(Slot { content: Content::Occupied(value), .. }) => Some(value),
            _ => None,
        }
    }

    /// The object in this slot, whatever its generation.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u16) -> Option<&mut T> {
        match self.slots.get_mut(slot as usize) {
            Some(Slot { content: Content::Occupied(value), .. }) => Some(value),
            _ => None,
        }
    }

    /// The object in this slot, whatever its generation, with its handle.
    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: u16) -> Option<(HandleRef<'_, H>, &mut T)> {
        match self.slots.get_mut(slot as usize) {
            Some(Slot { handle, content: Content::Occupied(value), .. }) => {
                Some((HandleRef { bits: handle, kind: PhantomData }, value))
            }
            _ => None,
        }
    }

    /// The handle of the object in this slot.
    #[inline]
    pub(crate) fn handle_at(&self, slot: u16) -> Option<H> {
        match self.slots.get(slot as usize) {
            Some(Slot { handle, content: Content::Occupied(_), .. }) => Some(H::from_bits(*handle)),
            _ => None,
        }
    }

    /// Takes the object out; its handle is dead from now on.
    pub(crate) fn remove(&mut self, handle: H) -> Result<T, DatReturn> {
        self.get(handle)?;
        let index = handle.any().slot();
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(H::KIND.invalid()) };
        let Content::Occupied(value) = core::mem::replace(&mut slot.content, Content::Vacant) else {
            return Err(H::KIND.invalid());
        };
        let position = index as u32 + 1;
        match self.free_last.checked_sub(1).and_then(|last| self.slots.get_mut(last as usize)) {
            Some(last) => last.next = position,
            None => self.free_first = position,
        }
        self.free_last = position;
        self.count -= 1;
        Ok(value)
    }

    /// Whether the handle named an object of this table that is gone now.
    pub(crate) fn is_past(&self, handle: H) -> bool {
        let any = handle.any();
        let slot = self.slots.get(any.slot() as usize);
        any.kind() == Some(H::KIND)
            && any.adapter() == self.adapter
            && any.generation() != 0
            && slot.is_some_and(|slot| slot.generation() >= any.generation())
            && self.get(handle).is_err()
    }

    /// The first object of an IA at this slot or behind it.
    pub(crate) fn next_of(&self, ia: IaHandle, from: u32) -> Option<H>
    where
        T: OfIa,
    {
        let of = |slot: &u16| self.at(*slot).is_some_and(|object| object.ia() == ia);
        (from..self.fresh).map(|slot| slot as u16).find(of).and_then(|slot| self.handle_at(slot))
    }

    /// The slots ever used, for loops that change the table.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> + use<H, T> {
        // A range of slots could not include the last one.
        (0..self.fresh).map(|slot| slot as u16)
    }

    /// All live objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (H, &T)> {
        self.slots.iter().take(self.fresh as usize).filter_map(|slot| match &slot.content {
            Content::Occupied(value) => Some((H::from_bits(slot.handle), value)),
            Content::Vacant => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::handle::{EvdHandle, PzHandle};

    #[test]
    fn stale_foreign_and_wrong_handles() {
        let mut slots = [const { Slot::EMPTY }; 2];
        let mut table: Table<'_, PzHandle, u32> = Table::new(&mut slots);
        table.set_adapter(4);
        let a = table.insert(1).unwrap();
        let b = table.insert(2).unwrap();
        assert_eq!(table.insert(3), Err(3));
        assert_eq!(table.remove(a), Ok(1));
        assert_eq!(table.get(a), Err(HandleKind::Pz.invalid()));
        assert_eq!(table.remove(a), Err(HandleKind::Pz.invalid()));
        let c = table.insert(5).unwrap();
        assert_ne!(a, c);
        assert_eq!(table.get(a), Err(HandleKind::Pz.invalid()));
        assert_eq!((table.get(c), table.get(b), table.len()), (Ok(&5), Ok(&2), 2));
        let foreign = PzHandle::make(5, 0, 2);
        assert_eq!(table.get_mut(foreign), Err(HandleKind::Pz.invalid()));
        let wrong = PzHandle::from_bits(EvdHandle::make(4, 0, 2).bits());
        assert_eq!(table.get_mut(wrong), Err(HandleKind::Pz.invalid()));
        let beyond = PzHandle::make(4, 9, 1);
        assert_eq!(table.get(beyond), Err(HandleKind::Pz.invalid()));
    }

    use crate::base::handle::HandleType as HandleKind;

    #[test]
    #[cfg_attr(miri, ignore = "65,536 slots")]
    fn loops_come_past_the_last_slot() {
        struct Object(IaHandle);
        impl OfIa for Object {
            fn ia(&self) -> IaHandle {
                self.0
            }
        }
        let mut slots: std::vec::Vec<_> = (0..(1 << 16) + 1).map(|_| Slot::EMPTY).collect();
        let mut table: Table<'_, PzHandle, Object> = Table::new(&mut slots);
        let [many, last] = [1, 2].map(|slot| IaHandle::make(0, slot, 1));
        for _ in 0..u16::MAX {
            assert!(table.insert(Object(many)).is_ok());
        }
        let handle = table.insert(Object(last)).ok();
        assert!(handle.is_some() && table.insert(Object(last)).is_err(), "65,536 are the most");
        assert_eq!((table.slots().last(), table.slots().count()), (Some(u16::MAX), 1 << 16));
        assert_eq!((table.next_of(last, 0), table.next_of(last, 1 << 16)), (handle, None));
    }

    #[test]
    fn slots_are_reused_first_in_first_out() {
        let mut slots = [const { Slot::EMPTY }; 3];
        let mut table: Table<'_, PzHandle, u32> = Table::new(&mut slots);
        let handles = [1, 2, 3].map(|value| table.insert(value).unwrap());
        for index in [1, 0, 2] {
            table.remove(handles[index]).unwrap();
        }
        let again = [7, 8, 9].map(|value| table.insert(value).unwrap());
        assert_eq!(again.map(|handle| handle.any().slot()), [1, 0, 2]);
        assert_eq!(again.map(|handle| handle.any().generation()), [2, 2, 2]);
        assert_eq!(table.iter().map(|(_, value)| *value).sum::<u32>(), 24);
    }
}
