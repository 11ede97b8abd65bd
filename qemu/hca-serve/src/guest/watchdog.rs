//! Interrupts system calls on a client's descriptor that block the server's thread.
//!
//! A client may change its descriptor's flags and fill it at any time, so that a check before the
//! call is not enough. Instead, a signal interrupts a guarded call that lasts too long. The
//! watchdog sleeps while no calls are made.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of the watchdog's checks while the guarded thread makes calls. A call that spans two
/// checks is interrupted.
const PERIOD: Duration = Duration::from_millis(25);
/// Longest duration of a call before it is interrupted.
pub const HELD_UP: Duration = Duration::from_millis(2 * PERIOD.as_millis() as u64);

#[derive(Debug, Default)]
struct Shared {
    /// Odd during a call; incremented at its start and end.
    calls: AtomicU64,
    /// True while the watchdog sleeps until it is woken.
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// Watchdog of the thread that created it.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Must stay on its thread, because it interrupts this thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Watchdog {
    /// Starts a watchdog of the calling thread.
    ///
    /// # Errors
    /// The thread cannot be created, or the system rejects the signal handler.
    pub fn start() -> std::io::Result<Self> {
        install_handler()?;
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        // SAFETY: has no preconditions.
        let target = unsafe { libc::pthread_self() };
        let thread =
            std::thread::Builder::new().name("watchdog".into()).spawn(move || watch(&watched, target))?;
        Ok(Self { shared, thread: Some(thread), _not_send: std::marker::PhantomData })
    }

    /// Makes a system call that could block permanently. Returns `EINTR` if it was interrupted.
    pub fn guard<T>(&self, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst)
            && self.shared.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
        let answer = call();
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        answer
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The watchdog signals this thread, which must not exit before.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, target: libc::pthread_t) {
    let mut last = shared.calls.load(Ordering::SeqCst);
    while !shared.stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(PERIOD);
        let now = shared.calls.load(Ordering::SeqCst);
        if now != last {
            last = now;
            continue;
        }
        if now % 2 == 1 {
            // SAFETY: the target thread is alive, because it joins this thread before it exits. The
            // signal's handler does nothing.
            unsafe { libc::pthread_kill(target, signal()) };
            continue;
        }
        shared.asleep.store(true, Ordering::SeqCst);
        // A call or a stop before `asleep` was set did not wake this thread: check again.
        while shared.asleep.load(Ordering::SeqCst)
            && shared.calls.load(Ordering::SeqCst) == now
            && !shared.stop.load(Ordering::SeqCst)
        {
            std::thread::park();
        }
        shared.asleep.store(false, Ordering::SeqCst);
    }
}

/// Returns a signal without other users in this process.
fn signal() -> c_int {
    libc::SIGRTMIN() + 7
}

fn install_handler() -> std::io::Result<()> {
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: zero is a valid value of every field. The handler does nothing. Without SA_RESTART
    // the signal interrupts system calls.
    let answer = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(signal(), &raw const action, null_mut())
    };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
