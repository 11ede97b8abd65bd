//! Flight recorder of a QP: its last events and the reason for its last failure.
//!
//! Rare events are recorded when they happen. The requests that went well between two of them make
//! one entry, which is computed from the QP's counters, so the data path records nothing.

use crate::object::mkey::MkeyError;
use ib_types::{Gid, Psn};
use mlx5_prm::datapath::SendOpcode;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};
use rdma_fabric::infiniband::packet::AethSyndrome;
use std::collections::VecDeque;
use std::fmt;

/// Entries of a recorder; a new one replaces the oldest.
pub const CAPACITY: usize = 64;
/// Failures that a device remembers; a new one replaces the oldest.
const FAILURES: usize = 32;
/// Longest reason, in bytes. A longer one is cut.
const REASON: usize = 240;

const _: () = assert!(size_of::<Entry>() == 24);

/// Address of a connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// Local identifier, on InfiniBand.
    Lid(u16),
    /// Global identifier, on Ethernet.
    Gid(Gid),
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lid(lid) => write!(f, "LID {lid}"),
            Self::Gid(gid) => write!(f, "GID {gid}"),
        }
    }
}

/// Reason why a requester sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResendCause {
    /// No response arrived in time.
    Timeout,
    /// A later response showed that a READ response was lost.
    MissingResponse,
}

/// Reason why a packet has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Its source LID is not that of the connected peer.
    SourceLid,
    /// Its source GID is not that of the connected peer.
    SourceGid,
    /// Its P_Key does not match.
    PKey,
    /// Its Q_Key does not match.
    QKey,
    /// The QP's state does not accept it.
    State,
    /// The QP's service differs from the packet's.
    Service,
    /// A request that is not the next one.
    OutOfSequence,
    /// A request that was carried out before; its response is repeated.
    Repeated,
    /// A response to nothing that is outstanding.
    Unexpected,
    /// No receive WQE is posted, or a too small one.
    NoReceive,
    /// The message is refused; its service reports nothing to the sender.
    Refused,
}

impl DropReason {
    const fn words(self) -> &'static str {
        match self {
            Self::SourceLid => "its source LID is not the peer's",
            Self::SourceGid => "its source GID is not the peer's",
            Self::PKey => "P_Key mismatch",
            Self::QKey => "Q_Key mismatch",
            Self::State => "the QP's state does not accept it",
            Self::Service => "it belongs to another service",
            Self::OutOfSequence => "request out of sequence",
            Self::Repeated => "request carried out before, response repeated",
            Self::Unexpected => "response to nothing outstanding",
            Self::NoReceive => "no receive WQE, or a too small one",
            Self::Refused => "message refused",
        }
    }
}

/// Event in the life of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The state changed.
    State {
        /// Old state.
        from: QpState,
        /// New state.
        to: QpState,
        /// The device changed it, and no command.
        by_device: bool,
    },
    /// Send WQEs completed without an error since the last entry.
    Completed {
        /// Their number, where the service counts messages, otherwise 0.
        count: u32,
        /// Index after the last one.
        end: u16,
        /// Oldest PSN that is not acknowledged.
        unacked: Psn,
    },
    /// Requests or messages were received without an error since the last entry.
    Received {
        /// Number of requests, where the service counts them, otherwise 0.
        count: u32,
        /// Index after the last receive WQE that was taken from the QP's own queue.
        end: u16,
        /// PSN expected next.
        expected: Psn,
    },
    /// WQEs were flushed since the last entry.
    Flushed {
        /// Index after the last send WQE.
        sends: u16,
        /// Index after the last receive WQE of the QP's own queue.
        receives: u16,
    },
    /// Requests are sent again.
    Resent {
        /// Reason.
        cause: ResendCause,
        /// First PSN.
        psn: Psn,
        /// Retries left before this one.
        left: u8,
    },
    /// A negative acknowledgement was sent.
    NakSent {
        /// PSN in it.
        psn: Psn,
        /// AETH syndrome byte.
        syndrome: u8,
    },
    /// A negative acknowledgement was received.
    NakReceived {
        /// PSN in it.
        psn: Psn,
        /// AETH syndrome byte.
        syndrome: u8,
        /// Retries of its kind left before this one.
        left: u8,
    },
    /// A memory key refused an access.
    KeyRefused {
        /// The key.
        key: u32,
        /// Reason.
        error: MkeyError,
    },
    /// Guest memory did not respond.
    MemoryFault,
    /// A send WQE failed.
    Failed {
        /// Its opcode.
        opcode: SendOpcode,
        /// Its index in the ring, in basic blocks.
        index: u16,
        /// Oldest PSN that was not acknowledged.
        psn: Psn,
        /// Syndrome in its CQE.
        syndrome: CqeSyndrome,
        /// Vendor syndrome in its CQE.
        vendor: u8,
    },
    /// A receive WQE failed.
    ReceiveFailed {
        /// Its index in the ring.
        index: u16,
        /// Syndrome in its CQE.
        syndrome: CqeSyndrome,
        /// Vendor syndrome in its CQE.
        vendor: u8,
    },
    /// A packet had no effect.
    Dropped {
        /// Reason.
        reason: DropReason,
        /// Its PSN.
        psn: Psn,
    },
}

impl Event {
    /// Returns the name of the event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::Completed { .. } => "completed",
            Self::Received { .. } => "received",
            Self::Flushed { .. } => "flushed",
            Self::Resent { cause: ResendCause::Timeout, .. } => "time-out",
            Self::Resent { .. } => "sent again",
            Self::NakSent { .. } => "NAK sent",
            Self::NakReceived { .. } => "NAK received",
            Self::KeyRefused { .. } => "key refused",
            Self::MemoryFault => "memory fault",
            Self::Failed { .. } => "WQE failed",
            Self::ReceiveFailed { .. } => "receive failed",
            Self::Dropped { .. } => "packet dropped",
        }
    }

    /// Returns whether this event only repeats `last`, perhaps with another PSN.
    fn repeats(&self, last: &Self) -> bool {
        match (self, last) {
            (Self::Dropped { reason, .. }, Self::Dropped { reason: last, .. }) => reason == last,
            (Self::Flushed { .. }, Self::Flushed { .. }) => true,
            (Self::Resent { cause, psn, .. }, Self::Resent { cause: last, psn: last_psn, .. }) => {
                (cause, psn) == (last, last_psn)
            }
            (
                Self::NakReceived { syndrome, psn, .. },
                Self::NakReceived { syndrome: last, psn: last_psn, .. },
            ) => (syndrome, psn) == (last, last_psn),
            _ => self == last,
        }
    }
}

/// Details of the event, in words.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::State { from, to, by_device } => {
                let by = if by_device { "device" } else { "command" };
                write!(f, "{} -> {}, by {by}", state(from), state(to))
            }
            Self::Completed { count: 0, end, .. } => write!(f, "send WQEs before {end:#x}"),
            Self::Completed { count, end, unacked } => {
                write!(f, "{count} send WQEs, all before {end:#x} and PSN {}", unacked.get())
            }
            Self::Received { count: 0, end, .. } => write!(f, "receive WQEs before {end:#x}"),
            Self::Received { count, expected, .. } => {
                write!(f, "{count} requests, all before PSN {}", expected.get())
            }
            Self::Flushed { sends, receives } => {
                write!(f, "send WQEs before {sends:#x}, receive WQEs before {receives:#x}")
            }
            Self::Resent { cause, psn, left } => {
                let text = match cause {
                    ResendCause::Timeout => "no response",
                    ResendCause::MissingResponse => "a READ response is missing",
                };
                write!(f, "{text}: from PSN {} again, retries left {left}", psn.get())
            }
            Self::NakSent { psn, syndrome } => write!(f, "PSN {}: {}", psn.get(), Nak(syndrome)),
            Self::NakReceived { psn, syndrome, left } => {
                write!(f, "PSN {}: {}, retries left {left}", psn.get(), Nak(syndrome))
            }
            Self::KeyRefused { key, error } => write!(f, "{key:#x} {}", error.words()),
            Self::MemoryFault => f.write_str("the guest's memory does not respond"),
            Self::Failed { opcode, index, psn, syndrome, vendor } => {
                let opcode = opcode.meaning().unwrap_or("unknown opcode");
                write!(f, "WQE {index:#x}, {opcode}, PSN {}: {syndrome}, vendor {vendor:#x}", psn.get())
            }
            Self::ReceiveFailed { index, syndrome, vendor } => {
                write!(f, "WQE {index:#x}: {syndrome}, vendor {vendor:#x}")
            }
            Self::Dropped { reason, psn } => write!(f, "PSN {}: {}", psn.get(), reason.words()),
        }
    }
}

fn state(state: QpState) -> &'static str {
    state.meaning().unwrap_or("unknown")
}

/// AETH syndrome byte, in words.
pub(crate) struct Nak(pub(crate) u8);

impl fmt::Display for Nak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match AethSyndrome::from_bits(self.0) {
            AethSyndrome::Ack { .. } => "acknowledged",
            AethSyndrome::RnrNak { .. } => "receiver not ready",
            AethSyndrome::PsnSequenceError => "PSN sequence error",
            AethSyndrome::InvalidRequest => "invalid request",
            AethSyndrome::RemoteAccess => "remote access error",
            AethSyndrome::RemoteOperational => "remote operational error",
            AethSyndrome::InvalidRdRequest => "invalid RD request",
            AethSyndrome::Reserved(_) => "reserved syndrome",
        })
    }
}

/// Event with its time. Equal events in a row share an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time of the last one, in nanoseconds of the model's time.
    pub at: u64,
    /// Number of events that share the entry.
    pub times: u32,
    /// The event.
    pub event: Event,
}

/// A line of the table: seconds, event, details.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = (self.at / 1_000_000_000, self.at % 1_000_000_000);
        write!(f, "{seconds:>6}.{nanoseconds:09}  {:<14}  {}", self.event.name(), self.event)?;
        if self.times > 1 { write!(f, " ({} times)", self.times) } else { Ok(()) }
    }
}

/// Counters of a QP. Their growth since the last entry is a run: requests that went well, or a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Send WQEs before this index are completed.
    pub(crate) retired: u16,
    /// Receive WQEs before this index are taken.
    pub(crate) taken: u16,
    /// Completed messages.
    pub(crate) ssn: u32,
    /// Requests taken.
    pub(crate) msn: u32,
    pub(crate) unacked: Psn,
    pub(crate) expected: Psn,
    /// WQEs complete by a flush.
    pub(crate) flushes: bool,
}

impl Progress {
    /// Returns the runs since `before`.
    fn since(&self, before: &Self) -> impl Iterator<Item = Event> {
        let sends = self.retired != before.retired;
        let receives = self.taken != before.taken;
        let (flushed, completed, received) = if before.flushes {
            let flushed = Event::Flushed { sends: self.retired, receives: self.taken };
            ((sends || receives).then_some(flushed), None, None)
        } else {
            let count = self.ssn.wrapping_sub(before.ssn) & 0xff_ffff;
            let completed = Event::Completed { count, end: self.retired, unacked: self.unacked };
            let requests = self.msn.wrapping_sub(before.msn) & 0xff_ffff;
            let received = Event::Received { count: requests, end: self.taken, expected: self.expected };
            (
                None,
                (sends || count != 0).then_some(completed),
                (receives || requests != 0).then_some(received),
            )
        };
        [flushed, completed, received].into_iter().flatten()
    }
}

/// Recorder of a QP. Takes memory only once there is an event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Option<Box<Tape>>);

#[derive(Clone, Debug, Default)]
struct Tape {
    entries: VecDeque<Entry>,
    /// Counters at the last entry.
    before: Progress,
    /// Clue to a failure that is not reported yet, with the index of the send WQE that fails, if one does.
    clue: Option<(Option<u16>, Box<str>)>,
    /// Reason for the last failure.
    failure: Option<Box<str>>,
}

impl Tape {
    fn push(&mut self, at: u64, event: Event) {
        if let Some(last) = self.entries.back_mut().filter(|last| event.repeats(&last.event)) {
            *last = Entry { at, times: last.times.saturating_add(1), event };
            return;
        }
        if self.entries.len() == CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { at, times: 1, event });
    }
}

impl Recorder {
    /// Host memory that it takes at most, in bytes.
    pub(crate) const MEMORY: u64 = (size_of::<Tape>() + CAPACITY * size_of::<Entry>() + 2 * REASON) as u64;

    /// Records an event at `at`, after the runs until then, by `progress`.
    pub(crate) fn record(&mut self, at: u64, mut progress: Progress, event: Event) {
        let tape = self.0.get_or_insert_default();
        let retired = progress.retired;
        if let Event::Failed { index, .. } = event {
            progress.retired = index;
        }
        let before = tape.before;
        for run in progress.since(&before) {
            tape.push(at, run);
        }
        tape.before = Progress { retired, ..progress };
        tape.push(at, event);
    }

    /// The QP's counters begin at zero again.
    pub(crate) fn counters_reset(&mut self) {
        if let Some(tape) = &mut self.0 {
            (tape.before, tape.clue) = (Progress::default(), None);
        }
    }

    /// Notes why the QP is about to fail, or its send WQE at `index`.
    pub(crate) fn blame(&mut self, index: Option<u16>, text: String) {
        self.0.get_or_insert_default().clue = Some((index, bounded(text)));
    }

    /// Takes the clue to the failure of the send WQE at `index`, or of the QP.
    pub(crate) fn take_clue(&mut self, index: Option<u16>) -> Option<Box<str>> {
        let clue = self.0.as_mut().and_then(|tape| tape.clue.take_if(|(about, _)| *about == index));
        clue.map(|(_, text)| text)
    }

    /// Sets the reason for the last failure. Returns it.
    pub(crate) fn set_failure(&mut self, text: String) -> Box<str> {
        self.0.get_or_insert_default().failure.insert(bounded(text)).clone()
    }

    /// Returns the reason for the last failure, if there was one.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.0.as_ref()?.failure.as_deref()
    }

    /// Returns the last event, if there was one.
    pub(crate) fn last(&self) -> Option<Event> {
        Some(self.0.as_ref()?.entries.back()?.event)
    }

    /// Returns the entries, oldest first, and the runs since, by `progress`.
    pub(crate) fn entries(&self, now: u64, progress: &Progress) -> Vec<Entry> {
        let Some(tape) = &self.0 else { return Vec::new() };
        let since = progress.since(&tape.before).map(|event| Entry { at: now, times: 1, event });
        tape.entries.iter().copied().chain(since).collect()
    }
}

fn bounded(mut text: String) -> Box<str> {
    text.truncate(text.floor_char_boundary(REASON));
    text.into_boxed_str()
}

/// Failure of a QP, which may have been destroyed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Time in nanoseconds of the model's time.
    pub at: u64,
    /// QP number.
    pub qpn: u32,
    /// Reason.
    pub reason: Box<str>,
}

/// The last failures of a device's QPs.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    total: u64,
    last: VecDeque<Failure>,
}

impl Failures {
    pub(crate) fn push(&mut self, failure: Failure) {
        self.total += 1;
        if self.last.len() == FAILURES {
            self.last.pop_front();
        }
        self.last.push_back(failure);
    }

    /// Returns how many there were since the device was made.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the last ones, oldest first.
    pub fn last(&self) -> impl ExactSizeIterator<Item = &Failure> {
        self.last.iter()
    }
}

/// A QP as its recorder shows it.
#[derive(Clone, Debug)]
pub struct QpRecord {
    /// QP number.
    pub qpn: u32,
    /// Service type.
    pub service: ServiceType,
    /// State.
    pub state: QpState,
    /// Address and QP number of the peer of a connection.
    pub peer: Option<(PeerAddress, u32)>,
    /// Reason for its last failure, if it failed by itself.
    pub failure: Option<String>,
    /// Its last events, oldest first: up to [`CAPACITY`], and the runs since.
    pub entries: Vec<Entry>,
}

impl QpRecord {
    /// Returns the events as a table: seconds, event, details.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = format!("{:>16}  {:<14}  details\n", "seconds", "event");
        for entry in &self.entries {
            table.push_str(&format!("{entry}\n"));
        }
        table
    }
}
