//! Levels, verdicts, and how they are told.

use core::fmt;
use driver_mlx::report::{History, Report};
use driver_mlx::{Bar, Instant};

use super::stage::Stage;

/// Takes lines.
pub type Out<'o> = &'o mut dyn FnMut(fmt::Arguments<'_>);

/// What is tried, each on top of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The device answers, and its firmware runs.
    Found,
    /// Firmware takes commands: bring-up, tear-down, and, with the levels above the driver, bring-up again.
    Commands,
    /// Objects are made.
    Objects,
    /// Requests without a packet go through send queue, completion queue and event queue.
    Nop,
    /// Data go through the card to itself.
    Data,
    /// DAT connects the card to itself, by the subnet administrator and the connection manager, and moves data.
    Dat,
    /// RDS starts on the card.
    Rds,
}

impl Level {
    /// All, in their order.
    pub const ALL: [Self; 7] =
        [Self::Found, Self::Commands, Self::Objects, Self::Nop, Self::Data, Self::Dat, Self::Rds];

    /// A short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Commands => "commands",
            Self::Objects => "objects",
            Self::Nop => "nop",
            Self::Data => "data",
            Self::Dat => "dat",
            Self::Rds => "rds",
        }
    }

    /// What it needs.
    #[must_use]
    pub const fn needs(self) -> &'static str {
        match self {
            Self::Found => "a function of the mlx5 family with memory decoding on",
            Self::Commands => "bus mastering, and DMA that reaches this memory at these addresses",
            Self::Objects => "memory for firmware",
            Self::Nop => "doorbells and event queues; no cable",
            Self::Data => {
                "a card that loops connections, or an Active port: a cable, on InfiniBand a subnet manager"
            }
            Self::Dat => {
                "an Active port, and memory for a second bring-up; to another card: a partner and app=rping"
            }
            Self::Rds => "the same; its messages to itself do not leave the node: a partner and app=rds",
        }
    }
}

/// What came of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was as it has to be.
    Passed,
    /// Something was not.
    Failed,
    /// What it needs was not there; that is no fault of the card.
    OutOfReach,
}

/// All verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    verdicts: [Verdict; Level::ALL.len()],
    port_is_active: bool,
}

impl Summary {
    /// Nothing passed yet.
    pub(super) const fn new() -> Self {
        Self { verdicts: [Verdict::OutOfReach; Level::ALL.len()], port_is_active: false }
    }

    pub(super) fn set(&mut self, level: Level, verdict: Verdict) {
        if let Some(slot) = self.verdicts.get_mut(level as usize) {
            *slot = verdict;
        }
    }

    /// The port became Active in time.
    pub(super) fn port_is_active(&mut self) {
        self.port_is_active = true;
    }

    /// Returns how long levels above the driver wait for the port, seconds.
    pub(super) fn patience(&self) -> u64 {
        if self.port_is_active { 30 } else { 0 }
    }

    /// A level is not passed: says why, and, where something has failed, all that the device has to say of it.
    pub(super) fn told<B: Bar>(
        &mut self,
        level: Level,
        stage: &Stage,
        bar: B,
        history: History<'_>,
        out: Out<'_>,
    ) {
        out(format_args!("level {}: {stage}", level.name()));
        if let Stage::Missing(_) = stage {
            return self.set(level, Verdict::OutOfReach);
        }
        self.set(level, Verdict::Failed);
        out(format_args!("{}", Report::new(stage, bar, history)));
    }

    /// What came of `level`.
    #[must_use]
    pub fn verdict(&self, level: Level) -> Verdict {
        self.verdicts.get(level as usize).copied().unwrap_or(Verdict::OutOfReach)
    }

    /// Whether the card does what it can do here: no level failed, and none was out of reach but those that need an Active port.
    #[must_use]
    pub fn verified(&self) -> bool {
        Level::ALL.into_iter().all(|level| match self.verdict(level) {
            Verdict::Passed => true,
            Verdict::OutOfReach => level >= Level::Data,
            Verdict::Failed => false,
        })
    }

    /// Whether a level has failed.
    pub(super) fn has_failed(&self) -> bool {
        Level::ALL.into_iter().any(|level| self.verdict(level) == Verdict::Failed)
    }

    /// Tells all verdicts, a line each.
    pub fn tell(&self, out: Out<'_>) {
        for level in Level::ALL {
            let verdict = match self.verdict(level) {
                Verdict::Passed => "passed",
                Verdict::Failed => "FAILED",
                Verdict::OutOfReach => "out of reach",
            };
            out(format_args!(
                "@level name={} verdict=\"{verdict}\" needs=\"{}\"",
                level.name(),
                level.needs()
            ));
        }
    }
}

/// Tells a step and how long it took.
pub(super) fn step(out: Out<'_>, name: &str, began: Instant, ended: Instant, what: fmt::Arguments<'_>) {
    out(format_args!("@check name={name} us={} {what}", (ended - began).as_micros()));
}
