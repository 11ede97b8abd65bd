//! Error type of the server: each variant is one line for the user.

use std::io;
use std::path::{Path, PathBuf};

/// Error of the server. Its text is complete and takes one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file or socket operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Failed action, as in "cannot write".
        action: &'static str,
        /// File of the action.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The server cannot start, or exited early.
    #[error("{0}")]
    Serve(String),
}

/// Result of the server.
pub type Result<T> = core::result::Result<T, Error>;

/// Adds the action and the path to an [`io::Error`].
pub(crate) trait IoContext<T> {
    /// Adds the failed action and its file.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_path_buf(), source })
    }
}
