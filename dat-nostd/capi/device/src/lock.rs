//! The lock of a device: a few instructions where nobody else wants it, sleep where somebody does.
//!
//! Tools for threads do not know it. With `DAT_DBG_LOCK` in its environment a process has mutexes of the C library's instead, so that they
//! can judge what is done under the lock.

use crate::debug;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Nobody has it. Taking it subtracts one and giving it back adds one, which are the shortest that a processor has for it.
const FREE: i32 = 1;
/// Somebody has it.
const HELD: i32 = 0;
/// Somebody has it, and others may sleep. Less is the same, by those who have just asked.
const AWAITED: i32 = -1;
/// There is no value. States near it mean the same: each thread that has just asked has subtracted one.
const CLOSED: i32 = -(2 << 28);
/// The mutex stands in for it, for good; so it does in states near it.
const VISIBLE: i32 = -(4 << 28);

/// What a state is near to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// There is a value.
    Open,
    /// [`CLOSED`].
    Closed,
    /// [`VISIBLE`].
    Visible,
}

impl Mode {
    fn of(state: i32) -> Self {
        const ABOVE_CLOSED: i32 = -(1 << 28);
        const ABOVE_VISIBLE: i32 = -(3 << 28);
        match state {
            ..ABOVE_VISIBLE => Self::Visible,
            ABOVE_VISIBLE..ABOVE_CLOSED => Self::Closed,
            ABOVE_CLOSED.. => Self::Open,
        }
    }
}

/// A value that one thread at a time can reach, and that comes and goes.
pub struct Lock<T> {
    state: AtomicU32,
    /// Threads that are about to take it.
    wanting: AtomicU32,
    /// Never moved, as the C library demands.
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    /// One thread at a time puts a value in.
    opening: Mutex<()>,
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
    fn with(state: i32) -> Self {
        Self {
            state: AtomicU32::new(state.cast_unsigned()),
            wanting: AtomicU32::new(0),
            mutex: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
            opening: Mutex::new(()),
            value: UnsafeCell::new(None),
        }
    }

    fn state(&self) -> i32 {
        self.state.load(Ordering::Acquire).cast_signed()
    }

    fn mode(&self) -> Mode {
        Mode::of(self.state.load(Ordering::Relaxed).cast_signed())
    }

    fn step(&self, from: i32, to: i32) -> bool {
        let (from, to) = (from.cast_unsigned(), to.cast_unsigned());
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What those who have just asked have made of a state becomes it again, so that it does not wander off. Whoever comes next tries it
    /// again if another was faster.
    fn mend(&self, near: i32, state: i32) {
        if near != state {
            self.step(near, state);
        }
    }

    /// Waits for the lock; None if there is no value.
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        if self.state.fetch_sub(1, Ordering::Acquire).cast_signed() == FREE || self.wait() {
            Some(Guard::new(self))
        } else {
            None
        }
    }

    /// Whether the lock was taken: there is a value then.
    #[cold]
    fn wait(&self) -> bool {
        loop {
            let state = self.state();
            match Mode::of(state) {
                Mode::Closed => {
                    self.mend(state, CLOSED);
                    return false;
                }
                Mode::Visible => {
                    self.mend(state, VISIBLE);
                    // SAFETY: the mutex is initialized and stays where it is. It is no thread's that asks: guards do not nest.
                    unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
                    // SAFETY: with the mutex held.
                    if unsafe { (*self.value.get()).is_some() } {
                        return true;
                    }
                    self.unlock();
                    return false;
                }
                // Whoever has waited does not know whether others sleep.
                Mode::Open if state > HELD => {
                    if self.step(state, AWAITED) {
                        return true;
                    }
                }
                Mode::Open if state != AWAITED && !self.step(state, AWAITED) => {}
                // Returns at once if the state is another; a signal's handler ends it early, which the loop bears.
                Mode::Open => {
                    let flags = futex::Flags::PRIVATE;
                    let _ = futex::wait(&self.state, flags, AWAITED.cast_unsigned(), None);
                }
            }
        }
    }

    #[inline]
    fn release(&self) {
        if self.state.fetch_add(1, Ordering::Release).cast_signed() < HELD {
            self.release_and_wake();
        }
    }

    #[cold]
    fn release_and_wake(&self) {
        let state = self.state();
        if Mode::of(state) == Mode::Visible {
            self.mend(state, VISIBLE);
            self.unlock();
            return;
        }
        self.set(FREE);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }

    fn unlock(&self) {
        // SAFETY: this thread took the mutex.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    fn set(&self, state: i32) {
        self.state.store(state.cast_unsigned(), Ordering::Release);
    }

    /// Puts a value in, which takes the place of what is there.
    pub fn open(&self, value: T) {
        // Two that found no value would both write one.
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody reaches a value that is not there.
        let old = self.lock().map(Guard::take);
        drop(old);
        let visible = self.mode() == Mode::Visible;
        if visible {
            // SAFETY: the mutex is initialized and stays where it is.
            unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        }
        // SAFETY: with the mutex held, or before anybody can take the lock.
        unsafe { *self.value.get() = Some(value) };
        if visible {
            self.unlock();
        } else {
            self.set(FREE);
        }
    }

    /// Takes the lock if it is free within so long: for the end of the process, which may come while a thread that does not go on has it.
    pub fn lock_within(&self, patience: Duration) -> Option<Guard<'_, T>> {
        let end = Instant::now() + patience;
        loop {
            let taken = match self.mode() {
                Mode::Closed => return None,
                // SAFETY: the mutex is initialized and stays where it is.
                Mode::Visible if unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } == 0 => {
                    // SAFETY: with the mutex held.
                    if unsafe { (*self.value.get()).is_none() } {
                        self.unlock();
                        return None;
                    }
                    true
                }
                Mode::Visible => false,
                Mode::Open => self.step(FREE, HELD),
            };
            if taken {
                return Some(Guard::new(self));
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

/// The lock, held. The mutex has to be given back by the thread that took it, so it stays there, other than the lock:
///
/// ```
/// fn sent<T: Send>() {}
/// fn shared<T: Sync>() {}
/// sent::<capi_device::Lock<u8>>();
/// shared::<capi_device::Lock<u8>>();
/// fn named<T>() {}
/// named::<capi_device::Guard<'static, u8>>();
/// ```
/// ```compile_fail,E0277
/// fn sent<T: Send>() {}
/// sent::<capi_device::Guard<'static, u8>>();
/// ```
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<capi_device::Guard<'static, u8>>();
/// ```
pub struct Guard<'l, T> {
    lock: &'l Lock<T>,
    of_this_thread: PhantomData<*mut T>,
}

impl<'l, T> Guard<'l, T> {
    #[inline]
    fn new(lock: &'l Lock<T>) -> Self {
        Self { lock, of_this_thread: PhantomData }
    }
}

impl<T> Guard<'_, T> {
    /// Takes the value out: from now on there is none.
    #[must_use]
    pub fn take(self) -> Option<T> {
        let lock = self.lock;
        std::mem::forget(self);
        // SAFETY: this guard held the lock, which is given back below.
        let value = unsafe { (*lock.value.get()).take() };
        if lock.mode() == Mode::Visible {
            lock.unlock();
        } else {
            lock.set(CLOSED);
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
    fn values_are_put_in_one_after_the_other() {
        for state in [CLOSED, VISIBLE] {
            let lock = Lock::with(state);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let lock = &lock;
                    scope.spawn(move || {
                        for round in 0..2000 {
                            lock.open(Box::new((thread, round)));
                            drop(lock.lock().and_then(|held| (round % 3 == 0).then(|| held.take())));
                        }
                    });
                }
            });
            lock.open(Box::new((9, 9)));
            assert_eq!(lock.lock().map(|held| **held), Some((9, 9)));
        }
    }

    #[test]
    fn asking_changes_nothing() {
        for state in [CLOSED, VISIBLE] {
            let lock = Lock::with(state);
            for opened in 0..3 {
                assert_eq!(lock.lock().map(|held| *held), (opened != 0).then_some(opened));
                for _ in 0..1000 {
                    drop(lock.lock());
                    drop(lock.lock_within(Duration::ZERO));
                }
                let at_rest = if opened == 0 || state == VISIBLE { state } else { FREE };
                assert_eq!(lock.state(), at_rest);
                lock.open(opened + 1);
            }
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
