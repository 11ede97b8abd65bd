//! The lock of a device: a few instructions where nobody else wants it, sleep where somebody does.
//!
//! Tools for threads do not know it. With `DAT_DBG_LOCK` in its environment a process has mutexes of the C library's instead, so that they
//! can judge what is done under the lock.

use crate::debug;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Nobody has it.
const FREE: u32 = 0;
/// Somebody has it.
const HELD: u32 = 1;
/// Somebody has it, and others may sleep.
const AWAITED: u32 = 2;
/// The mutex stands for it, for good.
const VISIBLE: u32 = 3;

/// A value that one thread at a time can reach.
pub struct Lock<T> {
    state: AtomicU32,
    /// Threads that are about to take it.
    wanting: AtomicU32,
    /// Never moved, as the C library demands.
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached with the lock held only, so one thread at a time has it, which may be any if it can be sent.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock itself is the process's, not a thread's.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// A lock around a value.
    pub fn new(value: T) -> Self {
        Self::with(value, if debug::wants("DAT_DBG_LOCK") { VISIBLE } else { FREE })
    }

    fn with(value: T, state: u32) -> Self {
        Self {
            state: AtomicU32::new(state),
            wanting: AtomicU32::new(0),
            mutex: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    fn step(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.step(FREE, HELD).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        if self.state.load(Ordering::Relaxed) == VISIBLE {
            // SAFETY: the mutex is initialized and stays where it is. It is no thread's that asks: guards do not nest.
            unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
            return;
        }
        // Whoever has slept does not know whether others do.
        while self.state.swap(AWAITED, Ordering::AcqRel) != FREE {
            // Returns at once if the state is another; a signal's handler ends it early, which the loop bears.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    #[inline]
    fn release(&self) {
        if self.step(HELD, FREE).is_err() {
            self.release_and_wake();
        }
    }

    #[cold]
    fn release_and_wake(&self) {
        if self.state.load(Ordering::Relaxed) == VISIBLE {
            // SAFETY: this thread took the mutex.
            unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
            return;
        }
        self.state.store(FREE, Ordering::Release);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }

    /// The same as [`Lock::lock`]; [`Lock::is_wanted`] tells others of it.
    pub fn lock_urgently(&self) -> Guard<'_, T> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Whether a thread that has waited long may be waiting: a lock goes to whoever asks first, which a busy loop always does.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) != 0
    }
}

/// The lock, held.
pub struct Guard<'l, T> {
    lock: &'l Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        for state in [FREE, VISIBLE] {
            let lock = Lock::with((0_u64, 0_u64), state);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for round in 0..10_000 {
                            let mut guard = if round % 2 == 0 { lock.lock() } else { lock.lock_urgently() };
                            guard.0 += 1;
                            if round % 100 == 0 {
                                // Others find it taken, and sleep.
                                std::thread::yield_now();
                            }
                            guard.1 += 1;
                            assert_eq!(guard.0, guard.1);
                        }
                    });
                }
            });
            assert_eq!(*lock.lock(), (40_000, 40_000));
            assert!(!lock.is_wanted());
            assert_eq!(lock.state.load(Ordering::Relaxed), state, "nobody has it");
        }
    }
}
