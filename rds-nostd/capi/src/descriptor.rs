//! The program's descriptor of a socket: an eventfd, readable while the socket has something to
//! receive.
//!
//! Program and library hold different descriptors of one eventfd. The library uses only its own,
//! because the program's number may have been closed (`close`, `dup2`, `fclose`) and reused.

use crate::fd_table::Mark;
use rds_calls::Descriptor;
use rds_nostd::RdsError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, fcntl_dupfd_cloexec, preadv2};
use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Lowest number of the library's descriptors, if the limit permits. `select` needs lower ones.
const PRIVATE: u64 = 1024;
/// Lower bound of the library's descriptors in any case.
const STANDARD: RawFd = 3;

/// Returns the lowest number of the library's descriptors under a limit. Programs expect low
/// numbers for themselves.
fn private(limit: u64) -> RawFd {
    (PRIVATE.min(limit / 2) as RawFd).max(STANDARD)
}

/// Duplicates a descriptor for the library.
fn own_number(file: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    fcntl_dupfd_cloexec(&file, private(limit.rlim_cur)).or_else(|_| fcntl_dupfd_cloexec(&file, STANDARD))
}

/// An event descriptor.
pub(crate) struct Event {
    /// The program's number.
    number: RawFd,
    /// Before `own` in drop order: a closed number may be reused at once.
    _mark: Option<Mark>,
    own: OwnedFd,
}

impl Event {
    /// Creates an event descriptor. `mark` marks the library's number as its own.
    ///
    /// # Errors
    /// [`RdsError::TooManySockets`]: no descriptor is left.
    pub(crate) fn new(nonblocking: bool, mark: impl FnOnce(RawFd) -> Option<Mark>) -> Result<Self, RdsError> {
        let flags = if nonblocking { EventfdFlags::NONBLOCK } else { EventfdFlags::empty() };
        let fd = eventfd(0, EventfdFlags::CLOEXEC | flags).map_err(|_| RdsError::TooManySockets)?;
        let own = own_number(&fd).map_err(|_| RdsError::TooManySockets)?;
        Ok(Self { number: fd.into_raw_fd(), _mark: mark(own.as_raw_fd()), own })
    }

    /// Returns the program's number.
    pub(crate) fn number(&self) -> RawFd {
        self.number
    }

    /// Returns the library's descriptor.
    pub(crate) fn own(&self) -> &OwnedFd {
        &self.own
    }
}

impl Drop for Event {
    /// Closes the program's number as well, unless it names another file by now.
    fn drop(&mut self) {
        if is_same(self.number, self.own.as_raw_fd()) {
            // SAFETY: the number was created for this socket, and the program has closed the
            // socket.
            unsafe { rustix::io::close(self.number) };
        }
    }
}

impl Descriptor for Event {
    /// Returns the program's `O_NONBLOCK` flag, which `fcntl` may change.
    fn is_nonblocking(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.own);
        flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    fn set_nonblocking(&mut self, on: bool) {
        if let Ok(mut flags) = rustix::fs::fcntl_getfl(&self.own) {
            flags.set(rustix::fs::OFlags::NONBLOCK, on);
            let _ = rustix::fs::fcntl_setfl(&self.own, flags);
        }
    }

    /// Writes only if the descriptor is not readable, because a child process may have filled the
    /// counter, and then a write would block.
    fn raise(&mut self) {
        if !is_readable(&self.own) {
            let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
        }
    }

    /// Reads without blocking, whatever the program's flags are: another process may have read the
    /// counter already.
    fn lower(&mut self) {
        const WHERE_IT_IS: u64 = u64::MAX;
        let mut count = [0; 8];
        let into = &mut [IoSliceMut::new(&mut count)];
        if preadv2(&self.own, into, WHERE_IT_IS, ReadWriteFlags::NOWAIT) == Err(Errno::OPNOTSUPP) {
            // Linux before 5.8.
            if is_readable(&self.own) {
                let _ = rustix::io::read(&self.own, &mut count);
            }
        }
    }
}

fn is_readable(own: &OwnedFd) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(own, PollFlags::IN)], Some(&none)) == Ok(1)
}

/// Returns whether `number` still names the file of `own`. Async-signal-safe.
pub(crate) fn is_same(number: RawFd, own: RawFd) -> bool {
    // Without any of these methods the system has no way to distinguish them.
    compare(&METHODS, &FIRST_WORKING, number, own).unwrap_or(true)
}

/// Index of the first method that this system supports. Later calls start there.
static FIRST_WORKING: AtomicUsize = AtomicUsize::new(0);

/// Compares by the first method that works.
fn compare(methods: &[Method], working: &AtomicUsize, number: RawFd, own: RawFd) -> Option<bool> {
    let before = working.load(Ordering::Relaxed);
    let mut rest = methods.iter().enumerate().skip(before);
    let (place, answer) = rest.find_map(|(place, method)| Some((place, method(number, own)?)))?;
    if place != before {
        working.store(place, Ordering::Relaxed);
    }
    Some(answer)
}

type Method = fn(RawFd, RawFd) -> Option<bool>;

/// Methods of comparison, the fastest first.
const METHODS: [Method; 3] = [by_dupfd_query, by_kcmp, by_procfs];

/// `fcntl(F_DUPFD_QUERY)`. Returns `None` before Linux 6.10.
fn by_dupfd_query(number: RawFd, own: RawFd) -> Option<bool> {
    const F_DUPFD_QUERY: i32 = 1027;
    // SAFETY: numbers only.
    match unsafe { libc::fcntl(own, F_DUPFD_QUERY, number) } {
        1 => Some(true),
        0 => Some(false),
        _ => none_open(),
    }
}

/// Evaluates a failed comparison: a number that is not open names no file, and any other error
/// means "unsupported".
fn none_open() -> Option<bool> {
    (std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)).then_some(false)
}

/// `kcmp(2)`. Returns `None` where it is not permitted.
fn by_kcmp(number: RawFd, own: RawFd) -> Option<bool> {
    const KCMP_FILE: i32 = 0;
    // SAFETY: numbers only.
    let order = unsafe {
        let process = libc::getpid();
        libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, i64::from(number), i64::from(own))
    };
    match order {
        0 => Some(true),
        1.. => Some(false),
        _ => none_open(),
    }
}

/// Compares the IDs in `/proc`. Returns `None` without `/proc`.
fn by_procfs(number: RawFd, own: RawFd) -> Option<bool> {
    let own = id(own)?;
    Some(id(number) == Some(own))
}

/// Returns the ID of an event descriptor (`proc_pid_fdinfo(5)`). Does not allocate, because signal
/// handlers call it.
fn id(fd: RawFd) -> Option<u64> {
    const NAME: &str = "eventfd-id:";
    let mut path = [0; 40];
    write!(&mut path[..], "/proc/self/fdinfo/{fd}\0").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = rustix::fs::open(path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0; 512];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    text.lines().find_map(|line| line.strip_prefix(NAME))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn made(nonblocking: bool) -> Event {
        Event::new(nonblocking, |_| None).unwrap()
    }

    #[test]
    fn own_descriptors_have_high_numbers() {
        let lowest = [0, 1, 64, 1024, 2048, 20_000, u64::MAX].map(private);
        assert_eq!(lowest, [3, 3, 32, 512, 1024, 1024, 1024]);
        assert!(made(false).own.as_raw_fd() >= STANDARD);
    }

    #[test]
    fn an_unsupported_method_is_not_tried_again() {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        let never: Method = |_, _| {
            TRIED.fetch_add(1, Ordering::Relaxed);
            None
        };
        let working = AtomicUsize::new(0);
        let methods = [never, never, |number, own| Some(number == own)];
        for (number, same) in [(7, true), (8, false), (7, true)] {
            assert_eq!(compare(&methods, &working, number, 7), Some(same));
            assert_eq!(TRIED.load(Ordering::Relaxed), 2);
        }
        assert_eq!(compare(&[never], &AtomicUsize::new(0), 7, 7), None);
    }

    #[test]
    fn raise_does_not_block_on_a_full_counter() {
        let mut event = made(false);
        rustix::io::write(&event.own, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.raise();
        event.lower();
        assert!(!is_readable(&event.own));
    }

    #[test]
    fn a_number_is_distinguished_from_another_files() {
        let (first, second) = (made(false), made(true));
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let own = first.own.as_raw_fd();
        let numbers = [first.number, second.number, file.as_raw_fd(), -1];
        // Not every system supports all methods.
        let answers = METHODS.map(|same| numbers.map(|number| same(number, own)));
        let supported = answers.into_iter().filter(|answer| *answer != [None; 4]);
        assert!(supported.clone().count() > 0, "{answers:?}");
        for answer in supported {
            assert_eq!(answer, [Some(true), Some(false), Some(false), Some(false)], "{answers:?}");
        }
    }

    #[test]
    fn drop_leaves_a_reused_number_open() {
        let event = made(false);
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let number = event.number;
        // SAFETY: the number belongs to this test.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        drop(event);
        // SAFETY: numbers only.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
        // SAFETY: the number belongs to this test.
        unsafe { libc::close(number) };
    }

    #[test]
    fn lower_does_not_block_on_an_empty_counter() {
        let mut event = made(false);
        event.raise();
        rustix::io::read(&event.own, &mut [0; 8]).unwrap();
        event.lower();
    }
}
