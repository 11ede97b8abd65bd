//! A value that may be missing, for tables in static memory.

/// As `Option`, but with nothing in it all zero bytes, where the first value of `T` is: an `Option` of an enum counts on from the
/// enum's last value, and a table with such a byte is stored in full in the image that has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<T> {
    filled: bool,
    value: T,
}

impl<T: Copy> Slot<T> {
    /// Nothing; `zero` is the value whose bytes are zero.
    pub(crate) const fn empty(zero: T) -> Self {
        Self { filled: false, value: zero }
    }

    pub(crate) fn get(&self) -> Option<T> {
        self.filled.then_some(self.value)
    }

    pub(crate) fn set(&mut self, value: T) {
        *self = Self { filled: true, value };
    }

    /// What is there already, else `value` from now on.
    pub(crate) fn get_or_set(&mut self, value: T) -> T {
        if !self.filled {
            self.set(value);
        }
        self.value
    }
}
