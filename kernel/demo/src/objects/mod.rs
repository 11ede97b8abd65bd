//! DAT's objects between the nodes: windows, a queue shared by many endpoints, watermarks, service points, the graceful end,
//! notification. Each is a step of its own with an IA of its own, whose objects go with it.
//!
//! A step has two sides, one for each role, which are driven by the events of the IA and by tokens: control messages on the
//! demonstration's own connection that say "go on". The first one of each step is the server's: it listens.

mod completions;
mod graceful;
mod party;
mod scene;
mod services;
mod shared;
mod watermarks;
mod windows;

use dat_nostd::{Adapter, Instant, Platform};

use crate::error::DemoError;
use crate::link::Link;
use crate::parts::Plan;
use crate::report::{Operation, Tally};
use crate::{Config, Role};
use party::Party;
use scene::{Feature, Scene};

/// Events taken in one poll.
const EVENTS_PER_POLL: usize = 64;

#[allow(clippy::large_enum_variant)] // There is no heap to put the large ones on, and only one at a time.
enum Side {
    Owner(windows::Owner),
    Visitor(windows::Visitor),
    Collector(shared::Collector),
    Crowd(shared::Crowd),
    Keeper(watermarks::Keeper),
    Pusher(watermarks::Pusher),
    Clerk(services::Clerk),
    Asker(services::Asker),
    Host(services::Host),
    Guests(services::Guests),
    Taker(graceful::Taker),
    Leaver(graceful::Leaver),
    Sleeper(completions::Sleeper),
    Waker(completions::Waker),
}

impl Side {
    fn feature<P: Platform>(&mut self) -> &mut dyn Feature<P> {
        match self {
            Self::Owner(side) => side,
            Self::Visitor(side) => side,
            Self::Collector(side) => side,
            Self::Crowd(side) => side,
            Self::Keeper(side) => side,
            Self::Pusher(side) => side,
            Self::Clerk(side) => side,
            Self::Asker(side) => side,
            Self::Host(side) => side,
            Self::Guests(side) => side,
            Self::Taker(side) => side,
            Self::Leaver(side) => side,
            Self::Sleeper(side) => side,
            Self::Waker(side) => side,
        }
    }
}

/// A step in the middle.
pub(crate) struct Objects {
    party: Party,
    side: Side,
    told: u64,
    tokens: u64,
    events: u64,
    done: bool,
}

impl Objects {
    /// Makes this side's objects; the server listens from here on, and says so.
    pub(crate) fn open<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        link: &mut Link,
        config: &Config,
        plan: &Plan,
        tally: &mut Tally,
        now: Instant,
    ) -> Result<Self, DemoError> {
        let party = Party::open(adapter, config)?;
        let mut tokens = 0;
        let mut scene = Scene { adapter, link, plan, tally, now, told: 0, tokens: &mut tokens };
        let serves = config.role == Role::Server;
        let side = match (plan.operation, serves) {
            (Operation::Windows, true) => Side::Owner(windows::Owner::open(&mut scene, &party)?),
            (Operation::Windows, false) => Side::Visitor(windows::Visitor::open(&mut scene, &party)?),
            (Operation::SharedQueue, true) => Side::Collector(shared::Collector::open(&mut scene, &party)?),
            (Operation::SharedQueue, false) => Side::Crowd(shared::Crowd::new()),
            (Operation::Watermarks, true) => Side::Keeper(watermarks::Keeper::open(&mut scene, &party)?),
            (Operation::Watermarks, false) => Side::Pusher(watermarks::Pusher::open(&mut scene, &party)?),
            (Operation::Handoff, true) => Side::Clerk(services::Clerk::open(&mut scene, &party)?),
            (Operation::Handoff, false) => Side::Asker(services::Asker::open(&mut scene, &party)?),
            (Operation::Duplicate, true) => Side::Host(services::Host::open(&mut scene, &party)?),
            (Operation::Duplicate, false) => Side::Guests(services::Guests::new()),
            (Operation::Graceful, true) => Side::Taker(graceful::Taker::open(&mut scene, &party)?),
            (Operation::Graceful, false) => Side::Leaver(graceful::Leaver::open(&mut scene, &party)?),
            (Operation::Completions, true) => Side::Sleeper(completions::Sleeper::open(&mut scene, &party)?),
            (Operation::Completions, false) => Side::Waker(completions::Waker::open(&mut scene, &party)?),
            _ => return Err(scene.unexpected("a step without objects")),
        };
        if serves {
            scene.tell()?;
        }
        Ok(Self { party, side, told: 0, tokens, events: 0, done: false })
    }

    /// The peer's token number `n`.
    pub(crate) fn told(&mut self, n: u64, plan: &Plan) -> Result<(), DemoError> {
        if n != self.told {
            return Err(DemoError::Protocol { during: plan.operation });
        }
        self.told += 1;
        Ok(())
    }

    /// Moves on; whether this side is done.
    pub(crate) fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        link: &mut Link,
        plan: &Plan,
        tally: &mut Tally,
        now: Instant,
    ) -> Result<bool, DemoError> {
        let Self { party, side, told, tokens, events, done } = self;
        let mut scene = Scene { adapter, link, plan, tally, now, told: *told, tokens };
        let feature = side.feature::<P>();
        for _ in 0..EVENTS_PER_POLL {
            let Some(event) = party.next(scene.adapter)? else { break };
            *events += 1;
            // The peer may leave as soon as both are done.
            if !*done {
                feature.event(&mut scene, party, event)?;
            }
        }
        *done = *done || feature.advance(&mut scene, party)?;
        Ok(*done)
    }

    /// What has happened, as a number that grows.
    pub(crate) fn moved(&self) -> u64 {
        self.events + self.told + self.tokens
    }

    /// Closes the IA with everything in it.
    pub(crate) fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        self.party.close(adapter)
    }
}
