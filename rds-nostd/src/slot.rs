//! A value that may be missing, for tables in static memory.

/// Like `Option`, but all zero bytes if it is empty and the first value of `T` is zero. An `Option`
/// of an enum encodes `None` as a further value, and a table with such bytes is stored in full in
/// an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<T> {
    filled: bool,
    value: T,
}

impl<T: Copy> Slot<T> {
    /// Returns an empty slot. `zero` is the value whose bytes are zero.
    pub(crate) const fn empty(zero: T) -> Self {
        Self { filled: false, value: zero }
    }

    pub(crate) fn get(&self) -> Option<T> {
        self.filled.then_some(self.value)
    }

    pub(crate) fn set(&mut self, value: T) {
        *self = Self { filled: true, value };
    }

    pub(crate) const fn clear(&mut self) {
        self.filled = false;
    }

    /// Returns the value, after a store of `value` if it was empty.
    pub(crate) fn get_or_set(&mut self, value: T) -> T {
        if !self.filled {
            self.set(value);
        }
        self.value
    }
}
