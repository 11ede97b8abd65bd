//! The order of things: connect, send and receive, write, read, DAT's other objects, datagrams, disconnect.

use apps::connection::LinkState;
use core::ops::ControlFlow;
use dat_nostd::{Adapter, ConnectionEvent, Duration, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Rds, RdsConfig};

use crate::datagrams::Buffers;
use crate::datagrams::{Datagrams, MAX_DATAGRAM, Sockets};
use crate::error::{DemoError, InCall};
use crate::link::{Control, Done, Link, MAX_MESSAGE, MAX_RDMA};
use crate::objects::Objects;
use crate::parts::{Part, Plan, transfers};
use crate::pattern::Stream;
use crate::report::{Operation, Reporter, Tally};
use crate::sizes::Sizes;
use crate::{Config, Role, Status, Storage};

/// Completions taken in one poll.
const COMPLETIONS_PER_POLL: usize = 32;
/// Messages of each of many connections: so many, and for each such share of the messages one more.
const LEAST_EACH: u64 = 4;
const SHARE: u64 = 2000;
/// From one word of progress to the next.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
const ORDER: [Operation; 11] = [
    Operation::SendRecv,
    Operation::RdmaWrite,
    Operation::RdmaRead,
    Operation::Windows,
    Operation::SharedQueue,
    Operation::Watermarks,
    Operation::Handoff,
    Operation::Duplicate,
    Operation::Graceful,
    Operation::Completions,
    Operation::Rds,
];

#[allow(clippy::large_enum_variant)] // There is no heap to put the large one on, and only one at a time.
enum Stage {
    Connecting,
    Dat(Part),
    Objects(Objects),
    Datagrams(Datagrams),
    Closing,
}

/// A node in the middle of a run.
pub struct Demo<'s> {
    config: Config,
    link: Link,
    rds: Rds<'s>,
    sockets: Sockets,
    buffers: &'s mut Buffers,
    stage: Stage,
    /// Index into the order of operations.
    step: usize,
    plan: Plan,
    tally: Tally,
    finished_here: bool,
    finished_there: bool,
    last_moved: u64,
    last_moved_at: Instant,
    progress_at: Instant,
}

impl<'s> Demo<'s> {
    /// Makes the node's objects; the server listens from here on.
    ///
    /// # Errors
    /// [`DemoError::Dat`] and [`DemoError::Rds`] if the adapter lacks objects or memory.
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        storage: &'s mut Storage,
        config: Config,
    ) -> Result<Self, DemoError> {
        let now = adapter.now();
        let link = Link::open(adapter, &config)?;
        let rds_config = RdsConfig {
            receive_depth: 256,
            send_depth: 128,
            send_frames: 576,
            seed: config.seed ^ role_number(config.role).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..RdsConfig::new(config.generation)
        };
        let mut rds = Rds::start(adapter, storage.rds.parts(), rds_config).in_call("rds start")?;
        let sockets = Sockets::bind(&mut rds, adapter.address())?;
        let plan = plan(&config, ORDER[0], adapter.mtu());
        Ok(Self {
            config,
            link,
            rds,
            sockets,
            buffers: &mut storage.buffers,
            stage: Stage::Connecting,
            step: 0,
            plan,
            tally: Tally::new(now.as_nanos()),
            finished_here: false,
            finished_there: false,
            last_moved: 0,
            last_moved_at: now,
            progress_at: now,
        })
    }

    /// RDS counters, for reports.
    pub fn rds_counters(&self) -> &rds_nostd::Counters {
        self.rds.counters()
    }

    /// What is going on.
    pub fn operation(&self) -> Operation {
        match self.stage {
            Stage::Connecting | Stage::Closing => Operation::Connection,
            _ => self.plan.operation,
        }
    }

    /// Moves on. The caller polls the adapter before.
    ///
    /// # Errors
    /// [`DemoError`]: the run is over without success.
    pub fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        now: Instant,
        reporter: &mut dyn Reporter,
    ) -> Result<Status, DemoError> {
        let mut wake = self.rds.poll(adapter, now);
        // Behind RDS, because each look at a dispatcher polls the adapter, which may queue an event here.
        wake = wake.earliest(self.link.poll(adapter, now)?);
        if matches!((&self.stage, self.link.state()), (Stage::Connecting, LinkState::Up)) {
            self.enter(adapter, 0, now)?;
        }
        // Before the end is looked at: the peer's last word may lie in front of its disconnect.
        self.work(adapter, reporter, now)?;
        match (&self.stage, self.link.state()) {
            (Stage::Closing, LinkState::Ended(ConnectionEvent::Disconnected)) => {
                return Ok(ControlFlow::Break(()));
            }
            (_, LinkState::Ended(event)) => {
                // The reason of the loss is in a completion, if anything was under way.
                while self.link.completion(adapter, self.operation())?.is_some() {}
                return Err(DemoError::ConnectionLost { event, during: self.operation() });
            }
            _ => {}
        }
        if self.watch(now)? {
            // What moved may let more move: only a look without movement may be followed by sleep.
            wake = Wake::Now;
        }
        if now >= self.progress_at {
            self.progress_at = now + PROGRESS_EVERY;
            self.tell(reporter);
        }
        Ok(ControlFlow::Continue(wake.earliest(Wake::At(self.progress_at))))
    }

    fn work<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        reporter: &mut dyn Reporter,
        now: Instant,
    ) -> Result<(), DemoError> {
        let finished = match &mut self.stage {
            Stage::Connecting => return Ok(()),
            Stage::Closing => {
                // Receives that were never used are flushed; nobody is interested.
                return Ok(());
            }
            Stage::Dat(part) => {
                for _ in 0..COMPLETIONS_PER_POLL {
                    let Some(done) = self.link.completion(adapter, self.plan.operation)? else { break };
                    let control =
                        part.completed(adapter, &mut self.link, &self.plan, &mut self.tally, done)?;
                    self.finished_there |= finished(control, self.step, &self.plan)?;
                    if self.finished_here && self.finished_there {
                        // The peer knows as much: what comes behind its last word is of the next step.
                        break;
                    }
                }
                part.advance(adapter, &mut self.link, &self.plan, &mut self.tally)?;
                part.done() == self.plan.count
            }
            Stage::Objects(objects) => {
                while let Some(done) = self.link.completion(adapter, self.plan.operation)? {
                    match take_control(adapter, &mut self.link, &self.plan, done)? {
                        Some(Control::Ready(n)) => objects.told(n, &self.plan)?,
                        control => self.finished_there |= finished(control, self.step, &self.plan)?,
                    }
                    if self.finished_here && self.finished_there {
                        break;
                    }
                }
                objects.poll(adapter, &mut self.link, &self.plan, &mut self.tally, now)?
            }
            Stage::Datagrams(datagrams) => {
                while let Some(done) = self.link.completion(adapter, Operation::Rds)? {
                    // Only the peer's last word comes this way.
                    let control = take_control(adapter, &mut self.link, &self.plan, done)?;
                    self.finished_there |= finished(control, self.step, &self.plan)?;
                }
                datagrams.poll(adapter, &mut self.rds, self.buffers, &mut self.tally)?
            }
        };
        if finished && !self.finished_here {
            self.finished_here = true;
            reporter.result(&self.tally.result(self.plan.operation, adapter.now().as_nanos()));
            self.link.send_control(adapter, Control::Finished(self.step as u64))?;
        }
        if self.finished_here && self.finished_there {
            self.enter(adapter, self.step + 1, now)?;
        }
        Ok(())
    }

    /// Begins step `step`, or the end behind the last one.
    fn enter<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        step: usize,
        now: Instant,
    ) -> Result<(), DemoError> {
        match core::mem::replace(&mut self.stage, Stage::Closing) {
            Stage::Datagrams(datagrams) => datagrams.close(adapter, &mut self.rds)?,
            Stage::Objects(objects) => objects.close(adapter)?,
            _ => {}
        }
        self.step = step;
        self.last_moved_at = now;
        let Some(&operation) = ORDER.get(step) else {
            // One side disconnects; the other hears of it.
            return match self.config.role {
                Role::Client => self.link.disconnect(adapter),
                Role::Server => Ok(()),
            };
        };
        self.plan = plan(&self.config, operation, adapter.mtu());
        self.tally = Tally::new(adapter.now().as_nanos());
        self.finished_here = false;
        self.finished_there = false;
        let client = self.config.role == Role::Client;
        self.stage = match operation {
            Operation::SendRecv => Stage::Dat(Part::MESSAGES),
            Operation::RdmaWrite => Stage::Dat(if client { Part::WRITER } else { Part::WRITTEN }),
            Operation::RdmaRead => Stage::Dat(if client { Part::READER } else { Part::READ }),
            Operation::Windows
            | Operation::SharedQueue
            | Operation::Watermarks
            | Operation::Handoff
            | Operation::Duplicate
            | Operation::Graceful
            | Operation::Completions => {
                let (link, config, plan, tally) = (&mut self.link, &self.config, &self.plan, &mut self.tally);
                Stage::Objects(Objects::open(adapter, link, config, plan, tally, now)?)
            }
            Operation::Connection | Operation::Rds => {
                let (sockets, role) = (self.sockets, self.config.role);
                Stage::Datagrams(Datagrams::new(sockets, self.config.peer, role, &self.plan))
            }
        };
        Ok(())
    }

    /// Whether something moved. A run that does not move for too long is over.
    fn watch(&mut self, now: Instant) -> Result<bool, DemoError> {
        let moved = match &self.stage {
            Stage::Connecting | Stage::Closing => 0,
            Stage::Dat(part) => part.moved(),
            Stage::Objects(objects) => objects.moved(),
            Stage::Datagrams(datagrams) => datagrams.moved(),
        };
        if moved != self.last_moved {
            self.last_moved = moved;
            self.last_moved_at = now;
            return Ok(true);
        }
        let waited = now - self.last_moved_at;
        let waited_ms = waited.as_millis() as u64;
        if matches!(self.stage, Stage::Connecting) {
            if waited > self.config.connect_timeout {
                let last = self.link.last_failure();
                return Err(DemoError::PeerNeverCameUp { waited_ms, last });
            }
        } else if waited > self.config.stall_timeout {
            return Err(DemoError::Stalled { during: self.operation(), waited_ms });
        }
        Ok(false)
    }

    fn tell(&self, reporter: &mut dyn Reporter) {
        match &self.stage {
            Stage::Connecting | Stage::Closing | Stage::Objects(_) => {}
            Stage::Dat(part) => reporter.progress(self.plan.operation, part.done(), self.plan.count),
            Stage::Datagrams(datagrams) => {
                reporter.progress(
                    Operation::Rds,
                    datagrams.moved().min(2 * self.plan.count),
                    2 * self.plan.count,
                );
            }
        }
    }

    /// Frees everything that the run made.
    ///
    /// # Errors
    /// [`DemoError`] if something could not be freed.
    pub fn close<P: Platform>(self, adapter: &mut Adapter<'_, P>) -> Result<(), DemoError> {
        apps::rds::stop(self.rds, adapter).in_call("rds stop")?;
        self.link.close(adapter)
    }
}

/// The control message that a completion brings while nothing but control messages moves.
fn take_control<P: Platform>(
    adapter: &mut Adapter<'_, P>,
    link: &mut Link,
    plan: &Plan,
    done: Done,
) -> Result<Option<Control>, DemoError> {
    match done {
        Done::Control => Ok(None),
        Done::Arrived { buffer, len } => {
            let control = link.control(buffer, len);
            link.repost(adapter, buffer)?;
            control.map(Some).ok_or(DemoError::Protocol { during: plan.operation })
        }
        Done::Sent(_) | Done::Transferred(_) => Err(DemoError::Protocol { during: plan.operation }),
    }
}

/// Whether `control` is the peer's word that it has finished this step.
fn finished(control: Option<Control>, step: usize, plan: &Plan) -> Result<bool, DemoError> {
    match control {
        None => Ok(false),
        Some(Control::Finished(n)) if n == step as u64 => Ok(true),
        Some(_) => Err(DemoError::Protocol { during: plan.operation }),
    }
}

const fn role_number(role: Role) -> u64 {
    match role {
        Role::Server => 1,
        Role::Client => 2,
    }
}

fn plan(config: &Config, operation: Operation, mtu: u32) -> Plan {
    let volume = &config.volume;
    // Operation, longest message, and a number that makes its bytes unique.
    let (number, max) = match operation {
        Operation::Connection | Operation::SendRecv => (1, MAX_MESSAGE),
        Operation::RdmaWrite => (2, MAX_RDMA),
        Operation::RdmaRead => (3, MAX_RDMA),
        Operation::Rds => (4, MAX_DATAGRAM),
        // These have lengths of their own.
        Operation::Windows => (5, 0),
        Operation::SharedQueue => (6, 0),
        Operation::Watermarks => (7, 0),
        Operation::Handoff => (8, 0),
        Operation::Duplicate => (9, 0),
        Operation::Graceful => (10, 0),
        Operation::Completions => (11, 0),
    };
    let stream = |sender: u64| Stream { sender: sender as u8, operation: number, seed: config.seed };
    let own = role_number(config.role);
    let sizes = Sizes { max: max as u32, mtu: mtu.max(1), seed: config.seed ^ u64::from(number) };
    let count = match operation {
        Operation::Connection | Operation::SendRecv => volume.messages / 2,
        Operation::RdmaWrite => transfers(&sizes, volume.write_bytes),
        Operation::RdmaRead => transfers(&sizes, volume.read_bytes),
        Operation::Rds => volume.datagrams / 2,
        Operation::SharedQueue => LEAST_EACH + volume.messages / SHARE,
        _ => 0,
    };
    Plan { operation, own: stream(own), theirs: stream(3 - own), sizes, count }
}
