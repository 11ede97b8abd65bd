//! Tables beside those of the adapter.

use crate::handles::RawHandle;

/// Values beside the objects of one kind, by their slots. A value is that of the object whose handle it has, so that nothing needs to be
/// taken out when objects go.
pub(crate) struct BySlot<'s, T>(pub(crate) &'s mut [Entry<T>]);

/// A handle, and what lies beside its object.
pub(crate) type Entry<T> = (RawHandle, T);

impl<T> BySlot<'_, T> {
    fn place(&mut self, handle: RawHandle) -> Option<&mut Entry<T>> {
        self.0.get_mut(usize::from(handle as u16))
    }

    pub(crate) fn get(&self, handle: RawHandle) -> Option<&T> {
        let (owner, value) = self.0.get(usize::from(handle as u16))?;
        (*owner == handle).then_some(value)
    }

    pub(crate) fn put(&mut self, handle: RawHandle, value: T) {
        if let Some(place) = self.place(handle) {
            *place = (handle, value);
        }
    }

    /// The object's value, which is `new` if it has none.
    pub(crate) fn get_or(&mut self, handle: RawHandle, new: T) -> Option<&mut T> {
        let place = self.place(handle)?;
        if place.0 != handle {
            *place = (handle, new);
        }
        Some(&mut place.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_one_object_is_not_anothers() {
        let mut entries = [(0, 0); 4];
        let mut table = BySlot(&mut entries);
        let (first, second) = (0x0200_0000_0001_0003, 0x0200_0000_0002_0003);
        table.put(first, 7);
        assert_eq!((table.get(first), table.get(second), table.get(0)), (Some(&7), None, Some(&0)));
        assert_eq!(table.get_or(second, 9).copied(), Some(9));
        assert_eq!((table.get(first), table.get(second)), (None, Some(&9)));
        // Beyond the table there is nothing.
        table.put(0x0200_0000_0001_0004, 1);
        assert!(table.get_or(0x0200_0000_0001_ffff, 1).is_none());
    }
}
