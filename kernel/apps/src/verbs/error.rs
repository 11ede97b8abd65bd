//! What can go wrong, in words for a person.

use core::fmt;

use driver_mlx::{CompletionError, CqError, Error, PostError, Rejected};

use super::agreement::Operation;

/// Why a run ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsError {
    /// The driver, while objects were made or changed.
    Driver(Error),
    /// The HCA has no atomic operations.
    NoAtomics,
    /// A work request was refused by its queue.
    Post(PostError),
    /// A completion that the device cannot have meant.
    Completion(CqError),
    /// A work request failed.
    Transfer {
        /// Its syndrome.
        error: CompletionError,
        /// What was going on; nothing before the first message.
        during: Option<Operation>,
    },
    /// Bytes arrived that were not sent so.
    Mismatch {
        /// Moved by this operation.
        operation: Operation,
        /// The peer's transfer.
        message: u32,
        /// At this byte; equal to the length if the length is wrong.
        position: usize,
    },
    /// An atomic operation answered with, or left behind, another word than expected.
    Word {
        /// Which operation.
        operation: Operation,
        /// Which one of them.
        message: u32,
        /// The word found.
        found: u64,
        /// The word expected.
        expected: u64,
    },
    /// The peer said something out of turn.
    Protocol {
        /// What was going on; nothing before the first message.
        during: Option<Operation>,
    },
    /// Nothing moved for too long.
    Stalled {
        /// What was going on; nothing before the first message.
        during: Option<Operation>,
        /// For how long, milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |during: &Option<Operation>| during.map_or("connecting", Operation::name);
        match self {
            Self::Driver(error) => error.fmt(f),
            Self::NoAtomics => f.write_str("the HCA has no atomic operations (capability atomic)"),
            Self::Post(error) => write!(f, "post: {error}"),
            Self::Completion(error) => error.fmt(f),
            Self::Transfer { error, during } => write!(
                f,
                "work request failed with {:?} (vendor syndrome {:#x}) during {}",
                error.syndrome,
                error.vendor,
                name(during)
            ),
            Self::Mismatch { operation, message, position } => {
                write!(f, "wrong data: {} {message}, byte {position}", operation.name())
            }
            Self::Word { operation, message, found, expected } => {
                write!(f, "wrong word: {} {message}: {found:#x}, not {expected:#x}", operation.name())
            }
            Self::Protocol { during } => write!(f, "the peer spoke out of turn during {}", name(during)),
            Self::Stalled { during, waited_ms } => {
                write!(f, "nothing moved for {waited_ms} ms during {}", name(during))
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
