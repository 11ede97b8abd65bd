//! The one thread that runs all emulated HCAs and their fabric.
//!
//! It sleeps until the fabric's or a device's next deadline, or until somebody queues something: a register
//! write, or a call that waits for its answer. When idle it never polls.

use super::interrupts::Vectors;
use super::memory::{GuestMap, Range};
use crate::error::{Error, Result};
use hca_model::fabric::FabricCounters;
use hca_model::world::{NodePort, World};
use hca_model::{GuestMemory, Interrupts};
use std::fs::File;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// What a client asks of its device, in order with its register writes.
#[derive(Debug)]
pub enum Request {
    /// Configuration space, `len` bytes from `offset`.
    ConfigRead {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Bytes for configuration space.
    ConfigWrite {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Guest memory appears.
    Map {
        /// The device's address.
        address: u64,
        /// The memory.
        range: Range,
    },
    /// Guest memory goes away.
    Unmap {
        /// The device's address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// Vectors get descriptors.
    ConnectVectors {
        /// The first vector.
        start: u32,
        /// One descriptor (or none) each.
        events: Vec<Option<File>>,
    },
    /// MSI-X is switched off.
    DisconnectVectors,
    /// Function-level reset.
    Reset,
    /// The client is gone: its memory and descriptors too.
    Closed,
}

struct Call {
    node: usize,
    request: Request,
    answer: SyncSender<io::Result<Vec<u8>>>,
}

/// Something to be done with all devices and the fabric.
type Task = Box<dyn FnOnce(&mut World, u64) + Send>;

enum Message {
    Call(Call),
    Task(Task),
    Stop(SyncSender<Summary>),
}

/// What the model thread saw until it was stopped.
#[derive(Debug, Clone)]
pub struct Summary {
    /// What happened to packets.
    pub fabric: FabricCounters,
    /// Packets that the HCAs sent again.
    pub retransmitted: u64,
    /// How many times each HCA refused something.
    pub refusals: Vec<u64>,
    /// Why the capture is not complete, if it is not.
    pub capture_error: Option<String>,
}

/// The way to the model thread.
#[derive(Debug, Clone)]
pub struct Handle {
    messages: Sender<Message>,
    thread: Thread,
}

impl Handle {
    /// Wakes the thread: something was queued.
    pub fn wake(&self) {
        self.thread.unpark();
    }

    /// Stops the thread, ends the capture and says what it saw; `None` when it has ended already.
    pub fn stop(&self, limit: Duration) -> Option<Summary> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.messages.send(Message::Stop(sender)).ok()?;
        self.wake();
        receiver.recv_timeout(limit).ok()
    }

    /// Has the thread call `task` with all devices, their fabric and the time; `None` when it takes no messages any more.
    pub fn with_world<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut World, u64) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let task: Task = Box::new(move |world, now| {
            // Nobody waits any more when this fails.
            let _ = sender.send(task(world, now));
        });
        self.messages.send(Message::Task(task)).ok()?;
        self.wake();
        receiver.recv_timeout(Duration::from_secs(5)).ok()
    }

    /// The way for the client of `node`.
    pub fn caller(&self, node: usize) -> Caller {
        Caller { handle: self.clone(), node }
    }
}

/// The way to the model thread for one device's client.
#[derive(Debug, Clone)]
pub struct Caller {
    handle: Handle,
    node: usize,
}

impl Caller {
    /// The device's number.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Wakes the thread: a register write was queued.
    pub fn wake(&self) {
        self.handle.wake();
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// The device refuses, or the thread has ended.
    pub fn call(&self, request: Request) -> io::Result<Vec<u8>> {
        let ended = || io::Error::other("the model thread has ended");
        let (sender, receiver) = mpsc::sync_channel(1);
        let call = Call { node: self.node, request, answer: sender };
        self.handle.messages.send(Message::Call(call)).map_err(|_| ended())?;
        self.handle.wake();
        receiver.recv().map_err(|_| ended())?
    }
}

/// What a device's client gave it.
struct Guest {
    memory: GuestMap,
    vectors: Vectors,
}

impl NodePort for Guest {
    fn parts(&mut self) -> (&dyn GuestMemory, &mut dyn Interrupts) {
        (&self.memory, &mut self.vectors)
    }
}

/// Polls that one call may wait for, so that register writes made before it take effect first.
const DRAIN_POLLS: usize = 100_000;
/// The longest sleep. Nothing depends on waking earlier than a deadline; this only bounds a forgotten one.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// All devices, their clients and the fabric.
struct Model {
    world: World,
    guests: Vec<Guest>,
    started: Instant,
}

impl Model {
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A bounded amount of work everywhere. Answers whether there is more.
    fn poll(&mut self) -> bool {
        let now = self.now();
        self.world.poll(now, &mut self.guests)
    }

    /// Whether a register write waits.
    fn has_writes(&self) -> bool {
        self.world.nodes.iter().any(|node| node.hca.bar().has_work())
    }

    fn call(&mut self, index: usize, request: Request) -> io::Result<Vec<u8>> {
        // The client waits for this answer and makes no new writes meanwhile: the queue runs dry.
        for _ in 0..DRAIN_POLLS {
            match self.world.nodes.get(index) {
                Some(node) if node.hca.bar().has_work() => drop(self.poll()),
                _ => break,
            }
        }
        let (Some(node), Some(guest)) = (self.world.nodes.get_mut(index), self.guests.get_mut(index)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        match request {
            Request::ConfigRead { offset, len } => {
                let mut data = vec![0; len.min(hca_model::pci::CONFIG_SIZE)];
                node.hca.config_read(usize::try_from(offset).unwrap_or(usize::MAX), &mut data);
                return Ok(data);
            }
            Request::ConfigWrite { offset, data } => {
                node.hca.config_write(usize::try_from(offset).unwrap_or(usize::MAX), &data);
            }
            Request::Map { address, range } => guest.memory.map(address, range)?,
            Request::Unmap { address, size } => guest.memory.unmap(address, size),
            Request::ConnectVectors { start, events } => guest.vectors.connect(start, events),
            Request::DisconnectVectors => guest.vectors.disconnect(),
            Request::Reset => node.hca.reset(),
            Request::Closed => {
                node.hca.reset();
                guest.memory.clear();
                guest.vectors.disconnect();
            }
        }
        Ok(Vec::new())
    }

    fn summary(&mut self) -> Summary {
        Summary {
            fabric: self.world.fabric.counters(),
            retransmitted: self
                .world
                .nodes
                .iter()
                .map(|node| node.hca.transport.counters.retransmitted)
                .sum(),
            refusals: self.world.nodes.iter().map(|node| node.hca.log.refusals()).collect(),
            capture_error: self.world.fabric.finish_capture().err().map(|error| error.to_string()),
        }
    }

    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            while let Ok(message) = messages.try_recv() {
                match message {
                    Message::Call(call) => {
                        let answer = self.call(call.node, call.request);
                        // A client that is gone needs no answer.
                        let _ = call.answer.send(answer);
                    }
                    Message::Task(task) => {
                        let now = self.now();
                        task(&mut self.world, now);
                    }
                    Message::Stop(answer) => {
                        let _ = answer.send(self.summary());
                        return;
                    }
                }
            }
            if self.poll() || self.has_writes() {
                continue;
            }
            let sleep = match self.world.next_deadline() {
                Some(deadline) => {
                    Duration::from_nanos(deadline.saturating_sub(self.now())).min(LONGEST_SLEEP)
                }
                None => LONGEST_SLEEP,
            };
            if !sleep.is_zero() {
                // Whoever queues something unparks; an unpark before this returns from it at once.
                std::thread::park_timeout(sleep);
            }
        }
    }
}

/// Starts the thread that runs `world`.
///
/// # Errors
/// The system has no thread.
pub fn start(world: World) -> Result<Handle> {
    let guests = world
        .nodes
        .iter()
        .map(|node| Guest { memory: GuestMap::default(), vectors: Vectors::new(node.hca.profile.vectors) });
    let model = Model { guests: guests.collect(), world, started: Instant::now() };
    let (messages, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("model".into())
        .spawn(move || model.run(&receiver))
        .map_err(|error| Error::Serve(format!("cannot start the model thread: {error}")))?;
    Ok(Handle { messages, thread: thread.thread().clone() })
}
