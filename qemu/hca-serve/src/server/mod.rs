//! Emulated HCAs on one fabric, served over vfio-user, and requests to them while they run.

mod cables;
mod clock;
mod detached;
mod device;
mod event_loop;
pub mod listener;
pub mod options;
mod seat;
mod shares;
mod state;
mod stepped;
mod uplink;
mod waiting;

pub use event_loop::Activity;
pub use options::{LogSink, NoticeSink, Options, to_stderr};
pub use seat::Work;
pub use state::{HcaState, Summary};
pub use stepped::Stepped;

use crate::error::{Error, IoContext, Result};
use crate::guest::watchdog::Watchdog;
use crate::link::address::Listener;
use crate::link::hub::Hub;
use crate::link::netdev::{Datagrams, Netdevs};
use crate::link::stream::Stream;
use crate::link::{Address, CableState};
use crate::product::output::{Blocks, Fifo};
use clock::Clock;
use event_loop::{EventLoop, Message, tell_log};
use hca_model::Census;
use hca_model::Profile;
use hca_model::world::World;
use listener::SocketFile;
use options::with_guid;
use rdma_fabric::capture::{Capture, Encapsulation, PcapNg};
use rdma_fabric::counters::FabricCounters;
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::{FabricConfig, Flow};
use rdma_fabric::losses::LossTable;
use rustix::event::{EventfdFlags, eventfd};
use seat::Seat;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uplink::{Cables, Side, Uplink};

/// Time limit for stopping: a bounded iteration and the flush of the capture.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Time limit of a request.
const TASK_LIMIT: Duration = Duration::from_secs(5);
/// Limit of mappings of all guests' files. The system's limit for a process is about twice that.
const MAPPINGS: usize = 1 << 15;

/// Handle of the server's thread.
#[derive(Debug, Clone)]
pub struct Handle {
    messages: Sender<Message>,
    wake: Arc<OwnedFd>,
    /// Address of the fabric, if a remote server has it.
    fabric: Option<Arc<str>>,
}

impl Handle {
    fn send(&self, message: Message) -> Option<()> {
        self.messages.send(message).ok()?;
        // The descriptor's counter can only be full while the thread is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Some(())
    }

    /// Stops serving, completes the capture and returns a summary. Returns `None` if the server has
    /// stopped already.
    #[must_use]
    pub fn stop(&self) -> Option<Summary> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.send(Message::Stop(sender))?;
        receiver.recv_timeout(STOP_LIMIT).ok()
    }

    fn with_loop<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut EventLoop) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.send(Message::Task(Box::new(move |event_loop| {
            // An error means that the requester has timed out.
            let _ = sender.send(task(event_loop));
        })))?;
        receiver.recv_timeout(TASK_LIMIT).ok()
    }

    /// Plugs in a cable again. Returns whether that succeeded.
    fn plug(&self, side: Side, stream: Stream) -> Option<bool> {
        self.with_loop(move |event_loop| {
            let now = event_loop.clock.now();
            let plugged = event_loop.plug(side, stream, now);
            event_loop.cable_notices.tell(&format!("cable of {side} plugged in again"), now);
            plugged.is_ok()
        })
    }

    /// Calls `task` with all devices, their fabric and the time. Returns `None` if the server has
    /// stopped.
    pub fn with_world<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut World, u64) -> T + Send + 'static,
    ) -> Option<T> {
        self.with_loop(|event_loop| {
            let now = event_loop.now();
            task(&mut event_loop.world, now)
        })
    }
}

impl Handle {
    /// Returns the address of the server that has the fabric, unless this server has it.
    #[must_use]
    pub fn fabric_elsewhere(&self) -> Option<&str> {
        self.fabric.as_deref()
    }

    /// Returns the cables of remote HCAs, or `None` if the server has stopped.
    #[must_use]
    pub fn cables(&self) -> Option<Vec<CableState>> {
        self.with_loop(|event_loop| event_loop.hub.as_ref().map(Hub::states).unwrap_or_default())
    }

    /// Returns the current states of the HCAs, or `None` if the server has stopped.
    #[must_use]
    pub fn states(&self) -> Option<Vec<HcaState>> {
        self.with_loop(|event_loop| event_loop.states())
    }

    /// Returns the activity so far, or `None` if the server has stopped.
    #[must_use]
    pub fn activity(&self) -> Option<Activity> {
        self.with_loop(|event_loop| event_loop.activity())
    }
}

/// HCAs being served. Dropping it removes the sockets and completes the capture.
#[derive(Debug)]
pub struct Served {
    handle: Handle,
    thread: JoinHandle<()>,
    sockets: Vec<PathBuf>,
}

/// Returns an unpredictable number other than 0.
fn secret() -> Result<u64> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 8];
    File::open(source).and_then(|mut file| file.read_exact(&mut bytes)).context("cannot read", source)?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// Resources that are opened before serving.
struct Prepared {
    options: Options,
    world: World,
    bound: Vec<(UnixListener, SocketFile)>,
    wake: Arc<OwnedFd>,
    /// Cables, if a remote server has the fabric.
    cables: Cables,
    hub: Option<Listener>,
    netdevs: Option<Listener>,
    datagrams: Vec<Datagrams>,
}

impl Prepared {
    fn new(mut options: Options) -> Result<Self> {
        // Connect cables first, because the remote server may choose the GUIDs.
        let count = options.sockets.len();
        let cables = match options.uplink.clone() {
            Some(address) => connect(&address, &mut options)?,
            None => Vec::new(),
        };
        let listen = |address: &Address| address.listen(options.listen_anywhere);
        let hub = options.listen.as_ref().map(listen).transpose()?;
        let netdevs = options.netdev.as_ref().map(listen).transpose()?;
        let datagrams = options.netdev_datagrams.iter().map(|ends| ends.bind(options.listen_anywhere));
        let datagrams = datagrams.collect::<Result<_>>()?;
        let config = FabricConfig {
            seed: options.seed,
            faults: options.faults,
            // The ports lead to another fabric if there is an uplink.
            subnet_manager: !options.no_subnet_manager && options.uplink.is_none(),
            // A manager in a guest sets its own key.
            first_tid: secret()?,
            packet_life_time: options.packet_life_time,
            m_key: if options.open_fabric || options.no_subnet_manager { 0 } else { secret()? },
            ..FabricConfig::default()
        };
        let mut world = World::new(config);
        world.set_packets_only(options.packets_only);
        if let Some(path) = &options.capture {
            let [infiniband, ethernet] = captures(path)?;
            world.medium.fabric_mut().set_capture(infiniband);
            world.medium.switch_mut().set_capture(ethernet);
        }
        let mut bound = Vec::with_capacity(count);
        for path in &options.sockets {
            let (listener, file) = listener::listen(path, None)?;
            listener.set_nonblocking(true).context("cannot use the socket", path)?;
            bound.push((listener, file));
        }
        for index in 0..bound.len() {
            let place = world
                .add(options.profile(index), &format!("hca {index}"))
                .map_err(|error| Error::Serve(format!("{error}: give fewer sockets")))?;
            if let Some(hca) = world.hca_mut(place) {
                hca.set_warm(options.warm);
                tell_log(hca, index, &options.log);
            }
        }
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let wake = Arc::new(eventfd(0, flags).map_err(|error| cannot_start(&error.into()))?);
        Ok(Self { options, world, bound, wake, cables, hub, netdevs, datagrams })
    }

    /// Creates the event loop on the calling thread, which it must not leave.
    fn event_loop(self, clock: Clock) -> io::Result<EventLoop> {
        let Self { options, world, bound, wake, cables, hub, netdevs, datagrams } = self;
        let watchdog = Rc::new(Watchdog::start()?);
        let mappings = (MAPPINGS / bound.len().max(1)).clamp(128, MAPPINGS / 2);
        let seats = bound.into_iter().zip(world.nodes()).map(|((listener, file), node)| {
            let mut seat = Seat::new(listener, file, node.hca.profile(), mappings, Rc::clone(&watchdog));
            seat.guest.memory.set_memory_limit(options.memory_limit);
            seat
        });
        let seats = seats.collect::<Vec<_>>();
        let mut event_loop =
            EventLoop::new(world, seats, wake, options.log, options.notices, options.file_io, clock)?;
        let nodes = event_loop.world.nodes();
        if let Some(listener) = hub {
            let guids = nodes.iter().map(|node| (node.hca.profile().port_guid, node.port));
            let base = options.guid_base.unwrap_or(Profile::GUID_BASE);
            event_loop.hub = Some(Hub::new(listener, guids, base, &event_loop.epoll)?);
        }
        if netdevs.is_some() || !datagrams.is_empty() {
            let medium = &mut event_loop.world.medium;
            event_loop.netdevs = Some(Netdevs::new(netdevs, datagrams, medium, &event_loop.epoll)?);
        }
        event_loop.plug_all(cables)?;
        Ok(event_loop)
    }
}

/// Connects the cables of the HCAs with an InfiniBand port, and of the Ethernet switch if one has
/// another port. Fixes the HCAs' GUIDs.
fn connect(address: &Address, options: &mut Options) -> Result<Cables> {
    let profiles: Vec<Profile> = (0..options.sockets.len()).map(|index| options.profile(index)).collect();
    let chosen = options.guid_base.is_some() || !options.profiles.is_empty();
    let mut sides: Vec<(Side, u64)> = profiles
        .iter()
        .enumerate()
        .filter(|(_, profile)| !profile.card.is_ethernet())
        .map(|(index, profile)| (Side::Hca(index), if chosen { profile.port_guid } else { 0 }))
        .collect();
    if sides.len() < profiles.len() || options.has_netdevs() {
        sides.push((Side::Switch, 0));
    }
    let cables = uplink::connect(address, &sides)?;
    let guid_of = |side| cables.iter().find(|(other, _, _)| *other == side).map(|(_, _, guid)| *guid);
    let fixed = profiles.into_iter().enumerate().map(|(index, profile)| {
        let at_switch = |first: u64| first.wrapping_add(index as u64 * Profile::GUID_STEP);
        let guid = guid_of(Side::Hca(index)).or_else(|| guid_of(Side::Switch).map(at_switch));
        match guid.filter(|_| !chosen) {
            Some(guid) => with_guid(profile, guid),
            None => profile,
        }
    });
    options.profiles = fixed.collect();
    Ok(cables)
}

fn cannot_start(error: &io::Error) -> Error {
    Error::Serve(format!("cannot start to serve: {error}"))
}

/// Serves HCAs until the returned value is dropped.
///
/// # Errors
/// A socket is in use, or the capture cannot be written. Nothing is served then.
pub fn serve(options: Options) -> Result<Served> {
    let prepared = Prepared::new(options)?;
    let (messages, receiver) = mpsc::channel();
    let fabric = prepared.options.uplink.as_ref().map(|address| address.to_string().into());
    let handle = Handle { messages, wake: Arc::clone(&prepared.wake), fabric };
    let sockets = prepared.options.sockets.clone();
    let (started, outcome) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("hca-serve".into())
        .spawn({
            let handle = handle.clone();
            move || run(prepared, handle, &receiver, &started)
        })
        .map_err(|error| cannot_start(&error))?;
    match outcome.recv() {
        Ok(Ok(())) => Ok(Served { handle, thread, sockets }),
        Ok(Err(error)) => Err(cannot_start(&error)),
        Err(_) => Err(Error::Serve("cannot start to serve: the thread ended".into())),
    }
}

/// Runs the server's thread: creates the event loop, which must not leave the thread, reports the
/// result, and serves.
fn run(
    prepared: Prepared,
    handle: Handle,
    messages: &Receiver<Message>,
    started: &SyncSender<io::Result<()>>,
) {
    let uplink = prepared.options.uplink.clone();
    let guids = prepared.cables.iter().map(|(side, _, guid)| (*side, *guid)).collect();
    let made = prepared.event_loop(Clock::System).map(|mut event_loop| {
        if let Some(address) = uplink {
            let plug = move |side, stream| handle.plug(side, stream);
            event_loop.uplink = Some(Uplink::new(address, guids, Arc::new(plug)));
        }
        event_loop
    });
    // `serve` waits for this result.
    match made {
        Ok(event_loop) => {
            let _ = started.send(Ok(()));
            event_loop.run(messages);
        }
        Err(error) => drop(started.send(Err(error))),
    }
}

/// Creates the captures of the InfiniBand fabric and of the Ethernet switch, both to `path`. A pipe
/// never blocks the model; a file is written immediately.
fn captures(path: &Path) -> Result<[Box<dyn Capture + Send>; 2]> {
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let epoch = u64::try_from(epoch).unwrap_or(0);
    let made = if path == Path::new("-") {
        captures_to(Blocks::new(io::stdout()), epoch)
    } else if path.metadata().is_ok_and(|found| found.file_type().is_fifo()) {
        captures_to(Blocks::new(Fifo::new(path)), epoch)
    } else {
        let file = File::create(path).context("cannot write the capture", path)?;
        captures_to(BufWriter::new(file), epoch)
    };
    made.context("cannot write the capture", path)
}

fn captures_to(writer: impl Write + Send + 'static, epoch: u64) -> io::Result<[Box<dyn Capture + Send>; 2]> {
    let infiniband = PcapNg::new(writer, epoch)?;
    let ethernet = infiniband.another(Encapsulation::Ethernet);
    Ok([Box::new(infiniband), Box::new(ethernet)])
}

impl Served {
    /// Returns the sockets, in the order of the nodes.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().map(PathBuf::as_path)
    }

    /// Returns a handle of the server for other threads.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Stops serving and closes open connections.
    ///
    /// # Errors
    /// The thread has exited or does not stop.
    pub fn stop(self) -> Result<Summary> {
        self.handle
            .stop()
            .ok_or_else(|| Error::Serve("the emulated HCAs' thread ended before its time".into()))
    }

    /// Returns whether the HCAs are still served.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Calls `task` with all devices, their fabric and the time. Returns `None` if the server has
    /// stopped.
    pub fn with_world<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut World, u64) -> T + Send + 'static,
    ) -> Option<T> {
        self.handle.with_world(task)
    }

    /// Returns the activity so far, or `None` if the server has stopped.
    #[must_use]
    pub fn activity(&self) -> Option<Activity> {
        self.handle.activity()
    }

    /// Returns the object counts of every HCA, or `None` if the server has stopped.
    #[must_use]
    pub fn census(&self) -> Option<Vec<Census>> {
        self.with_world(|world, _| world.nodes().iter().map(|node| node.hca.census()).collect())
    }

    /// Returns the packet counters so far, or `None` if the server has stopped.
    #[must_use]
    pub fn counters(&self) -> Option<FabricCounters> {
        self.with_world(|world, _| world.medium.fabric().counters())
    }

    /// Returns the losses so far by flow, or `None` if the server has stopped.
    #[must_use]
    pub fn losses(&self) -> Option<LossTable<Flow>> {
        self.with_world(|world, _| world.medium.fabric().losses().clone())
    }

    /// Injects `faults` with the seed `seed` from now on. Returns `None` if the server has stopped.
    pub fn set_faults(&self, faults: Faults, seed: u64) -> Option<()> {
        self.with_world(move |world, _| {
            world.medium.reseed(seed);
            world.medium.set_faults(faults);
        })
    }

    /// Plugs or pulls the cable of node `node`. Returns `None` if the server has stopped.
    pub fn set_cable(&self, node: usize, plugged: bool) -> Option<()> {
        self.with_world(move |world, _| world.set_cable(node, plugged))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.handle.stop());
    }
}
