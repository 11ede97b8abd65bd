//! Owners of descriptors.

use crate::blocking::guarded;
use crate::process::{self, Whose};

/// Returns 0 for descriptors of the system, 1 for sockets of this library, 2 for sockets of the
/// parent process, and 3 for the library's own descriptors of sockets. Takes no lock and preserves
/// `errno`, because signal handlers that write to pipes call it.
#[unsafe(no_mangle)]
pub extern "C" fn rds_is_socket(fd: i32) -> i32 {
    // SAFETY: `errno` of this thread.
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

/// `close_range(2)`. Refused while the library may own descriptors, because their numbers are
/// anywhere.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rds_close_range(first: u32, last: u32, flags: i32) -> i32 {
    const ONLY_MARKS: i32 = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    let close = || {
        if flags & ONLY_MARKS == 0 && process::is_up() {
            return Err(libc::EBUSY);
        }
        // SAFETY: the arguments are numbers; the descriptors belong to the program.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(0),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    };
    // SAFETY: numbers own nothing.
    unsafe { guarded(close) as i32 }
}
