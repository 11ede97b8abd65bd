//! Device slot of an HCA on the server: its socket, its client, its share of the server's time.

use super::clock::Done;
use super::detached::{PollThread, Polled};
use super::device::{Device, Guest, Remark, waits_for_writes};
use super::listener::SocketFile;
use crate::guest::interrupts::Vectors;
use crate::guest::memory::{GuestMap, PATIENCE, Trouble};
use crate::guest::registers::{self, BACKLOG};
use crate::guest::watchdog::{HELD_UP, Watchdog};
use crate::planted::{self, Place};
use crate::wire::channel::{Channel, Ended};
use hca_model::seams::{Io, NoPeers};
use hca_model::world::NodePort;
use hca_model::{GuestMemory, Hca, Interrupts, Profile};
use rdma_fabric::wire::{Unplugged, Wire};
use rustix::event::epoll::EventFlags;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Messages processed in one iteration.
const MESSAGES: usize = 512;
/// Messages processed in one iteration while other seats are active. Takes about as much work as a
/// device's iteration.
const CONTENDED_MESSAGES: usize = 32;
/// Time limit of a message's wait for the register writes before it. The client abandons a read
/// after 5 s.
const WRITES_LIMIT: Duration = Duration::from_secs(1);
/// Time for which a client that blocked the server is not accepted again.
const PENALTY: Duration = Duration::from_secs(3);

/// Reason why a device failed although its model did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The client truncated a file.
    MemoryLost,
    /// The client does not reply to a memory request.
    Unanswered,
    /// An event descriptor of the client blocks.
    Blocked,
    /// The system has no thread for accesses to private memory.
    NoThread,
    /// The model panicked.
    Panic,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::MemoryLost => "a file of guest memory became shorter, or its file system is full",
            Self::Unanswered => "the client does not answer for its memory",
            Self::Blocked => "an event descriptor of the client's blocks",
            Self::NoThread => "no thread for memory that is not shared: give QEMU share=on",
            Self::Panic => "the model failed: please report this",
        })
    }
}

/// Amounts of work that a client has caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Turns of its device.
    pub visits: u64,
    /// Reads from its socket.
    pub reads: u64,
    /// Messages received.
    pub messages: u64,
    /// Interrupts signalled.
    pub interrupts: u64,
    /// Server time, in nanoseconds.
    pub nanoseconds: u64,
    /// Connections of clients.
    pub connections: u64,
    /// Failures of the device caused by its clients.
    pub failures: u64,
}

/// Device slot of an HCA on the server.
pub struct Seat {
    pub listener: UnixListener,
    _file: SocketFile,
    pub guest: Guest,
    /// True after VERSION was negotiated on this connection.
    agreed: bool,
    /// Failure caused by the client. The next client gets a new device.
    pub failed: Option<Failure>,
    /// Time at which a client is accepted again.
    pub closed_until: Option<Instant>,
    /// Thread for polls that access private memory.
    polls: Option<PollThread>,
    /// Stand-in of the device during such a poll.
    stand_in: Option<Box<Hca>>,
    /// Time since which a poll has been suspended.
    pub suspended_at: Option<Instant>,
    /// Time since which a message has waited for register writes.
    waiting_since: Option<Instant>,
    /// Client socket events to wait for.
    pub interest: EventFlags,
    /// True if new connections are waited for.
    pub listening: bool,
    /// True if messages are waiting.
    pub deferred: bool,
    work: Work,
    /// Number of calls that its clients blocked.
    held_up: u32,
    /// True after the user was warned that memory is not shared.
    warned: bool,
    /// True after the model panicked at a peer's request.
    panicked: bool,
}

impl NodePort for Seat {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        self.guest.parts()
    }

    fn contain<T>(&mut self, work: impl FnOnce(&dyn GuestMemory, &mut dyn Interrupts) -> T) -> Option<T> {
        let (place, (memory, interrupts)) = (Place::Copy(self.work.connections), self.guest.parts());
        let done = catch_unwind(AssertUnwindSafe(|| {
            planted::here(place);
            work(memory, interrupts)
        }));
        self.panicked |= done.is_err();
        done.ok()
    }

    fn takes_copies(&self) -> bool {
        !self.panicked && self.guest.takes_copies()
    }
}

/// Result of a seat's iteration.
#[derive(Debug, Default)]
pub struct Turn {
    /// Remarks for the user.
    pub remarks: Vec<Remark>,
    /// Reason why the connection closed, if it did.
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
            polls: None,
            stand_in: None,
            suspended_at: None,
            waiting_since: None,
            interest: EventFlags::empty(),
            listening: false,
            deferred: false,
            work: Work::default(),
            held_up: 0,
            warned: false,
            panicked: false,
        }
    }

    /// Returns the work for this seat's clients so far.
    pub fn work(&self) -> Work {
        let channel = self.guest.memory.channel.borrow();
        let reads = self.work.reads + channel.as_ref().map_or(0, Channel::reads);
        let messages = self.work.messages + channel.as_ref().map_or(0, Channel::messages);
        Work { reads, messages, interrupts: self.guest.vectors.raised(), ..self.work }
    }

    /// Adds the work for this seat's clients to `done`.
    pub fn count(&self, done: &mut Done) {
        let work = self.work();
        done.messages += work.messages;
        done.reads += work.reads;
        done.interrupts += work.interrupts;
        done.connections += work.connections;
        done.failures += work.failures;
        done.held_up += HELD_UP * self.held_up;
    }

    /// Adds `nanoseconds` to the server time for this seat's clients.
    pub fn charge(&mut self, nanoseconds: u64) {
        self.work.nanoseconds = self.work.nanoseconds.saturating_add(nanoseconds);
    }

    /// Counts a turn of the device. Returns whether its model panicked since the previous turn.
    pub const fn begin_turn(&mut self) -> bool {
        self.work.visits += 1;
        self.panicked
    }

    /// Returns whether a client is connected.
    pub fn is_connected(&self) -> bool {
        self.guest.memory.channel.borrow().is_some()
    }

    /// Connects a client.
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

    /// Disconnects the client: releases its memory and descriptors, and resets the device unless
    /// restarts are warm.
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

    /// Fails the device, which does not respond until its next client connects.
    pub fn fail(&mut self, failure: Failure, hca: &mut Hca, now: Instant) {
        hca.kill();
        self.guest.memory.clear();
        self.guest.vectors.disconnect();
        self.failed = Some(failure);
        self.panicked = false;
        self.work.failures += 1;
        self.held_up += u32::from(failure == Failure::Blocked);
        if matches!(failure, Failure::Unanswered | Failure::Blocked) {
            self.closed_until = Some(now + PENALTY);
            self.disconnect(hca);
        }
    }

    /// Returns the failure that a poll of the device revealed.
    pub fn trouble(&mut self, now: Instant) -> Option<Failure> {
        let late = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        let failure = match self.guest.memory.take_trouble() {
            Some(Trouble::Lost) => Some(Failure::MemoryLost),
            Some(Trouble::Unanswered) => Some(Failure::Unanswered),
            None if self.suspended_at.is_some_and(late) => Some(Failure::Unanswered),
            None if self.guest.vectors.take_blocked() => Some(Failure::Blocked),
            None => None,
        };
        // A disconnected client is not a failure of its device: the next socket read reports it.
        let left = |channel: &Channel| channel.ended().is_some();
        failure.filter(|_| !self.guest.memory.channel.borrow().as_ref().is_some_and(left))
    }

    /// Reads the client's socket once.
    pub fn read(&mut self) {
        if let Some(channel) = self.guest.memory.channel.get_mut() {
            channel.read();
        }
    }

    /// Processes a bounded number of messages and sends the replies. The number is smaller if other
    /// seats are active too, which `contended` says.
    pub fn take_messages(&mut self, hca: &mut Hca, file_io: bool, contended: bool, now: Instant) -> Turn {
        let mut turn = Turn::default();
        self.deferred = false;
        let Some(mut channel) = self.guest.memory.channel.get_mut().take() else { return turn };
        let limit = if contended { CONTENDED_MESSAGES } else { MESSAGES };
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
        // Detects a malformed header before the message is complete.
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

    /// Polls a device that has work, or resumes its suspended poll. Returns whether there is more
    /// work.
    ///
    /// # Errors
    /// [`Failure::Panic`] or [`Failure::NoThread`]; a stand-in may be left in place of the device.
    pub fn poll(
        &mut self,
        hca: &mut Hca,
        now: u64,
        instant: Instant,
        wire: &mut dyn Wire,
    ) -> Result<bool, Failure> {
        if !self.guest.memory.is_private() && !hca.is_lent() {
            let (memory, interrupts) = self.guest.parts();
            return Ok(hca.work(Io { now, memory, interrupts, wire, peers: &mut NoPeers }));
        }
        let polls = match &mut self.polls {
            Some(polls) => polls,
            none => none.insert(PollThread::start().map_err(|_| Failure::NoThread)?),
        };
        let polled = if hca.is_lent() {
            polls.resume(&mut self.guest, wire)
        } else {
            let stand_in = self.stand_in.take().unwrap_or_else(|| Box::new(Hca::new(hca.profile().clone())));
            polls.poll(hca.lend(*stand_in), now, &mut self.guest, wire)
        };
        self.follow_poll(polled, hca, instant)
    }

    /// Ends a suspended poll, whose remaining accesses to the client's memory fail.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn abandon(&mut self, hca: &mut Hca, instant: Instant) -> Result<(), Failure> {
        let Some(polls) = self.polls.as_mut().filter(|_| hca.is_lent()) else { return Ok(()) };
        let polled = polls.abandon(&mut self.guest, &mut Unplugged);
        self.follow_poll(polled, hca, instant).map(drop)
    }

    fn follow_poll(&mut self, polled: Polled, hca: &mut Hca, instant: Instant) -> Result<bool, Failure> {
        if let Polled::Suspended = polled {
            self.suspended_at.get_or_insert(instant);
            return Ok(false);
        }
        // Register writes and packets may have arrived while it was suspended.
        let suspended = self.suspended_at.take().is_some();
        self.guest.memory.end_poll();
        let Polled::Done(polled, more) = polled else { return Err(Failure::Panic) };
        self.stand_in = Some(Box::new(hca.restore(*polled)));
        Ok(more || suspended)
    }

    /// Serves register accesses while a poll is suspended. Returns whether there may be more.
    pub fn serve_registers(&mut self) -> bool {
        let memory = &mut self.guest.memory;
        let (Some(channel), Some(registers)) = (memory.channel.get_mut(), &memory.registers) else {
            return false;
        };
        self.deferred = false;
        let more = registers::serve(channel, registers);
        channel.flush();
        more
    }

    /// Returns whether a message has exceeded its wait for register writes.
    fn waited_enough(&mut self, now: Instant) -> bool {
        let since = *self.waiting_since.get_or_insert(now);
        now.saturating_duration_since(since) > WRITES_LIMIT
    }

    /// Returns the client socket events to wait for, or `None` without a client.
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
