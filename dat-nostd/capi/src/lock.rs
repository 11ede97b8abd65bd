//! A lock that tools for threads understand: a mutex of the C library's.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A value that one thread at a time can reach.
pub(crate) struct Lock<T> {
    // Never moved once it is in use: a `Lock` is behind a reference then.
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// Threads that are about to take it.
    wanting: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached with the mutex held only, so one thread at a time has it, which may be any if it can be sent.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            wanting: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // SAFETY: the mutex is initialized, and stays where it is while it is used. It is no thread's that asks: guards do not nest.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        Guard { lock: self }
    }

    /// The same; [`Lock::is_wanted`] tells others of it.
    pub(crate) fn lock_urgently(&self) -> Guard<'_, T> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Whether a thread that has waited long may be waiting: a mutex goes to whoever asks first, which a busy loop always does.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) != 0
    }
}

/// The lock, held.
pub(crate) struct Guard<'l, T> {
    lock: &'l Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the mutex.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the mutex, and is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this thread took the mutex.
        unsafe { libc::pthread_mutex_unlock(self.lock.mutex.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0_u32);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| *lock.lock_urgently() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4000);
        assert!(!lock.is_wanted());
    }
}
