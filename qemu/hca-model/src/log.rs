//! What the device refused or noticed, by the PRM's field names: for tests to read and for the runner to print.

use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus, HealthSyndrome};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::{Discriminant, discriminant};

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
    /// A command that is carried out, although something is wrong with it.
    Tolerated {
        /// Which.
        opcode: Opcode,
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
    /// A QP that failed by itself.
    FailedQp {
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
            Subject::Tolerated { opcode } => write!(f, "{opcode}: tolerated")?,
            Subject::Delivery { slot, status } => write!(f, "command queue entry {slot}: {status}")?,
            Subject::Register { offset } => write!(f, "BAR0 {offset:#x}")?,
            Subject::WorkQueue { qpn } => write!(f, "work queue of QP {qpn:#x}")?,
            Subject::CompletionQueue { cqn } => write!(f, "CQ {cqn:#x}")?,
            Subject::EventQueue { eqn } => write!(f, "EQ {eqn:#x}")?,
            Subject::Packet => f.write_str("packet")?,
            Subject::Qp { qpn } => write!(f, "QP {qpn:#x}")?,
            Subject::FailedQp { qpn } => write!(f, "QP {qpn:#x} failed")?,
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

/// Entries of one kind of subject and one field that the sink gets in each [`WINDOW_NS`]; of further ones it is told the number.
const BURST: u32 = 32;
/// Entries that the sink gets in each [`WINDOW_NS`], whatever they are about.
const TOTAL: u32 = 256;
/// The time that [`BURST`] and [`TOTAL`] count for.
const WINDOW_NS: u64 = 1_000_000_000;
/// Kinds of subject and fields that are told apart. Further ones count as one.
const LIMITS: usize = 256;

/// How many entries of one kind the sink got lately.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// When the window ends.
    until: u64,
    /// Entries of the window that the sink got, and those that it did not get.
    passed: u32,
    withheld: u32,
    /// The last one of them that the sink did not get; it is about one of many objects.
    subject: Subject,
    level: Level,
}

/// A kind of subject and a field.
type Source = (Discriminant<Subject>, String);

/// Receives entries as they are made: of those that repeat themselves the first ones, and how many more there were.
pub type Sink = Box<dyn FnMut(&Entry) + Send>;

/// A bounded record of entries, newest last, and optionally a sink. The sink's rate is limited, since a guest can have an entry
/// made with every write: it gets at most 32 entries a second of one kind of subject and one field.
pub struct Log {
    /// Time stamped on the next entries.
    now: u64,
    limits: HashMap<Source, Limit>,
    /// End of the current window of [`TOTAL`], and the entries that the sink got in it.
    total: (u64, u32),
    /// When the first of the windows ends that withheld something.
    window_end: Option<u64>,
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
        Self {
            now: 0,
            limits: HashMap::new(),
            total: (0, 0),
            window_end: None,
            entries: VecDeque::with_capacity(64),
            refusals: 0,
            sink: None,
        }
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
        if self.sink.is_some() && self.admits(&entry) {
            self.tell(&entry);
        }
        if self.entries.len() == Self::CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    fn tell(&mut self, entry: &Entry) {
        if let Some(sink) = &mut self.sink {
            sink(entry);
        }
    }

    /// Whether the sink gets `entry`.
    fn admits(&mut self, entry: &Entry) -> bool {
        let mut source = (discriminant(&entry.subject), entry.field.clone());
        if self.limits.len() >= LIMITS && !self.limits.contains_key(&source) {
            source.1 = String::new();
        }
        let fresh = Limit {
            until: self.now.saturating_add(WINDOW_NS),
            passed: 0,
            withheld: 0,
            subject: entry.subject,
            level: entry.level,
        };
        let limit = self.limits.entry(source).or_insert(fresh);
        if limit.until <= self.now && limit.withheld == 0 {
            *limit = fresh;
        }
        if self.total.0 <= self.now {
            self.total = (self.now.saturating_add(WINDOW_NS), 0);
        }
        if limit.withheld == 0 && limit.passed < BURST && self.total.1 < TOTAL {
            limit.passed += 1;
            self.total.1 += 1;
            return true;
        }
        limit.withheld = limit.withheld.saturating_add(1);
        (limit.subject, limit.level) = (entry.subject, limit.level.max(entry.level));
        self.window_end = Some(self.window_end.map_or(limit.until, |end| end.min(limit.until)));
        false
    }

    /// The time is `now`: the sink is told how many entries it did not get in windows that have ended.
    #[inline]
    pub(crate) fn tick(&mut self, now: u64) {
        self.now = now;
        if self.window_end.is_some_and(|end| end <= now) {
            self.end_windows_until(now);
        }
    }

    /// The last time that was passed, in nanoseconds since power-on.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    #[cold]
    fn end_windows_until(&mut self, now: u64) {
        self.end_windows(|limit| limit.until <= now);
    }

    /// Continues the count of refusals of `other`.
    pub(crate) const fn adopt_count(&mut self, other: &Self) {
        self.refusals = other.refusals;
    }

    /// Tells the sink at once how many entries it did not get.
    pub fn flush(&mut self) {
        self.end_windows(|_| true);
    }

    fn end_windows(&mut self, ended: impl Fn(&Limit) -> bool) {
        let mut over = Vec::new();
        self.limits.retain(|(_, field), limit| {
            let goes = ended(limit);
            if goes && limit.withheld > 0 {
                over.push((field.clone(), *limit));
            }
            !goes
        });
        let waiting = self.limits.values().filter(|limit| limit.withheld > 0);
        self.window_end = waiting.map(|limit| limit.until).min();
        over.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (field, limit) in over {
            let text = format!("{} more within a second, the last of them about this", limit.withheld);
            self.tell(&Entry { at: self.now, level: limit.level, subject: limit.subject, field, text });
        }
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

    /// Sends further entries to `sink` too, at a limited rate.
    pub fn set_sink(&mut self, sink: Option<Sink>) {
        self.sink = sink;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn logged() -> (Log, Arc<Mutex<Vec<String>>>) {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut log = Log::default();
        let to = Arc::clone(&lines);
        log.set_sink(Some(Box::new(move |entry| to.lock().unwrap().push(entry.to_string()))));
        (log, lines)
    }

    #[test]
    fn a_flood_of_refusals_is_told_by_its_number() {
        let (mut log, lines) = logged();
        for n in 0..100_000u32 {
            log.refuse(Subject::WorkQueue { qpn: n }, "wqe_ctrl_seg.opcode", "unknown");
        }
        log.refuse(Subject::Port, "port.state", "another field is not held back");
        assert_eq!(log.refusals(), 100_001);
        assert_eq!(lines.lock().unwrap().len(), 33);
        log.tick(WINDOW_NS - 1);
        assert_eq!(lines.lock().unwrap().len(), 33, "the second is not over");
        log.tick(WINDOW_NS);
        let last = lines.lock().unwrap().last().cloned().unwrap();
        assert!(last.contains("QP 0x1869f") && last.contains("99968 more"), "{last}");
        log.refuse(Subject::WorkQueue { qpn: 1 }, "wqe_ctrl_seg.opcode", "unknown");
        assert_eq!(lines.lock().unwrap().len(), 35, "the next second has room again");
        log.flush();
        assert_eq!(lines.lock().unwrap().len(), 35, "nothing was withheld");
    }

    #[test]
    fn fields_without_number_take_bounded_memory() {
        let (mut log, lines) = logged();
        for n in 0..10_000 {
            log.refuse(Subject::Pages, format!("field_{}", n % 200), "");
        }
        assert_eq!(lines.lock().unwrap().len(), TOTAL as usize, "all fields together");
        for n in 0..10_000 {
            log.refuse(Subject::Pages, format!("field_{n}"), "");
        }
        assert!(log.limits.len() <= LIMITS + 1);
        assert!(lines.lock().unwrap().len() <= LIMITS + BURST as usize);
        log.tick(WINDOW_NS);
        assert!(log.limits.is_empty());
        let told = lines.lock().unwrap().last().cloned().unwrap();
        assert!(told.contains("more within a second"), "{told}");
    }
}
