//! One HCA's place on the server: its socket, its client, its share of the server's time.

use super::clock::Done;
use super::device::{Device, Guest, Remark, waits_for_writes};
use super::listener::SocketFile;
use crate::guest::interrupts::Vectors;
use crate::guest::memory::{GuestMap, Trouble};
use crate::guest::registers::BACKLOG;
use crate::guest::watchdog::{HELD_UP, Watchdog};
use crate::wire::channel::{Channel, Ended};
use hca_model::world::NodePort;
use hca_model::{GuestMemory, Hca, Interrupts, Profile};
use rustix::event::epoll::EventFlags;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Messages taken in one turn.
const MESSAGES: usize = 512;
/// The same while others are active: about as much work as a device does in a turn.
const CONTENDED_MESSAGES: usize = 32;
/// Whoever was active so lately is reckoned with.
const ACTIVE: Duration = Duration::from_millis(2);
/// How long a message waits at most for the register writes before it. The client gives a read up after 5 s.
const WRITES_LIMIT: Duration = Duration::from_secs(1);
/// How long a client is not served again that made the server wait.
const PENALTY: Duration = Duration::from_secs(3);
/// Time that a device whose client has to be asked for memory rests, for each that was spent on waiting for it.
const REST: u32 = 2;

/// Why a device failed although its model did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A file of the client's became shorter.
    MemoryLost,
    /// The client does not answer for its memory.
    Unanswered,
    /// An event descriptor of the client's blocks.
    Blocked,
    /// A mistake in the model.
    Panic,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::MemoryLost => "a file of guest memory became shorter, or its file system is full",
            Self::Unanswered => "the client does not answer for its memory",
            Self::Blocked => "an event descriptor of the client's blocks",
            Self::Panic => "the model failed: please report this",
        })
    }
}

/// What was done for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Reads of its socket.
    pub reads: u64,
    /// Messages.
    pub messages: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Nanoseconds of the server's time.
    pub nanoseconds: u64,
    /// Clients that came.
    pub connections: u64,
    /// Failures of the device that were its clients' doing.
    pub failures: u64,
}

/// An HCA's place on the server.
pub struct Seat {
    pub listener: UnixListener,
    _file: SocketFile,
    pub guest: Guest,
    /// VERSION was negotiated on this connection.
    agreed: bool,
    /// The device failed by its client's doing: the next client gets a new one.
    pub failed: Option<Failure>,
    /// When a client is taken again.
    pub closed_until: Option<Instant>,
    /// When the device may move again that waited for its client.
    pub resting_until: Option<Instant>,
    /// Since when a message waits for register writes.
    waiting_since: Option<Instant>,
    /// What the socket is waited for.
    pub interest: EventFlags,
    /// Whether the listener is waited for.
    pub listening: bool,
    /// The server's time that it used, as fairness counts it.
    pub used: u64,
    /// Messages wait.
    pub deferred: bool,
    /// When the client or the device last did something.
    pub active_at: Option<Instant>,
    /// Others are active too.
    pub contended: bool,
    work: Work,
    /// Calls that its clients held up.
    held_up: u32,
    /// The user was told that memory is not shared.
    warned: bool,
}

impl NodePort for Seat {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        self.guest.parts()
    }
}

/// What a turn of a seat did.
#[derive(Debug, Default)]
pub struct Turn {
    /// Lines for the user.
    pub remarks: Vec<Remark>,
    /// The connection ended.
    pub ended: Option<Ended>,
}

impl Seat {
    pub fn new(
        listener: UnixListener,
        file: SocketFile,
        profile: &Profile,
        mappings: usize,
        watchdog: Rc<Watchdog>,
    ) -> Self {
        let guest =
            Guest { memory: GuestMap::new(mappings), vectors: Vectors::new(profile.vectors, watchdog) };
        Self {
            listener,
            _file: file,
            guest,
            agreed: false,
            failed: None,
            closed_until: None,
            resting_until: None,
            waiting_since: None,
            interest: EventFlags::empty(),
            listening: false,
            used: 0,
            deferred: false,
            active_at: None,
            contended: false,
            work: Work::default(),
            held_up: 0,
            warned: false,
        }
    }

    /// Whether the client or the device did something lately.
    pub fn is_active(&self, now: Instant) -> bool {
        self.active_at.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE)
    }

    /// What was done for this seat's clients so far.
    pub fn work(&self) -> Work {
        let channel = self.guest.memory.channel.borrow();
        let reads = self.work.reads + channel.as_ref().map_or(0, Channel::reads);
        let messages = self.work.messages + channel.as_ref().map_or(0, Channel::messages);
        Work { reads, messages, interrupts: self.guest.vectors.raised(), ..self.work }
    }

    /// Adds what was done for this seat's clients.
    pub fn count(&self, done: &mut Done) {
        let work = self.work();
        done.messages += work.messages;
        done.reads += work.reads;
        done.interrupts += work.interrupts;
        done.connections += work.connections;
        done.failures += work.failures;
        done.held_up += HELD_UP * self.held_up;
    }

    /// The device spent `time` of the server's.
    pub fn charge(&mut self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.used = self.used.saturating_add(time);
        self.work.nanoseconds = self.work.nanoseconds.saturating_add(time);
    }

    /// Whether a client is connected.
    pub fn is_connected(&self) -> bool {
        self.guest.memory.channel.borrow().is_some()
    }

    /// Takes a client.
    pub fn connect(&mut self, channel: Channel, hca: &mut Hca) {
        if self.failed.take().is_some() {
            hca.revive();
        }
        hca.machine_found();
        self.work.connections += 1;
        *self.guest.memory.channel.get_mut() = Some(channel);
        self.guest.memory.registers = Some(hca.bar());
        (self.agreed, self.warned) = (false, false);
        (self.waiting_since, self.deferred) = (None, false);
        self.interest = EventFlags::empty();
    }

    /// The client is gone: its memory and descriptors too, and the device is reset, unless restarts are warm.
    pub fn disconnect(&mut self, hca: &mut Hca) {
        if let Some(channel) = self.guest.memory.channel.get_mut().take() {
            self.work.reads += channel.reads();
            self.work.messages += channel.messages();
        }
        self.guest.memory.clear();
        self.guest.vectors.disconnect();
        self.deferred = false;
        hca.machine_gone();
    }

    /// The device answers nothing any more, until its next client.
    pub fn fail(&mut self, failure: Failure, hca: &mut Hca, now: Instant) {
        hca.kill();
        self.guest.memory.clear();
        self.guest.vectors.disconnect();
        self.failed = Some(failure);
        self.work.failures += 1;
        self.held_up += u32::from(failure == Failure::Blocked);
        if matches!(failure, Failure::Unanswered | Failure::Blocked) {
            self.closed_until = Some(now + PENALTY);
            self.disconnect(hca);
        }
    }

    /// What a poll of the device brought to light.
    pub fn trouble(&mut self, now: Instant) -> Option<Failure> {
        let waited = self.guest.memory.take_waited();
        if !waited.is_zero() {
            self.resting_until = Some(now + waited * REST);
        }
        let failure = match self.guest.memory.take_trouble() {
            Some(Trouble::Lost) => Some(Failure::MemoryLost),
            Some(Trouble::Unanswered) => Some(Failure::Unanswered),
            None if self.guest.vectors.take_blocked() => Some(Failure::Blocked),
            None => None,
        };
        // A client that left is no failure of its device: the read of its socket finds out.
        let left = |channel: &Channel| channel.ended().is_some();
        failure.filter(|_| !self.guest.memory.channel.borrow().as_ref().is_some_and(left))
    }

    /// Reads the client's socket once.
    pub fn read(&mut self) {
        if let Some(channel) = self.guest.memory.channel.get_mut() {
            channel.read();
        }
    }

    /// Takes a bounded number of messages, and sends the answers.
    pub fn take_messages(&mut self, hca: &mut Hca, file_io: bool, now: Instant) -> Turn {
        let mut turn = Turn::default();
        self.deferred = false;
        let Some(mut channel) = self.guest.memory.channel.get_mut().take() else { return turn };
        let limit = if self.contended { CONTENDED_MESSAGES } else { MESSAGES };
        for taken in 0.. {
            let Some((header, payload)) = channel.peek() else { break };
            let backlog = hca.registers().backlog();
            let must_wait = backlog > 0 && waits_for_writes(&header, payload) && !self.waited_enough(now);
            if taken == limit || backlog >= BACKLOG || must_wait {
                self.deferred = true;
                break;
            }
            let Some(message) = channel.next() else { break };
            self.waiting_since = None;
            let warned = &mut self.warned;
            let mut remark = |remark| {
                let repeated = matches!(remark, Remark::NotShared { .. }) && std::mem::replace(warned, true);
                if !repeated && turn.remarks.len() < 8 {
                    turn.remarks.push(remark);
                }
            };
            let agreed = &mut self.agreed;
            Device { hca, guest: &mut self.guest, agreed, file_io, remark: &mut remark }
                .handle(&mut channel, message);
        }
        // Finds what has no sense although no whole message is there.
        if !self.deferred && !channel.is_stuck() && channel.peek().is_none() {
            drop(channel.next());
        }
        channel.flush();
        if !self.deferred && !channel.is_stuck() {
            turn.ended = channel.ended();
        }
        *self.guest.memory.channel.get_mut() = Some(channel);
        turn
    }

    /// Whether a message has waited for register writes as long as it may.
    fn waited_enough(&mut self, now: Instant) -> bool {
        let since = *self.waiting_since.get_or_insert(now);
        now.saturating_duration_since(since) > WRITES_LIMIT
    }

    /// What the client's socket has to be waited for; `None` without a client.
    pub fn wanted(&self) -> Option<EventFlags> {
        let channel = self.guest.memory.channel.borrow();
        let channel = channel.as_ref()?;
        let mut wanted = EventFlags::empty();
        if !self.deferred && channel.wants_input() && !channel.is_stuck() {
            wanted |= EventFlags::IN;
        }
        if channel.has_output() {
            wanted |= EventFlags::OUT;
        }
        Some(wanted)
    }

    /// Calls `with` with the client's socket.
    pub fn with_socket<T>(&self, with: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> T) -> Option<T> {
        self.guest.memory.channel.borrow().as_ref().map(|channel| with(channel.socket().as_fd()))
    }
}
