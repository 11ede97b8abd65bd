//! Why a run ended without success.

use core::fmt;

use rds_nostd::RdsError;

/// Why a run ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppError {
    /// A call failed.
    Rds {
        /// Which.
        call: &'static str,
        /// How.
        error: RdsError,
    },
    /// More messages than were to come, or one from a socket that sends none.
    Unexpected {
        /// The receiver's socket.
        receiver: usize,
    },
    /// A number at a step of a program differs from the expected one.
    Wrong {
        /// Step or part of the program.
        at: usize,
        /// Meaning of the number.
        what: &'static str,
        /// Expected number.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// Nothing moved for too long.
    Stalled {
        /// Messages moved until then.
        moved: u64,
        /// For how long, in milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rds { call, error } => write!(f, "{call}: {error}"),
            Self::Unexpected { receiver } => {
                write!(f, "a message to socket {receiver} that nobody was to send")
            }
            Self::Wrong { at, what, expected, found } => {
                write!(f, "part {at}: {what} is {found:#x}, not {expected:#x}")
            }
            Self::Stalled { moved, waited_ms } => {
                write!(f, "nothing moved for {waited_ms} ms after {moved} messages")
            }
        }
    }
}

impl core::error::Error for AppError {}

/// Names the call that failed.
pub trait InCall<T> {
    /// Returns the same result with the call's name.
    ///
    /// # Errors
    /// That of the call.
    fn in_call(self, call: &'static str) -> Result<T, AppError>;
}

impl<T> InCall<T> for Result<T, RdsError> {
    fn in_call(self, call: &'static str) -> Result<T, AppError> {
        self.map_err(|error| AppError::Rds { call, error })
    }
}
