//! Counters, and a ring of what happened last, for looking at after something went wrong.

use crate::error::{FatalCause, HealthWarning, Step};
use crate::log::log;
use crate::types::{Duration, Instant, Mtu};
use core::fmt;
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum TraceKind {
    /// Nothing: the content of an unused slot.
    #[default]
    Empty,
    /// A command ended.
    Command {
        /// Which.
        opcode: Opcode,
        /// Its modifier.
        op_mod: u16,
        /// Delivery status.
        delivery: DeliveryStatus,
        /// Firmware's answer.
        status: CmdStatus,
        /// Firmware's reason.
        syndrome: u32,
        /// From issue to answer.
        took: Duration,
    },
    /// A command was given up.
    CommandTimeout {
        /// Which.
        opcode: Opcode,
        /// How long was waited.
        took: Duration,
    },
    /// An asynchronous event.
    Event {
        /// Its type.
        event: EventType,
        /// Its sub-type.
        sub_type: u8,
    },
    /// Pages went to firmware (positive) or came back (negative).
    Pages(i32),
    /// A step of bring-up or tear-down began.
    Step(Step),
    /// The health poll found this.
    Health(FatalCause),
    /// The health poll noticed this.
    HealthWarning(HealthWarning),
    /// The MTU of the link cannot be read: this one is assumed.
    MtuAssumed(Mtu),
}

impl TraceKind {
    /// Failures are errors and warnings, steps and events information, and what goes well is for debugging.
    fn log(&self) {
        match *self {
            Self::Empty => {}
            Self::Command { opcode, op_mod, delivery, status, syndrome, took } => {
                if delivery == DeliveryStatus::OK && status == CmdStatus::OK {
                    log!(
                        debug,
                        "hca: {} op_mod {=u16} answered after {=u64} ns",
                        opcode,
                        op_mod,
                        nanos(took)
                    );
                } else {
                    log!(
                        warn,
                        "hca: {} op_mod {=u16} refused: delivery {}, status {}, syndrome {=u32:#x}",
                        opcode,
                        op_mod,
                        delivery,
                        status,
                        syndrome
                    );
                }
            }
            Self::CommandTimeout { opcode, took } => {
                log!(error, "hca: {} not answered in {=u64} ns", opcode, nanos(took));
            }
            Self::Event { event, sub_type } => {
                log!(info, "hca: event {}, sub-type {=u8}", event, sub_type);
            }
            Self::Pages(pages) => log!(debug, "hca: {=i32} pages to firmware", pages),
            Self::Step(step) => log!(info, "hca: {=str}", step.name()),
            Self::Health(cause) => log!(error, "hca: {}", cause),
            Self::HealthWarning(warning) => log!(warn, "hca: {}", warning),
            Self::MtuAssumed(mtu) => {
                log!(warn, "hca: MTU of the link unknown, {=u32} assumed", mtu.bytes());
            }
        }
    }
}

/// Nanoseconds of a command's time, which are below 2^64 as the clock's are.
fn nanos(took: Duration) -> u64 {
    took.as_nanos() as u64
}

/// An entry of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TraceEntry {
    /// When.
    pub time: Instant,
    /// What.
    pub kind: TraceKind,
}

/// The last entries, oldest overwritten first.
#[derive(Debug)]
pub struct Trace<'s> {
    entries: &'s mut [TraceEntry],
    written: usize,
}

impl<'s> Trace<'s> {
    pub(crate) fn new(entries: &'s mut [TraceEntry]) -> Self {
        Self { entries, written: 0 }
    }

    /// Everything that the trace takes also goes to the log: one place, so that the two never disagree.
    pub(crate) fn push(&mut self, time: Instant, kind: TraceKind) {
        kind.log();
        if let Some(slot) = self.written.checked_rem(self.entries.len()).and_then(|i| self.entries.get_mut(i))
        {
            *slot = TraceEntry { time, kind };
            self.written = self.written.wrapping_add(1);
        }
    }

    /// The entries, for a report.
    #[must_use]
    pub fn history(&self) -> History<'_> {
        History::new(self.entries)
    }

    /// From the oldest entry kept to the newest.
    pub fn iter(&self) -> impl Iterator<Item = &TraceEntry> {
        let len = self.entries.len();
        let kept = self.written.min(len);
        let first = if self.written > len { self.written.checked_rem(len).unwrap_or(0) } else { 0 };
        self.entries.iter().cycle().skip(first).take(kept)
    }
}

/// The entries of a trace, whoever holds it, from the oldest to the newest.
#[derive(Clone, Copy, Debug)]
pub struct History<'a>(&'a [TraceEntry]);

impl<'a> History<'a> {
    pub(crate) fn new(entries: &'a [TraceEntry]) -> Self {
        Self(entries)
    }

    /// The entries.
    pub fn iter(&self) -> impl Iterator<Item = &'a TraceEntry> {
        // The ring goes on at its oldest entry: where time jumps back.
        let first = self
            .0
            .windows(2)
            .position(|pair| matches!(pair, [a, b] if b.time < a.time))
            .map_or(0, |at| at + 1);
        let (newer, older) = self.0.split_at_checked(first).unwrap_or((self.0, &[]));
        older.iter().chain(newer).filter(|entry| entry.kind != TraceKind::Empty)
    }
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.time.as_nanos() / 1000;
        write!(f, "{:6}.{:06} ", micros / 1_000_000, micros % 1_000_000)?;
        self.kind.fmt(f)
    }
}

impl fmt::Display for TraceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => Ok(()),
            Self::Command { opcode, op_mod, delivery, status, syndrome, took } => {
                write!(f, "{opcode} op_mod {op_mod:#x}: ")?;
                match (delivery, status) {
                    (DeliveryStatus::OK, CmdStatus::OK) => f.write_str("ok")?,
                    (DeliveryStatus::OK, _) => write!(f, "status {status}, syndrome {syndrome:#x}")?,
                    _ => write!(f, "not delivered: {delivery}")?,
                }
                write!(f, ", {} us", took.as_micros() as u64)
            }
            Self::CommandTimeout { opcode, took } => {
                write!(f, "{opcode}: not answered in {} ms", took.as_millis() as u64)
            }
            Self::Event { event, sub_type } => write!(f, "event {event}, sub-type {sub_type:#x}"),
            Self::Pages(pages) if pages < 0 => write!(f, "{} pages came back", pages.unsigned_abs()),
            Self::Pages(pages) => write!(f, "{pages} pages given"),
            Self::Step(step) => write!(f, "step {step}"),
            Self::Health(cause) => write!(f, "fatal: {cause}"),
            Self::HealthWarning(warning) => warning.fmt(f),
            Self::MtuAssumed(mtu) => write!(f, "MTU of the link unknown, {} assumed", mtu.bytes()),
        }
    }
}

/// How often things happened since bring-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Counters {
    /// Commands issued.
    pub commands: u64,
    /// Commands that firmware refused.
    pub command_errors: u64,
    /// Commands that were never answered; each costs a slot.
    pub command_timeouts: u64,
    /// Asynchronous events taken.
    pub events: u64,
    /// Completion events taken.
    pub completion_events: u64,
    /// Event queue entries that made no sense.
    pub bad_events: u64,
    /// Asynchronous events dropped because nobody took them from the full queue.
    pub events_lost: u64,
    /// Pages given to firmware.
    pub pages_given: u64,
    /// Pages that came back.
    pub pages_returned: u64,
    /// Pages that firmware returned without having had them.
    pub bad_pages: u64,
    /// Page requests that could not be met.
    pub page_requests_refused: u64,
    /// Page requests whose answer failed.
    pub page_requests_failed: u64,
    /// Health polls.
    pub health_polls: u64,
    /// Bytes that stay allocated because the device may still use them after a failed destroy.
    pub leaked_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn keeps_the_newest_in_order() {
        let mut slots = [TraceEntry::default(); 3];
        let mut trace = Trace::new(&mut slots);
        assert_eq!(trace.iter().count(), 0);
        for n in 1..=5 {
            trace.push(Instant::from_nanos(n), TraceKind::Pages(n as i32));
        }
        assert!(trace.iter().map(|e| e.time.as_nanos()).eq([3, 4, 5]));
    }

    #[test]
    fn history_begins_with_the_oldest_entry() {
        let mut slots = [TraceEntry::default(); 4];
        for pushed in 0..11u64 {
            let mut trace = Trace::new(&mut slots);
            (1..=pushed).for_each(|n| trace.push(Instant::from_nanos(n), TraceKind::Pages(n as i32)));
            let times: Vec<_> = History::new(&slots).iter().map(|entry| entry.time.as_nanos()).collect();
            let expected: Vec<_> = (pushed.saturating_sub(3).max(1)..=pushed).collect();
            assert_eq!(times, expected);
            slots = [TraceEntry::default(); 4];
        }
    }
}
