//! The result of a step.

use core::fmt;

/// Result of a step. Displays as the words of a `@result` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// Name of the operation.
    pub op: &'static str,
    /// Operations of this side.
    pub messages: u64,
    /// Payload of this side's operations, in bytes.
    pub bytes: u64,
    /// Operations of the peer whose effect was compared and correct.
    pub verified: u64,
    /// Duration in nanoseconds.
    pub ns: u64,
}

impl StepResult {
    /// Returns the result before the first operation.
    #[must_use]
    pub const fn new(op: &'static str) -> Self {
        Self { op, messages: 0, bytes: 0, verified: 0, ns: 0 }
    }
}

impl fmt::Display for StepResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, messages, bytes, verified, ns } = self;
        write!(f, "op={op} messages={messages} bytes={bytes} verified={verified} ns={ns}")
    }
}
