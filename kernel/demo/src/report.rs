//! Reports of a run: progress, and a result for each operation.

use crate::histogram::Histogram;

/// The operations that the run moves data by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Connecting and disconnecting; moves nothing.
    Connection,
    /// DAT sends into the peer's receives, both ways.
    SendRecv,
    /// DAT RDMA writes from the client into the server's memory.
    RdmaWrite,
    /// DAT RDMA reads by the client out of the server's memory.
    RdmaRead,
    /// RMR binds: the peer reaches a window, and is refused outside its range, rights and time.
    Windows,
    /// 64 endpoints on one shared receive queue.
    SharedQueue,
    /// Watermarks of a shared receive queue and of its endpoint.
    Watermarks,
    /// A connection request handed on from service point to service point.
    Handoff,
    /// Connections made after the pattern of another.
    Duplicate,
    /// A graceful disconnect behind posted sends.
    Graceful,
    /// Suppressed, unsignalled and solicited completions.
    Completions,
    /// RDS datagrams, both ways.
    Rds,
}

impl Operation {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::SendRecv => "send_recv",
            Self::RdmaWrite => "rdma_write",
            Self::RdmaRead => "rdma_read",
            Self::Windows => "rmr_bind",
            Self::SharedQueue => "srq",
            Self::Watermarks => "watermarks",
            Self::Handoff => "cr_handoff",
            Self::Duplicate => "dup_connect",
            Self::Graceful => "graceful",
            Self::Completions => "completions",
            Self::Rds => "rds",
        }
    }
}

/// One side's part of an operation. Both sides' messages together equal both sides' verified together if all went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationResult {
    /// Which.
    pub operation: Operation,
    /// Messages (or RDMA transfers, or other things whose outcome is judged) that this side began.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that arrived here (or were read from the peer) and whose every byte was right.
    pub verified: u64,
    /// Time from the first to the last, nanoseconds, the making and checking of payloads included.
    pub ns: u64,
    /// Median latency, nanoseconds; 0 if this side measured none. From post to completion for DAT, a round trip for RDS.
    pub latency_median_ns: u64,
    /// 99th percentile of the latency, nanoseconds.
    pub latency_p99_ns: u64,
}

/// Hears of the run.
pub trait Reporter {
    /// Something has moved: `done` of `of` messages (or bytes, for RDMA) of this side's part.
    fn progress(&mut self, operation: Operation, done: u64, of: u64);
    /// An operation is over.
    fn result(&mut self, result: &OperationResult);
}

/// Counts of the operation that is going on.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) verified: u64,
    pub(crate) began: u64,
    pub(crate) latency: Histogram,
}

impl Tally {
    pub(crate) const fn new(began: u64) -> Self {
        Self { messages: 0, bytes: 0, verified: 0, began, latency: Histogram::new() }
    }

    pub(crate) fn result(&self, operation: Operation, now: u64) -> OperationResult {
        OperationResult {
            operation,
            messages: self.messages,
            bytes: self.bytes,
            verified: self.verified,
            ns: now.saturating_sub(self.began),
            latency_median_ns: self.latency.quantile(500),
            latency_p99_ns: self.latency.quantile(990),
        }
    }
}
