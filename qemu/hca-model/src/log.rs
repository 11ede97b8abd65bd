//! What the device refused or noticed, by the PRM's field names: for tests to read and for the runner to print.

use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus, HealthSyndrome};
use std::collections::VecDeque;
use std::fmt;

/// What an [`Entry`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A command that was not carried out.
    Command {
        /// Which.
        opcode: Opcode,
        /// Its status.
        status: CmdStatus,
        /// Its syndrome: here the byte offset of the offending dword, or zero.
        syndrome: u32,
    },
    /// A command queue entry that could not be taken.
    Delivery {
        /// Index of the entry.
        slot: u8,
        /// Why.
        status: DeliveryStatus,
    },
    /// A write to a register or UAR page that had no effect.
    Register {
        /// Offset in BAR0.
        offset: usize,
    },
    /// A work queue entry or its queue.
    WorkQueue {
        /// QP number.
        qpn: u32,
    },
    /// A completion queue.
    CompletionQueue {
        /// CQ number.
        cqn: u32,
    },
    /// An event queue.
    EventQueue {
        /// EQ number.
        eqn: u32,
    },
    /// A packet that was dropped.
    Packet,
    /// Something about a packet's QP.
    Qp {
        /// QP number.
        qpn: u32,
    },
    /// The port.
    Port,
    /// The health of the device.
    Health(HealthSyndrome),
    /// Pages given, taken or asked for.
    Pages,
    /// The device as a whole: reset, configuration space.
    Device,
}

/// How much an [`Entry`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Normal course of events.
    Info,
    /// Allowed on hardware, but a sign of a mistake in the guest's driver.
    Warning,
    /// The device refused something or failed.
    Refusal,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, in nanoseconds of the model's time.
    pub at: u64,
    /// How much it matters.
    pub level: Level,
    /// What it is about.
    pub subject: Subject,
    /// The PRM's name of the field at fault, `structure.field`; empty when there is none.
    pub field: String,
    /// What is wrong, in words.
    pub text: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Command { opcode, status, syndrome } => {
                write!(f, "{opcode}: {status}, syndrome {syndrome:#x}")?;
            }
            Subject::Delivery { slot, status } => write!(f, "command queue entry {slot}: {status}")?,
            Subject::Register { offset } => write!(f, "BAR0 {offset:#x}")?,
            Subject::WorkQueue { qpn } => write!(f, "work queue of QP {qpn:#x}")?,
            Subject::CompletionQueue { cqn } => write!(f, "CQ {cqn:#x}")?,
            Subject::EventQueue { eqn } => write!(f, "EQ {eqn:#x}")?,
            Subject::Packet => f.write_str("packet")?,
            Subject::Qp { qpn } => write!(f, "QP {qpn:#x}")?,
            Subject::Port => f.write_str("port")?,
            Subject::Health(syndrome) => write!(f, "health: {syndrome}")?,
            Subject::Pages => f.write_str("pages")?,
            Subject::Device => f.write_str("device")?,
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        Ok(())
    }
}

/// Receives every entry as it is made.
pub type Sink = Box<dyn FnMut(&Entry) + Send>;

/// A bounded record of entries, newest last, and optionally a sink that sees all of them.
pub struct Log {
    /// Time stamped on the next entries.
    pub(crate) now: u64,
    entries: VecDeque<Entry>,
    refusals: u64,
    sink: Option<Sink>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("entries", &self.entries.len()).field("refusals", &self.refusals).finish()
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { now: 0, entries: VecDeque::with_capacity(64), refusals: 0, sink: None }
    }
}

impl Log {
    /// Entries kept.
    const CAPACITY: usize = 1024;

    /// Adds an entry.
    pub fn add(&mut self, level: Level, subject: Subject, field: impl Into<String>, text: impl Into<String>) {
        let entry = Entry { at: self.now, level, subject, field: field.into(), text: text.into() };
        if level == Level::Refusal {
            self.refusals += 1;
        }
        if let Some(sink) = &mut self.sink {
            sink(&entry);
        }
        if self.entries.len() == Self::CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Adds a refusal.
    pub fn refuse(&mut self, subject: Subject, field: impl Into<String>, text: impl Into<String>) {
        self.add(Level::Refusal, subject, field, text);
    }

    /// Adds a warning.
    pub fn warn(&mut self, subject: Subject, field: impl Into<String>, text: impl Into<String>) {
        self.add(Level::Warning, subject, field, text);
    }

    /// Adds a note.
    pub fn info(&mut self, subject: Subject, text: impl Into<String>) {
        self.add(Level::Info, subject, "", text);
    }

    /// The kept entries, oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// How many refusals there were since the device was made.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Forgets the kept entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Sends every further entry to `sink` too.
    pub fn set_sink(&mut self, sink: Option<Sink>) {
        self.sink = sink;
    }
}
