//! The one error type of the host tool: each variant is one clear line for the user.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What can go wrong on the host side. The text is what the user reads, complete in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong; the usage follows it.
    #[error("{0}")]
    Usage(String),
    /// Something the machine lacks and the tool cannot provide, with what to install.
    #[error("{what}; {remedy}")]
    Missing {
        /// What is missing or cannot be done.
        what: String,
        /// What the user can do about it.
        remedy: String,
    },
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
    /// A program could not be started or failed.
    #[error("{0}")]
    Program(String),
    /// A file or an answer is not in the form it should have.
    #[error("{0}")]
    Format(String),
    /// Something did not happen in the time it may take.
    #[error("{what} after {:.0} s", limit.as_secs_f64())]
    Timeout {
        /// What did not happen.
        what: String,
        /// The limit that passed.
        limit: Duration,
    },
    /// A guest reported a failure, crashed or disappeared.
    #[error("{0}")]
    Guest(String),
    /// The emulated HCA's server failed.
    #[error("{0}")]
    Serve(String),
}

impl From<hca_serve::Error> for Error {
    fn from(error: hca_serve::Error) -> Self {
        match error {
            hca_serve::Error::Usage(text) => Self::Usage(text),
            hca_serve::Error::Io { action, path, source } => Self::Io { action, path, source },
            hca_serve::Error::Serve(text) => Self::Serve(text),
        }
    }
}

/// The host tool's result.
pub type Result<T> = core::result::Result<T, Error>;

/// Adds the action and the path to an [`io::Error`].
pub trait IoContext<T> {
    /// Names what was being done to which file.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_path_buf(), source })
    }
}
