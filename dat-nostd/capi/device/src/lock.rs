//! The lock of a device: a few instructions where nobody else wants it, sleep where somebody does.
//!
//! Tools for threads do not know it. With `DAT_DBG_LOCK` in its environment a process has mutexes of the C library's instead, so that they
//! can judge what is done under the lock.

use crate::debug;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nobody has it.
const FREE: u32 = 0;
/// Somebody has it.
const HELD: u32 = 1;
/// Somebody has it, and others may sleep.
const AWAITED: u32 = 2;
/// The mutex stands for it, for good.
const VISIBLE: u32 = 3;

/// There is no value.
const CLOSED: u32 = 4;

/// A value that one thread at a time can reach, and that comes and goes.
pub struct Lock<T> {
    state: AtomicU32,
    /// Threads that are about to take it.
    wanting: AtomicU32,
    /// Never moved, as the C library demands.
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is reached with the lock held only, so one thread at a time has it, which may be any if it can be sent.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock itself is the process's, not a thread's.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Default for Lock<T> {
    /// Without a value.
    fn default() -> Self {
        Self::with(if debug::wants("DAT_DBG_LOCK") { VISIBLE } else { CLOSED })
    }
}

impl<T> Lock<T> {
    fn with(state: u32) -> Self {
        Self {
            state: AtomicU32::new(state),
            wanting: AtomicU32::new(0),
            mutex: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
            value: UnsafeCell::new(None),
        }
    }

    #[inline]
    fn step(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
    }

    /// Waits for the lock; None if there is no value.
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        if self.step(FREE, HELD).is_err() && !self.wait() {
            return None;
        }
        Some(Guard { lock: self })
    }

    /// Whether the lock was taken: there is a value then.
    #[cold]
    fn wait(&self) -> bool {
        loop {
            match self.state.load(Ordering::Acquire) {
                CLOSED => return false,
                VISIBLE => {
                    // SAFETY: the mutex is initialized and stays where it is. It is no thread's that asks: guards do not nest.
                    unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
                    // SAFETY: with the mutex held.
                    if unsafe { (*self.value.get()).is_some() } {
                        return true;
                    }
                    // SAFETY: this thread took it.
                    unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
                    return false;
                }
                // Whoever has waited does not know whether others sleep.
                FREE if self.step(FREE, AWAITED).is_ok() => return true,
                FREE => {}
                HELD if self.step(HELD, AWAITED).is_err() => {}
                // Returns at once if the state is another; a signal's handler ends it early, which the loop bears.
                _ => {
                    let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
                }
            }
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

    /// Puts a value in, which takes the place of what is there.
    pub fn open(&self, value: T) {
        // Nobody else opens it meanwhile, nor reaches a value that is not there.
        let old = self.lock().map(Guard::take);
        drop(old);
        let visible = self.state.load(Ordering::Relaxed) == VISIBLE;
        if visible {
            // SAFETY: the mutex is initialized and stays where it is.
            unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        }
        // SAFETY: with the mutex held, or before anybody can take the lock.
        unsafe { *self.value.get() = Some(value) };
        if visible {
            // SAFETY: this thread took it.
            unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
        } else {
            self.state.store(FREE, Ordering::Release);
        }
    }

    /// Takes the lock if it is free within so long: for the end of the process, which may come while a thread that does not go on has it.
    pub fn lock_within(&self, patience: Duration) -> Option<Guard<'_, T>> {
        let end = Instant::now() + patience;
        loop {
            let taken = match self.state.load(Ordering::Acquire) {
                CLOSED => return None,
                // SAFETY: the mutex is initialized and stays where it is.
                VISIBLE if unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } == 0 => {
                    // SAFETY: with the mutex held.
                    if unsafe { (*self.value.get()).is_none() } {
                        self.release_and_wake();
                        return None;
                    }
                    true
                }
                VISIBLE => false,
                _ => self.step(FREE, HELD).is_ok(),
            };
            if taken {
                return Some(Guard { lock: self });
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The same as [`Lock::lock`]; [`Lock::is_wanted`] tells others of it.
    pub fn lock_urgently(&self) -> Option<Guard<'_, T>> {
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

impl<T> Guard<'_, T> {
    /// Takes the value out: from now on there is none.
    #[must_use]
    pub fn take(self) -> Option<T> {
        let lock = self.lock;
        std::mem::forget(self);
        // SAFETY: this guard held the lock, which is given back below.
        let value = unsafe { (*lock.value.get()).take() };
        if lock.state.load(Ordering::Relaxed) == VISIBLE {
            lock.release_and_wake();
        } else {
            lock.state.store(CLOSED, Ordering::Release);
            // All who sleep have to see it.
            let _ = futex::wake(&lock.state, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
        value
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, which nobody gets without a value.
        unsafe { (*self.lock.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, which nobody gets without a value, and is borrowed alone.
        unsafe { (*self.lock.value.get()).as_mut().unwrap_unchecked() }
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
        for state in [CLOSED, VISIBLE] {
            let lock = Lock::with(state);
            lock.open((0_u64, 0_u64));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for round in 0..10_000 {
                            let guard = if round % 2 == 0 { lock.lock() } else { lock.lock_urgently() };
                            let mut guard = guard.unwrap();
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
            assert_eq!(*lock.lock().unwrap(), (40_000, 40_000));
            assert!(!lock.is_wanted());
        }
    }

    #[test]
    fn patience_ends() {
        for state in [CLOSED, VISIBLE] {
            let lock = Lock::with(state);
            let at_once = Duration::ZERO;
            assert!(lock.lock_within(at_once).is_none());
            lock.open(7);
            let held = lock.lock_within(at_once).unwrap();
            std::thread::scope(|scope| {
                assert!(scope.spawn(|| lock.lock_within(at_once).is_none()).join().unwrap());
            });
            drop(held);
            assert_eq!(lock.lock_within(at_once).map(|held| *held), Some(7));
        }
    }

    #[test]
    fn who_sleeps_hears_that_the_value_is_gone() {
        for state in [CLOSED, VISIBLE] {
            let lock = Lock::with(state);
            assert!(lock.lock().is_none());
            for round in 0..100 {
                lock.open(round);
                std::thread::scope(|scope| {
                    let held = lock.lock().unwrap();
                    let others: Vec<_> =
                        (0..3).map(|_| scope.spawn(|| lock.lock().map(|held| *held))).collect();
                    std::thread::yield_now();
                    assert_eq!(held.take(), Some(round));
                    assert!(others.into_iter().all(|other| other.join().unwrap().is_none()));
                });
            }
            assert!(lock.lock().is_none());
        }
    }
}
