//! Clock of the server: the system's, or one that counts work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Approximate durations of units of work, in nanoseconds.
mod price {
    /// A step of a device's [`Meter`](hca_model::Meter).
    pub const STEP: u64 = 20;
    /// A message that was received from a client.
    pub const MESSAGE: u64 = 300;
    /// A read from a socket.
    pub const READ: u64 = 1_500;
    /// An interrupt that was signalled to a client.
    pub const INTERRUPT: u64 = 700;
    /// A refusal, with or without a log line.
    pub const REFUSAL: u64 = 200;
    /// A line printed for the user.
    pub const LINE: u64 = 5_000;
    /// A client's connection and disconnection.
    pub const CONNECTION: u64 = 20_000;
    /// A failed device and its replacement.
    pub const FAILURE: u64 = 100_000;
}

/// Work for all clients so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub steps: u64,
    pub messages: u64,
    pub reads: u64,
    pub interrupts: u64,
    pub refusals: u64,
    pub connections: u64,
    pub failures: u64,
    /// Time spent in calls that a client blocked.
    pub held_up: Duration,
}

/// The server's clock.
#[derive(Debug)]
pub enum Clock {
    /// The monotonic clock of the operating system.
    System,
    /// A clock that advances with the work done.
    Counted(Counted),
}

/// A clock that advances with the work done, so that equal work always takes equal time.
#[derive(Debug)]
pub struct Counted {
    began: Instant,
    worked: Duration,
    idle: Duration,
    /// Number of lines printed for the user.
    lines: Arc<AtomicU64>,
}

impl Counted {
    /// Starts the clock at zero. The sinks of lines increment `lines`.
    pub fn new(lines: Arc<AtomicU64>) -> Self {
        Self { began: Instant::now(), worked: Duration::ZERO, idle: Duration::ZERO, lines }
    }
}

impl Clock {
    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Counted(counted) => counted.began + counted.worked + counted.idle,
        }
    }

    /// Advances a counted clock to the total work `done`.
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

    /// Advances a counted clock by a time without work.
    pub fn pass(&mut self, idle: Duration) {
        if let Self::Counted(counted) = self {
            counted.idle += idle;
        }
    }

    /// Returns the part of the counted time that was work.
    pub fn worked(&self) -> Duration {
        match self {
            Self::System => Duration::ZERO,
            Self::Counted(counted) => counted.worked,
        }
    }
}
