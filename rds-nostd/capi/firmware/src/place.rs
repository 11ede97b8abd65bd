//! Storage of one value, used by one call at a time.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// An optional value with a busy flag.
pub(crate) struct Place<T> {
    /// A call is in progress.
    busy: AtomicBool,
    value: UnsafeCell<Option<T>>,
}

/// A call in progress, with a value present.
pub struct Guard<'p, T>(Call<'p, T>);

/// A call in progress.
struct Call<'p, T>(&'p Place<T>);

impl<T> Drop for Call<'_, T> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `busy` admits one guard at a time, and a guard exists only while the value is
        // `Some`.
        unsafe { (*self.0.0.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { (*self.0.0.value.get()).as_mut().unwrap_unchecked() }
    }
}

impl<T> Place<T> {
    /// Creates an empty place.
    pub(crate) const fn new() -> Self {
        Self { busy: AtomicBool::new(false), value: UnsafeCell::new(None) }
    }

    fn call(&self) -> Option<Call<'_, T>> {
        (!self.busy.swap(true, Ordering::Acquire)).then(|| Call(self))
    }

    /// Begins a call. Returns `None` if another is in progress or the place is empty.
    pub(crate) fn enter(&self) -> Option<Guard<'_, T>> {
        let call = self.call()?;
        // SAFETY: `busy` admits one call at a time.
        unsafe { (*self.value.get()).is_some() }.then_some(Guard(call))
    }

    /// Stores the value of `make` within one call.
    ///
    /// # Errors
    /// The error of `make`; `busy` if a call is in progress or a value is present.
    pub(crate) fn open<E>(&self, busy: E, make: impl FnOnce() -> Result<T, E>) -> Result<(), E> {
        let Some(_call) = self.call() else { return Err(busy) };
        // SAFETY: `busy` admits one call at a time, and no guard refers to the value.
        if unsafe { (*self.value.get()).is_some() } {
            return Err(busy);
        }
        let made = make()?;
        // SAFETY: as above.
        unsafe { *self.value.get() = Some(made) };
        Ok(())
    }

    /// Removes the value and consumes it by `end`, within one call, so that no value can be stored
    /// meanwhile.
    ///
    /// # Errors
    /// The error of `end`, after which the place is empty as well; `busy` if a call is in progress.
    pub(crate) fn close<E>(&self, busy: E, end: impl FnOnce(T) -> Result<(), E>) -> Result<(), E> {
        let Some(_call) = self.call() else { return Err(busy) };
        // SAFETY: `busy` admits one call at a time, and no guard refers to the value.
        unsafe { (*self.value.get()).take() }.map_or(Ok(()), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_during_another_is_refused() {
        let place = Place::new();
        let refused = |when: &str| {
            assert!(place.enter().is_none(), "{when}");
            assert_eq!(place.open("busy", || Ok(0)), Err("busy"), "{when}");
            assert_eq!(place.close("busy", |_| Ok(())), Err("busy"), "{when}");
        };
        assert!(place.enter().is_none());
        let made = || {
            refused("while it opens");
            Ok(7)
        };
        assert_eq!(place.open("busy", made), Ok(()));
        let guard = place.enter();
        assert_eq!(guard.as_deref(), Some(&7));
        refused("during a call");
        drop(guard);
        assert_eq!(place.open("open", || Ok(8)), Err("open"));
        let ended = |value| {
            refused("while it closes");
            if value == 7 { Err("failed") } else { Ok(()) }
        };
        assert_eq!(place.close("busy", ended), Err("failed"));
        // The place is empty after an error, too.
        assert_eq!(place.close("busy", ended), Ok(()));
        assert_eq!(place.open("busy", || Err("not made")), Err("not made"));
        assert_eq!(place.open("busy", || Ok(9)), Ok(()));
    }
}
