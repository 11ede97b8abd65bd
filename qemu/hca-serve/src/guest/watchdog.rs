//! Frees the server's thread from a system call on a client's descriptor that does not return.
//!
//! A client may change its descriptor's flags and fill it at any time, so that no look beforehand helps. The call is made under
//! guard instead: one that lasts is interrupted by a signal. While no calls are made, nobody wakes up.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the guarded thread is looked at while it makes calls. One that is in the same call at two looks is freed.
const PERIOD: Duration = Duration::from_millis(25);
/// The longest that a call lasts before its thread is freed.
pub const HELD_UP: Duration = Duration::from_millis(2 * PERIOD.as_millis() as u64);

#[derive(Debug, Default)]
struct Shared {
    /// Odd during a call; grows with each.
    calls: AtomicU64,
    /// The watchdog sleeps until somebody wakes it.
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// Watches over the thread that made it.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The guarded thread's handle is its own.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Watchdog {
    /// Watches over the calling thread.
    ///
    /// # Errors
    /// The system has no thread or refuses the signal handler.
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

    /// Makes a system call that could last for ever; it answers `EINTR` then.
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
            // The thread that it signals is this one, which must not end before.
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
            // SAFETY: the target lives: it joins this thread before it ends. The signal has a handler that does nothing.
            unsafe { libc::pthread_kill(target, signal()) };
            continue;
        }
        shared.asleep.store(true, Ordering::SeqCst);
        // A call that began before this was seen finds nobody to wake; so does the end.
        while shared.asleep.load(Ordering::SeqCst)
            && shared.calls.load(Ordering::SeqCst) == now
            && !shared.stop.load(Ordering::SeqCst)
        {
            std::thread::park();
        }
        shared.asleep.store(false, Ordering::SeqCst);
    }
}

/// A signal that nobody else uses.
fn signal() -> c_int {
    libc::SIGRTMIN() + 7
}

fn install_handler() -> std::io::Result<()> {
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: zero is a valid value of each field. The handler does nothing; without SA_RESTART it interrupts calls.
    let answer = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(signal(), &raw const action, null_mut())
    };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
