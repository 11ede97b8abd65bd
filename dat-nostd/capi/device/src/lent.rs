//! Tables that an adapter borrows for as long as its device is open.

use std::ptr::NonNull;

/// A value on the heap that is lent for good, and can be taken back all the same.
pub struct Lent<T>(NonNull<T>);

// SAFETY: it is the value's owner.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T> Lent<T> {
    /// Lends a value.
    pub fn new(value: Box<T>) -> (Self, &'static mut T) {
        let mut lent = NonNull::from(Box::leak(value));
        // SAFETY: just leaked, and by the contract of `free` not used by its owner as long as it is lent.
        (Self(lent), unsafe { lent.as_mut() })
    }

    /// Lends a value of zero bytes. The value is made on the heap: built by its constructor, a large
    /// one could exceed the stack of the calling thread.
    ///
    /// # Safety
    /// Zero bytes are a valid `T`.
    #[must_use]
    pub unsafe fn zeroed() -> (Self, &'static mut T) {
        // SAFETY: this function's contract.
        Self::new(unsafe { Box::<T>::new_zeroed().assume_init() })
    }

    /// Frees it.
    ///
    /// # Safety
    /// Nobody has the reference any more, nor anything made from it.
    pub unsafe fn free(self) {
        // SAFETY: from a box, and by this function's contract nobody else's.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
