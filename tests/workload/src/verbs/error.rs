//! Reasons why a run fails.

use core::fmt;

use driver_mlx::{CompletionError, CqError, Error, OutOfBounds, PostError, Rejected};

use super::program::Op;

/// Reason why a run fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsError {
    /// A driver call fails.
    Driver(Error),
    /// The HCA has no atomic operations.
    NoAtomics,
    /// A queue refuses a work request.
    Post(PostError),
    /// A completion is malformed.
    Completion(CqError),
    /// A work request fails.
    Transfer {
        /// Its syndrome.
        error: CompletionError,
        /// The operation at that time.
        during: Op,
    },
    /// Payload of the peer is wrong.
    Mismatch {
        /// Operation that moved it.
        op: Op,
        /// The peer's turn.
        number: u32,
        /// First wrong byte; the length that arrived if that is wrong.
        position: usize,
    },
    /// An atomic operation returned or left a wrong word.
    Word {
        /// Operation.
        op: Op,
        /// Turn.
        number: u32,
        /// Word found.
        found: u64,
        /// Word expected.
        expected: u64,
    },
    /// A message or completion arrives out of turn.
    OutOfTurn {
        /// The operation at that time.
        during: Op,
    },
    /// No progress for too long.
    Stalled {
        /// The operation at that time.
        during: Op,
        /// Time without progress in milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(error) => error.fmt(f),
            Self::NoAtomics => f.write_str("the HCA has no atomic operations (capability atomic)"),
            Self::Post(error) => write!(f, "post: {error}"),
            Self::Completion(error) => error.fmt(f),
            Self::Transfer { error: CompletionError { syndrome, vendor, .. }, during } => {
                write!(f, "{}: a work request failed: {syndrome:?}, vendor {vendor:#x}", during.name())
            }
            Self::Mismatch { op, number, position } => {
                write!(f, "{} {number}: wrong data at byte {position}", op.name())
            }
            Self::Word { op, number, found, expected } => {
                write!(f, "{} {number}: the word is {found:#x}, not {expected:#x}", op.name())
            }
            Self::OutOfTurn { during } => write!(f, "{}: a message out of turn", during.name()),
            Self::Stalled { during, waited_ms } => {
                write!(f, "{}: no progress for {waited_ms} ms", during.name())
            }
        }
    }
}

impl core::error::Error for VerbsError {}

impl From<Error> for VerbsError {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl<T> From<Rejected<T>> for VerbsError {
    fn from(rejected: Rejected<T>) -> Self {
        Self::Driver(rejected.error)
    }
}

impl From<PostError> for VerbsError {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

impl From<CqError> for VerbsError {
    fn from(error: CqError) -> Self {
        Self::Completion(error)
    }
}

/// The layout of the memory is constant.
impl From<OutOfBounds> for VerbsError {
    fn from(_: OutOfBounds) -> Self {
        Self::Driver(Error::InvalidArgument("memory"))
    }
}
