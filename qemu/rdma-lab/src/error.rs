//! Error type of the host tool: each variant is one line for the user.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Error of the host tool. Its text is complete and takes one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong. The usage is printed after the message.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks a requirement that the tool cannot provide. Contains what to install.
    #[error("{what}; {remedy}")]
    Missing {
        /// Missing requirement or impossible action.
        what: String,
        /// Remedy for the user.
        remedy: String,
    },
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
    /// A program could not be started or failed.
    #[error("{0}")]
    Program(String),
    /// A file or a reply is malformed.
    #[error("{0}")]
    Format(String),
    /// A time limit passed.
    #[error("{what} after {:.0} s", limit.as_secs_f64())]
    Timeout {
        /// Event that did not happen.
        what: String,
        /// Time limit.
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

/// Result of the host tool.
pub type Result<T> = core::result::Result<T, Error>;

/// Adds the action and the path to an [`io::Error`].
pub trait IoContext<T> {
    /// Adds the failed action and its file.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_path_buf(), source })
    }
}
