//! The server's error type: each variant is one clear line for the user.

use std::io;
use std::path::{Path, PathBuf};

/// Why something cannot be served. The text is complete in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file or socket operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done, as in "cannot write".
        action: &'static str,
        /// The file it was done to.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The server cannot start, or ended before its time.
    #[error("{0}")]
    Serve(String),
}

/// The server's result.
pub type Result<T> = core::result::Result<T, Error>;

/// Adds the action and the path to an [`io::Error`].
pub(crate) trait IoContext<T> {
    /// Names what was being done to which file.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_path_buf(), source })
    }
}
