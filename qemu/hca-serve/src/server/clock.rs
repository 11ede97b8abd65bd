//! What time it is for the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// About how long the pieces of work last, in nanoseconds.
mod price {
    /// A step of a device's [`Meter`](hca_model::Meter).
    pub const STEP: u64 = 20;
    /// A message taken.
    pub const MESSAGE: u64 = 300;
    /// A read of a socket.
    pub const READ: u64 = 1_500;
    /// An interrupt sent.
    pub const INTERRUPT: u64 = 700;
    /// A refusal, whether anybody is told or not.
    pub const REFUSAL: u64 = 200;
    /// A line that somebody is told.
    pub const LINE: u64 = 5_000;
    /// A client that came, and went.
    pub const CONNECTION: u64 = 20_000;
    /// A device that failed and is made anew.
    pub const FAILURE: u64 = 100_000;
}

/// What was done for all clients so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub steps: u64,
    pub messages: u64,
    pub reads: u64,
    pub interrupts: u64,
    pub refusals: u64,
    pub connections: u64,
    pub failures: u64,
    /// Spent on calls that a client held up.
    pub held_up: Duration,
}

/// The server's clock.
#[derive(Debug)]
pub enum Clock {
    /// The system's.
    System,
    /// One that goes on with what is done.
    Counted(Counted),
}

/// A clock that goes on with what is done, so that the same work always lasts as long.
#[derive(Debug)]
pub struct Counted {
    began: Instant,
    worked: Duration,
    idle: Duration,
    /// Lines that somebody was told.
    lines: Arc<AtomicU64>,
}

impl Counted {
    /// At its beginning; whoever is told lines counts them.
    pub fn new(lines: Arc<AtomicU64>) -> Self {
        Self { began: Instant::now(), worked: Duration::ZERO, idle: Duration::ZERO, lines }
    }
}

impl Clock {
    /// The time now.
    #[inline]
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Counted(counted) => counted.began + counted.worked + counted.idle,
        }
    }

    /// Where time is counted: this is what was done so far.
    #[inline]
    pub fn follow(&mut self, done: impl FnOnce() -> Done) {
        let Self::Counted(counted) = self else { return };
        let done = done();
        let lines = counted.lines.load(Ordering::Relaxed);
        let nanoseconds = [
            (done.steps, price::STEP),
            (done.messages, price::MESSAGE),
            (done.reads, price::READ),
            (done.interrupts, price::INTERRUPT),
            (done.refusals, price::REFUSAL),
            (lines, price::LINE),
            (done.connections, price::CONNECTION),
            (done.failures, price::FAILURE),
        ];
        let nanoseconds = nanoseconds.iter().map(|(count, price)| count.saturating_mul(*price)).sum();
        counted.worked = Duration::from_nanos(nanoseconds) + done.held_up;
    }

    /// Where time is counted: nothing is to be done for so long.
    pub fn pass(&mut self, idle: Duration) {
        if let Self::Counted(counted) = self {
            counted.idle += idle;
        }
    }

    /// Where time is counted: how much of it was work.
    pub fn worked(&self) -> Duration {
        match self {
            Self::System => Duration::ZERO,
            Self::Counted(counted) => counted.worked,
        }
    }
}
