//! `app=rping`: both sides of rdmacm-utils' `rping`, on DAT.
//!
//! The client offers its source buffer by a 16-byte message; the server reads it and says "go ahead" by a message whose content
//! does not matter; the client offers its sink; the server writes there what it read and says "go ahead" again. That is one
//! iteration. The client ends by disconnecting.
//!
//! | module | subject |
//! |---|---|
//! | `message` | the message, and the text that goes round |
//! | `link` | the connection's buffers, posting |
//! | `run` | the two sides |

mod link;
mod message;
mod run;

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use dat_nostd::{ConnectionEvent, DatReturn, DtoStatus};

use crate::Role;
use crate::connection::CallError;

pub use run::Rping;

/// The port that `rping` uses when it is told none.
pub const DEFAULT_PORT: u16 = 7174;
/// The sizes that `rping` takes, bytes.
pub const SIZES: core::ops::RangeInclusive<u32> = 26..=65_535;

/// What a side is told.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which side.
    pub role: Role,
    /// The IA's name.
    pub ia: &'static str,
    /// Whom the client connects to.
    pub peer: IpAddr,
    /// At which port.
    pub port: u16,
    /// Bytes of an iteration, within [`SIZES`]; the server takes what the client says.
    pub size: u32,
    /// Iterations of the client; the server goes on until the client ends.
    pub count: u32,
    /// Whether to compare: the client what came back with what it sent, the server what it read with what `rping` sends.
    pub verify: bool,
    /// Maximum time for the connection.
    pub connect_timeout: Duration,
    /// Maximum time without progress.
    pub stall_timeout: Duration,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Iterations done.
    pub iterations: u32,
    /// Bytes that went round, one way.
    pub bytes: u64,
    /// From the connection to the last iteration's end, nanoseconds.
    pub ns: u64,
}

/// Why a run ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpingError {
    /// A DAT call failed.
    Dat {
        /// Which call.
        call: &'static str,
        /// Its answer.
        error: DatReturn,
    },
    /// No connection within the time given.
    NotConnected {
        /// How long was waited, in milliseconds.
        waited_ms: u64,
        /// What the last attempt ended with.
        last: Option<ConnectionEvent>,
    },
    /// The connection ended in the middle of an iteration, or before the last.
    ConnectionLost {
        /// How.
        event: ConnectionEvent,
        /// In which iteration.
        iteration: u32,
    },
    /// A transfer failed.
    Transfer {
        /// Its status.
        status: DtoStatus,
        /// The HCA's own code for it.
        vendor_syndrome: u8,
        /// In which iteration.
        iteration: u32,
    },
    /// Other bytes arrived than were sent.
    Mismatch {
        /// In which iteration.
        iteration: u32,
        /// At this byte.
        position: usize,
    },
    /// The peer sent something that is no message of `rping`'s, or too large a size.
    Protocol {
        /// In which iteration.
        iteration: u32,
    },
    /// Nothing moved for too long.
    Stalled {
        /// In which iteration.
        iteration: u32,
        /// For how long, in milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for RpingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dat { call, error } => write!(f, "{call}: {error}"),
            Self::NotConnected { waited_ms, last: None } => {
                write!(f, "nobody connected for {waited_ms} ms")
            }
            Self::NotConnected { waited_ms, last: Some(last) } => {
                write!(f, "no connection for {waited_ms} ms, last attempt ended with {last:?}")
            }
            Self::ConnectionLost { event, iteration } => {
                write!(f, "connection lost ({event:?}) in iteration {iteration}")
            }
            Self::Transfer { status, vendor_syndrome, iteration } => write!(
                f,
                "transfer failed with {status:?} (vendor syndrome {vendor_syndrome:#x}) in iteration {iteration}"
            ),
            Self::Mismatch { iteration, position } => {
                write!(f, "wrong data: iteration {iteration}, byte {position}")
            }
            Self::Protocol { iteration } => {
                write!(f, "the peer does not speak rping's protocol: iteration {iteration}")
            }
            Self::Stalled { iteration, waited_ms } => {
                write!(f, "nothing moved for {waited_ms} ms in iteration {iteration}")
            }
        }
    }
}

impl core::error::Error for RpingError {}

impl From<CallError> for RpingError {
    fn from(error: CallError) -> Self {
        Self::Dat { call: error.call, error: error.error }
    }
}
