//! `app=rds`: Reliable Datagram Sockets, between unikernels and with Linux's `rds_rdma`.
//!
//! | module | subject |
//! |---|---|
//! | `run` | the node: RDS, one of the works below, the end |
//! | `ping` | `mode=ping`: what `rds-ping` does |
//! | `echo` | `mode=echo`: sends back whatever comes |
//! | `hash` | `mode=hash`: messages of all sizes from 8 sockets to 8 sockets, each checked where it arrives, one sum over all |
//! | `pattern` | what those messages hold |
//! | `requester`, `server`, `cases` | `mode=rdma`: operations on memory that the server offers, with every switch |
//! | `congestion`, `server` | `mode=congestion`: a port that is not read |
//! | `bulk` | `mode=bulk`: many bytes into memory that the server offers again and again |
//! | `exchange` | what these say to each other |

mod bulk;
mod cases;
mod congestion;
mod echo;
mod exchange;
mod hash;
mod pattern;
mod ping;
mod requester;
mod run;
mod server;

use core::fmt;
use core::net::IpAddr;

use rds_nostd::{Counters, RdsError, RdsStorage};

use crate::Role;

pub use bulk::{BulkFault, BulkReport};
pub use congestion::{CongestionFault, CongestionReport};
pub use echo::EchoReport;
pub use hash::HashReport;
pub use pattern::{MAX_LEN, Pattern, Sum};
pub use ping::PingReport;
pub use rds_nostd::{Generation, TableKind};
pub use requester::{RdmaFault, RdmaReport};
pub use run::RdsApp;
pub use server::ServerReport;

/// Sockets of each side, in every mode.
pub const SOCKETS: usize = 8;
/// The echo server's sockets are bound to this port and those behind it.
pub const ECHO_PORT: u16 = 4000;
/// The hash receiver's sockets are bound to this port and those behind it.
pub const RECEIVER_PORT: u16 = 4100;
/// The hash sender's sockets are bound to this port and those behind it.
pub const SENDER_PORT: u16 = 4200;

/// The server of `mode=rdma` and `mode=congestion` is bound to this port.
pub const EXCHANGE_PORT: u16 = 4300;
/// Their clients are bound to this port and the one behind it.
pub const EXCHANGE_CLIENT_PORT: u16 = 4301;

/// The server of `mode=bulk` is bound to this port, its client to the one behind it.
pub const BULK_PORT: u16 = 4320;

/// Sockets: those of one mode, and some more.
const SOCKET_SLOTS: usize = 16;
/// Peers at the same time.
const CONNECTIONS: usize = 8;
/// Fragments; with a header each they take 12 MiB of the DMA region.
const FRAMES: usize = 3072;
/// Regions that peers may be offered at the same time, and operations on theirs.
const REGIONS: usize = 64;
const OPERATIONS: usize = 32;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Pings the peer: empty messages to port 0, from 8 sockets in turn.
    Ping {
        /// How many.
        count: u32,
        /// From one to the next, nanoseconds.
        interval: u64,
    },
    /// Sends back what arrives at 8 ports. Ends when it is told to.
    Echo,
    /// Messages of 0 bytes to 100 KiB from 8 sockets to 8 sockets.
    Hash {
        /// Who receives (server) and who sends (client).
        role: Role,
        /// How many messages in all; the same on both sides.
        count: u64,
        /// Varies sizes and contents; the same on both sides.
        seed: u64,
    },
    /// Does what the clients of [`Mode::Rdma`] and [`Mode::Congestion`] ask for. Ends when its client does.
    Serve,
    /// RDMA on memory that a server offers: every length with every switch, and what has to fail.
    Rdma {
        /// How often all of it.
        rounds: u32,
    },
    /// Bytes by RDMA, a MiB at a time, into memory that the server offers; bytes compared.
    Bulk {
        /// Who offers (server) and who writes (client).
        role: Role,
        /// How many bytes the client writes; not 0.
        bytes: u64,
    },
    /// A port of a server that is not read, filled until it closes.
    Congestion {
        /// How often.
        rounds: u32,
    },
}

/// What a node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What to do.
    pub mode: Mode,
    /// The other node; an echo server takes anybody.
    pub peer: IpAddr,
    /// Varies ports and times (see [`rds_nostd::RdsConfig`]).
    pub random: u64,
    /// Grows from boot to boot.
    pub generation: Generation,
    /// How long nothing may move, nanoseconds.
    pub stall_timeout: u64,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Of [`Mode::Ping`].
    Ping(PingReport),
    /// Of [`Mode::Echo`].
    Echo(EchoReport),
    /// Of [`Mode::Hash`].
    Hash(HashReport),
    /// Of [`Mode::Serve`].
    Serve(ServerReport),
    /// Of [`Mode::Rdma`].
    Rdma(RdmaReport),
    /// Of [`Mode::Bulk`].
    Bulk(BulkReport),
    /// Of [`Mode::Congestion`].
    Congestion(CongestionReport),
}

/// What came of a run: how it went, and what RDS counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it went.
    pub report: Report,
    /// What RDS counted.
    pub counters: Counters,
}

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
    /// A message is not the one that is due between these two sockets: its length, sender or contents.
    Mismatch {
        /// The sender's socket, from 0.
        sender: usize,
        /// The receiver's.
        receiver: usize,
        /// Number of the message between the two.
        number: u64,
        /// The first byte that is wrong; the length of what came if that is wrong.
        position: usize,
    },
    /// More messages than were to come, or one from a socket that sends none.
    Unexpected {
        /// The receiver's socket.
        receiver: usize,
    },
    /// The other side's sum over all messages is another one.
    WrongSum {
        /// Own.
        own: u64,
        /// The other side's.
        other: u64,
    },
    /// An operation, or what it left, is not as it should be.
    Rdma {
        /// In which case.
        case: usize,
        /// What it is.
        fault: RdmaFault,
    },
    /// A block did not go or come as it should.
    Bulk {
        /// Which.
        block: u64,
        /// What it is.
        fault: BulkFault,
    },
    /// A port was open or closed when it should not be, or messages are wrong.
    Congestion {
        /// In which round.
        time: u64,
        /// What it is.
        fault: CongestionFault,
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
            Self::Mismatch { sender, receiver, number, position } => write!(
                f,
                "message {number} from socket {sender} to socket {receiver} is wrong at byte {position}"
            ),
            Self::Unexpected { receiver } => {
                write!(f, "a message to socket {receiver} that nobody was to send")
            }
            Self::WrongSum { own, other } => {
                write!(f, "the sum over all messages is {own:016x} here and {other:016x} at the peer")
            }
            Self::Rdma { case, fault } => write!(f, "RDMA case {case}: {fault:?}"),
            Self::Bulk { block, fault } => write!(f, "block {block}: {fault:?}"),
            Self::Congestion { time, fault } => write!(f, "congestion, round {time}: {fault:?}"),
            Self::Stalled { moved, waited_ms } => {
                write!(f, "nothing moved for {waited_ms} ms after {moved} messages")
            }
        }
    }
}

impl core::error::Error for AppError {}

/// Names the call that failed.
trait InCall<T> {
    fn in_call(self, call: &'static str) -> Result<T, AppError>;
}

impl<T> InCall<T> for Result<T, RdsError> {
    fn in_call(self, call: &'static str) -> Result<T, AppError> {
        self.map_err(|error| AppError::Rds { call, error })
    }
}

/// The memory of a node: all zero bytes; [`Storage::dma_len`] more come from the adapter's DMA region.
pub struct Storage {
    rds: RdsStorage<SOCKET_SLOTS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS>,
    buffer: [u8; MAX_LEN],
}

impl Storage {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { rds: RdsStorage::new(), buffer: [0; MAX_LEN] }
    }

    /// Bytes of the DMA region that messages take.
    #[must_use]
    pub const fn dma_len() -> usize {
        RdsStorage::<SOCKET_SLOTS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS>::dma_len()
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self::new()
    }
}
