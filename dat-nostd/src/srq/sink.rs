//! Where completions go that nobody wants to hear of: receives from shared receive queues by endpoints without a receive EVD.

use driver_mlx::{Bar, Cq, CqNumber};

/// The CQ of streams that have no EVD.
pub(crate) struct Sink<B: Bar> {
    pub(crate) cq: Cq<B>,
    armed: bool,
}

impl<B: Bar> Sink<B> {
    pub(crate) fn new(cq: Cq<B>) -> Self {
        Self { cq, armed: false }
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.cq.arm(false);
            self.armed = true;
        }
    }

    /// Whether an event was of this CQ.
    pub(crate) fn notified(&mut self, number: CqNumber) -> bool {
        if self.cq.number() != number {
            return false;
        }
        self.cq.notified();
        self.armed = false;
        true
    }
}
