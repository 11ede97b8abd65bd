//! A place for the one device, which one call at a time reaches.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that comes and goes, and is reached by one call at a time.
pub(crate) struct Place<T> {
    /// A call is under way.
    busy: AtomicBool,
    value: UnsafeCell<Option<T>>,
}

/// A call is under way, and there is a value.
pub struct Guard<'p, T>(Call<'p, T>);

/// A call is under way.
struct Call<'p, T>(&'p Place<T>);

impl<T> Drop for Call<'_, T> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is one guard, which nobody gets without a value.
        unsafe { (*self.0.0.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and it is borrowed alone.
        unsafe { (*self.0.0.value.get()).as_mut().unwrap_unchecked() }
    }
}

impl<T> Place<T> {
    /// An empty one.
    pub(crate) const fn new() -> Self {
        Self { busy: AtomicBool::new(false), value: UnsafeCell::new(None) }
    }

    fn call(&self) -> Option<Call<'_, T>> {
        (!self.busy.swap(true, Ordering::Acquire)).then(|| Call(self))
    }

    /// Begins a call, unless another is under way or there is no value.
    pub(crate) fn enter(&self) -> Option<Guard<'_, T>> {
        let call = self.call()?;
        // SAFETY: there is one call.
        unsafe { (*self.value.get()).is_some() }.then_some(Guard(call))
    }

    /// Puts in what `make` makes, unless something is there. All of that is one call.
    ///
    /// # Errors
    /// What `make` says, with the place empty; `busy`.
    pub(crate) fn open<E>(&self, busy: E, make: impl FnOnce() -> Result<T, E>) -> Result<(), E> {
        let Some(_call) = self.call() else { return Err(busy) };
        // SAFETY: there is one call, and nothing refers to the value.
        if unsafe { (*self.value.get()).is_some() } {
            return Err(busy);
        }
        let made = make()?;
        // SAFETY: as above.
        unsafe { *self.value.get() = Some(made) };
        Ok(())
    }

    /// Takes the value out, and ends it. All of that is one call: nobody opens another until this one is gone.
    ///
    /// # Errors
    /// What `end` says, with the place empty; `busy`.
    pub(crate) fn close<E>(&self, busy: E, end: impl FnOnce(T) -> Result<(), E>) -> Result<(), E> {
        let Some(_call) = self.call() else { return Err(busy) };
        // SAFETY: there is one call, and nothing refers to the value.
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
        // It is empty in either case.
        assert_eq!(place.close("busy", ended), Ok(()));
        assert_eq!(place.open("busy", || Err("not made")), Err("not made"));
        assert_eq!(place.open("busy", || Ok(9)), Ok(()));
    }
}
