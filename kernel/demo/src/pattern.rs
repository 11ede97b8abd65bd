//! Streams of messages, whose bytes are [`Payload`]s.

use ib_types::Payload;

/// Which stream a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The node that produces the bytes.
    pub sender: u8,
    /// The operation they are moved by.
    pub operation: u8,
    /// Varies the whole run.
    pub seed: u64,
}

impl Stream {
    /// Returns the bytes of a message.
    #[must_use]
    pub const fn payload(self, sequence: u64) -> Payload {
        let who = ((self.sender as u64) << 56) | ((self.operation as u64) << 48);
        Payload::new(self.seed, who, sequence)
    }
}
