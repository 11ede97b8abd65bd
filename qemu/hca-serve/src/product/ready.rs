//! Tells whoever started the server that its sockets can be connected to.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};

/// A descriptor that was inherited for one line.
#[derive(Debug)]
pub struct ReadyFd(File);

impl ReadyFd {
    /// Takes over descriptor `number`.
    ///
    /// # Errors
    /// It is not open, or one of the standard streams.
    pub fn new(number: RawFd) -> Result<Self> {
        let refused = |why| Error::Usage(format!("--ready-fd {number}: {why}"));
        if number <= 2 {
            return Err(refused("descriptors 0 to 2 have other uses: give 3 or more"));
        }
        // SAFETY: borrowed only to ask whether it is open, which is harmless for any number but -1.
        let open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
        if open.is_err() {
            return Err(refused(
                "it is not open: start the server as in `hca-serve --ready-fd 3 ... 3>file`",
            ));
        }
        // SAFETY: it is open; by naming it on the command line, whoever started this program gave it away, before anything else was
        // opened here.
        Ok(Self(unsafe { File::from_raw_fd(number) }))
    }

    /// Writes the line and closes the descriptor.
    pub fn tell(mut self) {
        // Nobody listens any more: then nobody waits.
        let _ = self.0.write_all(b"ready\n");
    }
}
