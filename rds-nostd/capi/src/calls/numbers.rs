//! Numbers of descriptors: whose they are.

use crate::blocking::guarded;
use crate::process::{self, Whose};

/// Whether a descriptor is a socket of this library: 1, 2 for one of the parent process's, and 3 for a number that the library itself has of
/// a socket. Without a lock, and without a trace in
/// `errno`: handlers of signals write to their pipes by what this says.
#[unsafe(no_mangle)]
pub extern "C" fn rds_is_socket(fd: i32) -> i32 {
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let whose = process::whose(fd);
    // SAFETY: as above.
    unsafe { *errno = before };
    match whose {
        Whose::System => 0,
        Whose::Socket => 1,
        Whose::Parent => 2,
        Whose::Library => 3,
    }
}

/// `close_range(2)`; refused where it may close descriptors of the library's own, which are as many as it needs, and anywhere.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rds_close_range(first: u32, last: u32, flags: i32) -> i32 {
    const ONLY_MARKS: i32 = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    let close = || {
        if flags & ONLY_MARKS == 0 && process::is_up() {
            return Err(libc::EBUSY);
        }
        // SAFETY: numbers go in; the descriptors are the program's.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(0),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    };
    // SAFETY: numbers own nothing.
    unsafe { guarded(close) as i32 }
}
