//! Error type of the checks: each variant is one line for the user.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a check. Its text is complete and takes one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Failed action, as in "cannot write".
        action: &'static str,
        /// File of the action.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A check found faults, or a program failed.
    #[error("{0}")]
    Failed(String),
    /// A file is malformed.
    #[error("{0}")]
    Format(String),
}

/// Result of a check.
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
