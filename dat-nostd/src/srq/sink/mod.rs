//! Completions of streams without an EVD: receives from SRQs by EPs that have no receive EVD.

mod drain;

use driver_mlx::{Bar, Cq, CqNumber, Error, Hca, Platform};

/// The CQ of streams that have no EVD.
pub(crate) struct Sink<B: Bar> {
    cq: Cq<B>,
    armed: bool,
}

impl<B: Bar> Sink<B> {
    pub(crate) fn new(cq: Cq<B>) -> Self {
        Self { cq, armed: false }
    }

    /// The CQ's number.
    pub(crate) fn number(&self) -> CqNumber {
        self.cq.number()
    }

    /// Makes the CQ hold `entries` completions.
    pub(crate) fn resize<P: Platform<Bar = B>>(
        &mut self,
        hca: &mut Hca<'_, P>,
        entries: u32,
    ) -> Result<(), Error> {
        hca.resize_cq(&mut self.cq, entries)
    }

    /// Its CQ, to be destroyed.
    pub(crate) fn into_cq(self) -> Cq<B> {
        self.cq
    }

    /// Returns whether a completion waits to be taken.
    pub(crate) fn has_work(&self) -> bool {
        !self.cq.is_empty()
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
