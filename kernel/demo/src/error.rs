//! What can go wrong with a run, in words for a person.

use core::fmt;

use apps::connection::CallError;
use dat_nostd::{ConnectionEvent, DatReturn, DtoStatus};
use rds_nostd::RdsError;

use crate::report::Operation;

/// Why a run ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoError {
    /// A DAT call failed.
    Dat {
        /// Which call.
        call: &'static str,
        /// Its answer.
        error: DatReturn,
    },
    /// An RDS call failed.
    Rds {
        /// Which call.
        call: &'static str,
        /// Its answer.
        error: RdsError,
    },
    /// No connection within the time given.
    PeerNeverCameUp {
        /// How long it was tried, in milliseconds.
        waited_ms: u64,
        /// What the last attempt ended with.
        last: Option<ConnectionEvent>,
    },
    /// The connection ended in the middle of the run.
    ConnectionLost {
        /// How.
        event: ConnectionEvent,
        /// What was going on.
        during: Operation,
    },
    /// A transfer failed.
    Transfer {
        /// Its status.
        status: DtoStatus,
        /// The HCA's own code for it.
        vendor_syndrome: u8,
        /// What was going on.
        during: Operation,
    },
    /// Bytes arrived that were not sent so.
    Mismatch {
        /// Moved by this operation.
        operation: Operation,
        /// In this message of the peer.
        sequence: u64,
        /// At this byte; equal to the length if the length is wrong.
        position: usize,
    },
    /// The peer said something out of turn.
    Protocol {
        /// What was going on.
        during: Operation,
    },
    /// An object did not behave as it should.
    Unexpected {
        /// What was going on.
        during: Operation,
        /// What was not as it should be.
        what: &'static str,
    },
    /// Nothing moved for too long.
    Stalled {
        /// What was going on.
        during: Operation,
        /// For how long, in milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for DemoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dat { call, error } => write!(f, "{call}: {error}"),
            Self::Rds { call, error } => write!(f, "{call}: {error}"),
            Self::PeerNeverCameUp { waited_ms, last: None } => {
                write!(f, "the peer never came up: nobody connected for {waited_ms} ms")
            }
            Self::PeerNeverCameUp { waited_ms, last: Some(last) } => {
                write!(
                    f,
                    "the peer never came up: tried for {waited_ms} ms, last attempt ended with {last:?}"
                )
            }
            Self::ConnectionLost { event, during } => {
                write!(f, "connection lost ({event:?}) during {}", during.name())
            }
            Self::Transfer { status, vendor_syndrome, during } => {
                write!(
                    f,
                    "transfer failed with {status:?} (vendor syndrome {vendor_syndrome:#x}) during {}",
                    during.name()
                )
            }
            Self::Mismatch { operation, sequence, position } => {
                write!(f, "wrong data: {} message {sequence}, byte {position}", operation.name())
            }
            Self::Protocol { during } => {
                write!(f, "the peer broke the demonstration's protocol during {}", during.name())
            }
            Self::Unexpected { during, what } => write!(f, "{what}, during {}", during.name()),
            Self::Stalled { during, waited_ms } => {
                write!(f, "nothing moved for {waited_ms} ms during {}", during.name())
            }
        }
    }
}

impl core::error::Error for DemoError {}

impl From<CallError> for DemoError {
    fn from(error: CallError) -> Self {
        Self::Dat { call: error.call, error: error.error }
    }
}

/// Names the call in an error.
pub(crate) trait InCall<T> {
    fn in_call(self, call: &'static str) -> Result<T, DemoError>;
}

impl<T> InCall<T> for Result<T, DatReturn> {
    fn in_call(self, call: &'static str) -> Result<T, DemoError> {
        self.map_err(|error| DemoError::Dat { call, error })
    }
}

impl<T> InCall<T> for Result<T, RdsError> {
    fn in_call(self, call: &'static str) -> Result<T, DemoError> {
        self.map_err(|error| DemoError::Rds { call, error })
    }
}
