//! Why a run ended without success.

use core::fmt;

use rds_nostd::{RdmaStatus, RdsError};

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
            Self::Congestion { time, fault } => write!(f, "congestion, round {time}: {fault:?}"),
            Self::Stalled { moved, waited_ms } => {
                write!(f, "nothing moved for {waited_ms} ms after {moved} messages")
            }
        }
    }
}

impl core::error::Error for AppError {}

/// Names the call that failed.
pub(super) trait InCall<T> {
    fn in_call(self, call: &'static str) -> Result<T, AppError>;
}

impl<T> InCall<T> for Result<T, RdsError> {
    fn in_call(self, call: &'static str) -> Result<T, AppError> {
        self.map_err(|error| AppError::Rds { call, error })
    }
}

/// What went wrong in `mode=congestion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionFault {
    /// An answer that was not asked for, or no message at all.
    Answer,
    /// The server could not do what it was asked.
    Refused {
        /// Its errno.
        errno: u64,
    },
    /// Messages at the server that are wrong, missing or too many.
    Messages {
        /// Which are wrong.
        wrong: u64,
        /// There are more than were sent.
        more: bool,
    },
    /// The port took a message while it should take none.
    NotBlocked,
    /// The port closed before its receive buffer was full.
    TooEarly {
        /// Messages that it had taken.
        messages: u64,
    },
    /// A congestion update came that was not due.
    Update {
        /// What it told.
        ports: u64,
    },
}

/// What went wrong in `mode=rdma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaFault {
    /// An answer that was not asked for, or no message at all.
    Answer,
    /// The server's errno is another one.
    Errno {
        /// The one that was due.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// The answer has no cookie.
    NoCookie,
    /// The operation ended otherwise.
    Status {
        /// As it should.
        expected: RdmaStatus,
        /// As it did.
        found: RdmaStatus,
    },
    /// An end was told that nobody asked for.
    Told,
    /// Bytes of the server's memory are wrong.
    Remote {
        /// How many.
        count: u64,
        /// The first.
        first: u64,
    },
    /// Bytes of the client's memory are wrong.
    Local {
        /// How many.
        count: u64,
        /// The first.
        first: u64,
    },
}
