//! A run: the TCP connection, the options on it, a byte each way, two seconds until the tasks begin and two more until the first row,
//! a row each second, and the end: the active side's after its time, the passive one's when the connection ends.

use core::fmt;
use core::net::Ipv4Addr;
use core::ops::ControlFlow;

use dat_nostd::net::Host;
use dat_nostd::net::smoltcp::iface::SocketStorage;
use dat_nostd::{Adapter, Duration, Instant, Platform};
use driver_mlx::Wake;
use rds_nostd::{Generation, Rds, RdsConfig, RdsStorage};

use super::control::{self, Control};
use super::error::{InCall, StressError};
use super::exchange::{Exchange, Tables};
use super::options::{LONG_LEN, MAX_MESSAGE, MAX_TASKS, Options, SHORT_LEN, VERSION_LEN};
use super::pairs::Pairs;
use super::stats::{Heading, Row, Stats};
use crate::Status;
use crate::rds::stop;

/// Time between two rows.
const SECOND: Duration = Duration::from_secs(1);
/// From the agreement to the first message, and to the first row.
const START: Duration = Duration::from_secs(2);
const FIRST_ROW: Duration = Duration::from_secs(4);
/// How long answers are taken after the end.
const STOPPING: Duration = SECOND;
/// How often the TCP connection is looked at while messages move.
const LOOK: Duration = Duration::from_millis(5);

/// The memory of a side: all zero bytes; what RDS and RDMA take comes from the adapter's DMA region.
pub struct StressStorage {
    rds: RdsStorage<{ MAX_TASKS + 2 }, 4, 3072, 128, 64>,
    tables: Tables,
    tcp: [[u8; control::BUFFER]; 2],
}

impl StressStorage {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            rds: RdsStorage::new(),
            tables: Tables { pairs: Pairs::new(), sent: [0; MAX_MESSAGE], received: [0; MAX_MESSAGE] },
            tcp: [[0; control::BUFFER]; 2],
        }
    }
}

impl Default for StressStorage {
    fn default() -> Self {
        Self::new()
    }
}

/// What a side is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The passive side; None: this is the passive side, and takes the options from the active one.
    pub peer: Option<Ipv4Addr>,
    /// What the active side asks for; the passive one looks at the port and at `cpu` alone.
    pub options: Options,
    /// Whether the processor's share is printed.
    pub cpu: bool,
    /// Varies ports and times.
    pub random: u64,
    /// Grows from boot to boot.
    pub generation: Generation,
    /// Maximum time for the connection.
    pub connect_timeout: Duration,
}

/// What is to be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// The passive side waits for a connection to this port.
    Waiting(u16),
    /// The active one connects to this address and port.
    Connecting(Ipv4Addr, u16),
    /// Whoever connected.
    Accepted(Ipv4Addr),
    /// The tasks begin in two seconds.
    Negotiated,
    /// The names of the columns.
    Heading(Heading),
    /// A row.
    Row(Row),
}

impl fmt::Display for Say {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(port) => write!(f, "waiting for incoming connection on 0.0.0.0:{port}"),
            Self::Connecting(peer, port) => write!(f, "connecting to {peer}:{port}"),
            Self::Accepted(peer) => write!(f, "accepted connection from {peer}"),
            Self::Negotiated => f.write_str("negotiated options, tasks will start in 2 seconds"),
            Self::Heading(heading) => heading.fmt(f),
            Self::Row(row) => row.fmt(f),
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no connection yet.
    Connecting,
    /// The passive side waits for the options, and for the byte that says that the active one is ready.
    Options,
    Ready,
    /// The active one has said what it wants, and makes its tasks.
    Asked(Ipv4Addr),
    /// It waits for the passive one's byte.
    Answer,
    /// The tasks begin at this time.
    Starting(Instant),
    /// Messages move; the first row's time began or will begin at the first time, the next row is due at the second.
    Running {
        from: Instant,
        next: Instant,
    },
    /// Answers are taken until this time.
    Stopping(Instant),
    Over,
}

/// A side in the middle of a run.
pub struct Stress<'s> {
    config: Config,
    rds: Rds<'s>,
    control: Control<'s>,
    /// Until the options are known.
    tables: Option<&'s mut Tables>,
    exchange: Option<Exchange<'s>>,
    options: Options,
    stage: Stage,
    began_at: Instant,
    looked_at: Instant,
    /// Totals at the first row's beginning and at that of the present one, and when that was.
    first: Stats,
    last: Stats,
    last_at: Instant,
}

impl<'s> Stress<'s> {
    /// Starts RDS. `slot` is for the TCP connection.
    ///
    /// # Errors
    /// [`StressError::Rds`] if the adapter lacks memory or objects; [`StressError::Option`].
    pub fn start<P: Platform>(
        adapter: &mut Adapter<'_, P>,
        storage: &'s mut StressStorage,
        slot: &'s mut SocketStorage<'s>,
        config: Config,
        say: &mut dyn FnMut(Say),
    ) -> Result<Self, StressError> {
        if config.peer.is_some() {
            config.options.check()?;
        }
        let settings =
            RdsConfig { send_frames: 1024, seed: config.random, ..RdsConfig::new(config.generation) };
        let rds = Rds::start(adapter, storage.rds.parts(), settings).in_call("rds start")?;
        let port = config.options.port;
        say(config.peer.map_or(Say::Waiting(port), |peer| Say::Connecting(peer, port)));
        let now = adapter.now();
        Ok(Self {
            config,
            rds,
            control: Control::new(&mut storage.tcp, slot, port, config.peer, config.random),
            tables: Some(&mut storage.tables),
            exchange: None,
            options: config.options,
            stage: Stage::Connecting,
            began_at: now,
            looked_at: Instant::ORIGIN,
            first: Stats::default(),
            last: Stats::default(),
            last_at: now,
        })
    }

    /// The node's RDS, for whatever it tells of itself.
    #[must_use]
    pub const fn rds(&mut self) -> &mut Rds<'s> {
        &mut self.rds
    }

    /// Moves on. The caller polls the adapter before.
    ///
    /// # Errors
    /// [`StressError`]: over without success, of which the other side is told.
    pub fn poll<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        host: &mut Host<'_>,
        now: Instant,
        say: &mut dyn FnMut(Say),
    ) -> Result<Status, StressError> {
        let moved = self.advance(adapter, host, now, say);
        if moved.is_err() {
            self.control.abort();
            self.control.poll(host, adapter, now);
        }
        moved
    }

    fn advance<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        host: &mut Host<'_>,
        now: Instant,
        say: &mut dyn FnMut(Say),
    ) -> Result<Status, StressError> {
        let mut wake = self.rds.poll(adapter, now);
        let mut moved = false;
        if matches!(self.stage, Stage::Running { .. } | Stage::Stopping(_))
            && let Some(exchange) = &mut self.exchange
        {
            let stopping = matches!(self.stage, Stage::Stopping(_));
            moved = exchange.poll(adapter, &mut self.rds, stopping)?;
            if moved {
                exchange.stats.busy_ns += (adapter.now() - now).as_nanos() as u64;
            }
        }
        if !moved || now >= self.looked_at + LOOK {
            self.looked_at = now;
            moved |= self.control.poll(host, adapter, now);
            let before = self.stage;
            wake = wake.earliest(self.step(adapter, host, now, say)?);
            if self.stage != before {
                // What was said is on its way before anything else.
                self.control.poll(host, adapter, now);
                moved = true;
            }
        }
        if self.stage == Stage::Over {
            return Ok(ControlFlow::Break(()));
        }
        let wake = wake.earliest(self.control.wake(host, now)).earliest(Wake::At(now + SECOND));
        Ok(ControlFlow::Continue(if moved { Wake::Now } else { wake }))
    }

    /// What the stage is about; when to look again.
    fn step<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        host: &mut Host<'_>,
        now: Instant,
        say: &mut dyn FnMut(Say),
    ) -> Result<Wake, StressError> {
        match self.stage {
            Stage::Connecting => self.connect(adapter, host, now, say)?,
            Stage::Options | Stage::Ready | Stage::Answer if self.control.has_ended() => {
                return Err(StressError::Ended);
            }
            Stage::Asked(peer) => {
                self.begin(adapter, peer)?;
                self.control.send(&[1]);
                self.stage = Stage::Answer;
            }
            Stage::Options => self.take_options(adapter)?,
            Stage::Ready | Stage::Answer => self.agree(now, say),
            Stage::Starting(at) if now >= at => {
                let from = at + (FIRST_ROW - START);
                self.stage = Stage::Running { from, next: from };
            }
            Stage::Starting(at) => return Ok(Wake::At(at)),
            Stage::Running { from, next } => {
                let next = self.tell(from, next, now, say);
                let over = match self.config.peer {
                    Some(_) => self.options.seconds > 0 && now >= from + SECOND * self.options.seconds,
                    None => self.control.peek().is_some(),
                };
                if over || self.control.has_ended() {
                    self.average(from, now, say);
                    self.control.close();
                    self.stage = Stage::Stopping(now + STOPPING);
                } else {
                    self.stage = Stage::Running { from, next };
                }
                return Ok(Wake::At(next));
            }
            Stage::Stopping(until) if now >= until => self.stage = Stage::Over,
            Stage::Stopping(until) => return Ok(Wake::At(until)),
            Stage::Over => {}
        }
        Ok(Wake::Idle)
    }

    /// Sees to the connection. The active side says what it wants as soon as there is one.
    fn connect<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        host: &mut Host<'_>,
        now: Instant,
        say: &mut dyn FnMut(Say),
    ) -> Result<(), StressError> {
        if !self.control.open(host, now) {
            let waited = now - self.began_at;
            if self.config.peer.is_some() && waited > self.config.connect_timeout {
                return Err(StressError::NotConnected { waited_ms: waited.as_millis() as u64 });
            }
            return Ok(());
        }
        match self.config.peer {
            None => {
                if let Some(peer) = self.control.peer() {
                    say(Say::Accepted(peer));
                }
                self.stage = Stage::Options;
            }
            Some(peer) => {
                let here = match adapter.address() {
                    core::net::IpAddr::V4(here) => here.to_bits(),
                    core::net::IpAddr::V6(_) => 0,
                };
                self.options =
                    Options { send_address: peer.to_bits(), receive_address: here, ..self.options };
                let (bytes, len) = self.options.encode();
                if self.control.send(bytes.get(..len).unwrap_or_default()) {
                    self.stage = Stage::Asked(peer);
                }
            }
        }
        Ok(())
    }

    /// The options that the active side sent.
    fn take_options<P: Platform>(&mut self, adapter: &mut Adapter<'_, P>) -> Result<(), StressError> {
        let Some(first) = self.control.peek() else { return Ok(()) };
        let mut bytes = [0; VERSION_LEN + LONG_LEN];
        // A version begins with a digit; a depth, in front without one, is no such number.
        let (len, from) = if first == 0 { (SHORT_LEN, 0) } else { (VERSION_LEN + LONG_LEN, VERSION_LEN) };
        let Some(room) = bytes.get_mut(..len) else { return Ok(()) };
        if !self.control.take(room) {
            return Ok(());
        }
        let options = Options::decode(bytes.get(from..len).unwrap_or_default());
        options.check()?;
        // The active side calls its own address that at which it receives.
        let peer = Ipv4Addr::from_bits(options.receive_address);
        self.options = options;
        self.begin(adapter, peer)?;
        self.stage = Stage::Ready;
        Ok(())
    }

    fn begin<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        peer: Ipv4Addr,
    ) -> Result<(), StressError> {
        let Some(tables) = self.tables.take() else { return Ok(()) };
        let side = (peer, self.config.peer.is_some());
        self.exchange = Some(Exchange::start(adapter, &mut self.rds, tables, self.options, side)?);
        Ok(())
    }

    /// A byte each way: the active side's comes first.
    fn agree(&mut self, now: Instant, say: &mut dyn FnMut(Say)) {
        let mut byte = [0];
        if !self.control.take(&mut byte) {
            return;
        }
        if self.stage == Stage::Ready {
            self.control.send(&byte);
        }
        say(Say::Negotiated);
        self.stage = Stage::Starting(now + START);
    }

    fn stats(&self) -> Stats {
        self.exchange.as_ref().map_or_else(Stats::default, |exchange| exchange.stats)
    }

    /// A row, if one is due; when the next one is.
    fn tell(&mut self, from: Instant, next: Instant, now: Instant, say: &mut dyn FnMut(Say)) -> Instant {
        if now < next {
            return next;
        }
        let stats = self.stats();
        if next == from {
            self.first = stats;
            say(Say::Heading(Heading));
        } else if !self.options.summary_only {
            let ns = (now - self.last_at).as_nanos() as u64;
            say(Say::Row(Row::new(self.options.tasks, &stats, &self.last, ns, self.config.cpu)));
        }
        (self.last, self.last_at) = (stats, now);
        now + SECOND
    }

    fn average(&mut self, from: Instant, now: Instant, say: &mut dyn FnMut(Say)) {
        let ns = (now - from).as_nanos() as u64;
        let row = Row::new(self.options.tasks, &self.stats(), &self.first, ns, self.config.cpu);
        say(Say::Row(Row { is_average: true, ..row }));
    }

    /// Stops RDS with its sockets and their operations.
    ///
    /// # Errors
    /// [`StressError::Rds`] if something could not be freed.
    pub fn close<P: Platform>(mut self, adapter: &mut Adapter<'_, P>) -> Result<(), StressError> {
        let exchange = self.exchange.take();
        let stopped = stop(self.rds, adapter).in_call("rds stop");
        let freed = exchange.map_or(Ok(()), |exchange| exchange.free(adapter));
        freed.and(stopped)
    }
}
