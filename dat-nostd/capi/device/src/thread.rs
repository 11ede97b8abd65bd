//! The thread of a library, one for each device.

use rustix::thread::Timespec;
use std::ptr;
use std::time::Duration;

/// Starts a thread, which goes on as long as its device is open. Signals go to threads of the program's: a handler that ran in it would end no wait.
///
/// # Errors
/// The system's.
pub fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into());
    let body = move || {
        leave_signals_to_the_program();
        run();
    };
    thread.spawn(body).map(drop)
}

fn leave_signals_to_the_program() {
    // SAFETY: a set of this function's own is filled and made the thread's mask.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
    }
}

/// Sleeps for `time`, or less if a signal arrives. Not a cancellation point, as sleeps of the C
/// library are.
pub fn pause(time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::thread::nanosleep(&time);
}
