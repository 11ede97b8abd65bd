//! Notifies the parent process that clients can connect to the sockets.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};

/// An inherited descriptor for a single line.
#[derive(Debug)]
pub struct ReadyFd(File);

impl ReadyFd {
    /// Takes ownership of descriptor `number`.
    ///
    /// # Errors
    /// The descriptor is not open, or is a standard stream.
    pub fn new(number: RawFd) -> Result<Self> {
        let refused = |why| Error::Usage(format!("--ready-fd {number}: {why}"));
        if number <= 2 {
            return Err(refused("descriptors 0 to 2 have other uses: give 3 or more"));
        }
        // SAFETY: borrowed only to check that it is open. That is harmless for every number but -1,
        // which is excluded.
        let open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
        if open.is_err() {
            return Err(refused(
                "it is not open: start the server as in `hca-serve --ready-fd 3 ... 3>file`",
            ));
        }
        // SAFETY: the descriptor is open, and `--ready-fd` transfers its ownership to us before we
        // open any other.
        Ok(Self(unsafe { File::from_raw_fd(number) }))
    }

    /// Writes the line and closes the descriptor.
    pub fn tell(mut self) {
        // An error means that the parent no longer waits.
        let _ = self.0.write_all(b"ready\n");
    }
}
