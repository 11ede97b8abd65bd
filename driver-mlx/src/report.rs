//! What there is to say after a failure: the device's own words, and what was done last.
//!
//! ```
//! use driver_mlx::report::Report;
//! # fn say<P: driver_mlx::Platform>(platform: &P, storage: &driver_mlx::HcaStorage<16>, error: driver_mlx::Error) -> String {
//! // After a failed bring-up, when the storage is free again:
//! Report::new(&error, platform.bar(), storage.history()).to_string()
//! # }
//! ```

use crate::error::Error;
use crate::hca::DeviceState;
use crate::platform::Bar;
use crate::trace::{TraceEntry, TraceKind};
use core::fmt;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};

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

/// An error with all that helps to find its cause.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What failed: step, opcode, status and syndrome.
    pub error: &'a Error,
    /// What the device says; `None` if it does not answer.
    pub device: Option<DeviceState>,
    /// What was done last.
    pub history: History<'a>,
}

impl<'a> Report<'a> {
    /// Reads the device's registers now.
    pub fn new(error: &'a Error, bar: impl Bar, history: History<'a>) -> Self {
        Self { error, device: DeviceState::read(bar), history }
    }
}

impl fmt::Display for Report<'_> {
    /// Lines, the last without an end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "failed: {}", self.error)?;
        match self.device {
            Some(device) => write!(f, "{device}\n{}", device.health)?,
            None => f.write_str("device: all registers read as all ones: it is off the bus, or in reset")?,
        }
        for entry in self.history.iter() {
            write!(f, "\n{entry}")?;
        }
        Ok(())
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
                write!(f, ", {} us", took.as_micros())
            }
            Self::CommandTimeout { opcode, took } => {
                write!(f, "{opcode}: not answered in {} ms", took.as_millis())
            }
            Self::Event { event, sub_type } => write!(f, "event {event}, sub-type {sub_type:#x}"),
            Self::Pages(pages) if pages < 0 => write!(f, "{} pages came back", pages.unsigned_abs()),
            Self::Pages(pages) => write!(f, "{pages} pages given"),
            Self::Step(step) => write!(f, "step {step}"),
            Self::Health(cause) => write!(f, "fatal: {cause}"),
            Self::HealthWarning(warning) => warning.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;
    use crate::types::Instant;
    use std::vec::Vec;

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
