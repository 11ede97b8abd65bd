//! What both sides of every step work with.

use dat_nostd::{Adapter, EventData, Instant, Platform};

use super::party::Party;
use crate::error::DemoError;
use crate::link::{Control, Link};
use crate::parts::Plan;
use crate::report::Tally;

/// What a side works with.
pub(super) struct Scene<'a, 's, P: Platform> {
    pub(super) adapter: &'a mut Adapter<'s, P>,
    pub(super) link: &'a mut Link,
    pub(super) plan: &'a Plan,
    pub(super) tally: &'a mut Tally,
    pub(super) now: Instant,
    /// Tokens that have come.
    pub(super) told: u64,
    /// Tokens that have gone.
    pub(super) tokens: &'a mut u64,
}

impl<P: Platform> Scene<'_, '_, P> {
    /// Sends a token.
    pub(super) fn tell(&mut self) -> Result<(), DemoError> {
        let control = Control::Ready(*self.tokens);
        *self.tokens += 1;
        self.link.send_control(self.adapter, control)
    }

    /// Something tried turned out as it should: counted here on one side only, as a message and as one that was verified.
    pub(super) fn counts(&mut self) {
        self.tally.messages += 1;
        self.tally.verified += 1;
    }

    pub(super) fn unexpected(&self, what: &'static str) -> DemoError {
        DemoError::Unexpected { during: self.plan.operation, what }
    }

    /// An error unless it is so.
    pub(super) fn expect(&self, is_so: bool, what: &'static str) -> Result<(), DemoError> {
        if is_so { Ok(()) } else { Err(self.unexpected(what)) }
    }
}

/// One side of a step.
pub(super) trait Feature<P: Platform> {
    /// Takes an event of the side's IA.
    fn event(
        &mut self,
        scene: &mut Scene<'_, '_, P>,
        party: &Party,
        event: EventData,
    ) -> Result<(), DemoError>;

    /// Begins whatever may begin now; whether this side is done.
    fn advance(&mut self, scene: &mut Scene<'_, '_, P>, party: &Party) -> Result<bool, DemoError>;
}
