//! Why a run ended without success.

use core::fmt;

use rds_nostd::{RdmaStatus, RdsError};

/// Why a run ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StressError {
    /// A call failed.
    Rds {
        /// Which.
        call: &'static str,
        /// How.
        error: RdsError,
    },
    /// No TCP connection to the passive side.
    NotConnected {
        /// For how long it was tried, milliseconds.
        waited_ms: u64,
    },
    /// The TCP connection ended before the run began.
    Ended,
    /// An option that this node cannot go by.
    Option {
        /// Which, as rds-stress's switch.
        switch: &'static str,
        /// What was asked for.
        value: u64,
        /// The least and the most that may be.
        range: (u64, u64),
    },
    /// A message is not the one that is due.
    Message {
        /// The task that received it.
        task: usize,
        /// The part of it that is wrong.
        part: &'static str,
        /// As it should be.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// An RDMA operation failed.
    Operation(RdmaStatus),
    /// Bytes that were read or written by RDMA are wrong.
    Memory {
        /// The first of them.
        position: usize,
    },
}

impl fmt::Display for StressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rds { call, error } => write!(f, "{call}: {error}"),
            Self::NotConnected { waited_ms } => {
                write!(f, "no connection to the passive side for {waited_ms} ms")
            }
            Self::Ended => f.write_str("the other side closed the connection before the run began"),
            Self::Option { switch, value, range: (least, most) } => {
                write!(f, "{switch} {value} is not possible here: {least} to {most}")
            }
            Self::Message { task, part, expected, found } => {
                write!(f, "a message to task {task} has {part} {found} in place of {expected}")
            }
            Self::Operation(status) => write!(f, "an RDMA operation ended with {status:?}"),
            Self::Memory { position } => write!(f, "memory is wrong at byte {position} after RDMA"),
        }
    }
}

impl core::error::Error for StressError {}

/// Names the call that failed.
pub(super) trait InCall<T> {
    fn in_call(self, call: &'static str) -> Result<T, StressError>;
}

impl<T> InCall<T> for Result<T, RdsError> {
    fn in_call(self, call: &'static str) -> Result<T, StressError> {
        self.map_err(|error| StressError::Rds { call, error })
    }
}
