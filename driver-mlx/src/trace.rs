//! Counters, and a ring of what happened last, for looking at after something went wrong.

use crate::error::{FatalCause, HealthWarning, Step};
use crate::log::log;
use crate::report::History;
use crate::types::{Duration, Instant};
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
        #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
        opcode: Opcode,
        /// Its modifier.
        op_mod: u16,
        /// Delivery status.
        #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
        delivery: DeliveryStatus,
        /// Firmware's answer.
        #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
        status: CmdStatus,
        /// Firmware's reason.
        syndrome: u32,
        /// From issue to answer.
        took: Duration,
    },
    /// A command was given up.
    CommandTimeout {
        /// Which.
        #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
        opcode: Opcode,
        /// How long was waited.
        took: Duration,
    },
    /// An asynchronous event.
    Event {
        /// Its type.
        #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
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
}

impl TraceKind {
    /// Failures are errors and warnings, steps and events information, and what goes well is for debugging.
    fn log(&self) {
        match *self {
            Self::Empty => {}
            Self::Command { opcode, op_mod, delivery, status, syndrome, took } => {
                let (opcode, delivery, status) = (Shown(opcode), Shown(delivery), Shown(status));
                if delivery.0 == DeliveryStatus::OK && status.0 == CmdStatus::OK {
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
                log!(error, "hca: {} not answered in {=u64} ns", Shown(opcode), nanos(took));
            }
            Self::Event { event, sub_type } => {
                log!(info, "hca: event {}, sub-type {=u8}", Shown(event), sub_type);
            }
            Self::Pages(pages) => log!(debug, "hca: {=i32} pages to firmware", pages),
            Self::Step(step) => log!(info, "hca: {=str}", step.name()),
            Self::Health(cause) => log!(error, "hca: {}", cause),
            Self::HealthWarning(warning) => log!(warn, "hca: {}", warning),
        }
    }
}

/// Nanoseconds of a command's time, which are below 2^64 as the clock's are.
fn nanos(took: Duration) -> u64 {
    took.as_nanos() as u64
}

/// A value of the PRM in the log, by its name.
struct Shown<T>(T);

#[cfg(feature = "defmt")]
impl<T: core::fmt::Debug> defmt::Format for Shown<T> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", defmt::Debug2Format(&self.0));
    }
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
}
