//! Emulated HCAs on one fabric, served over vfio-user to any QEMU.
//!
//! One thread per socket takes the client's messages (`device`), one thread runs all devices and the fabric
//! (`model`). A closed connection is a function-level reset, after which the socket serves again.

mod device;
mod interrupts;
mod listener;
mod memory;
mod model;

pub use model::Summary;

use crate::error::{Error, IoContext, Result};
use crate::process::{self, Temporary};
use device::Device;
use hca_model::fabric::{FabricConfig, FabricCounters, Faults, LossTable, PcapNg};
use hca_model::hca::Census;
use hca_model::log::{Entry, Level};
use hca_model::world::World;
use hca_model::{BarPort, Profile};
use model::{Caller, Handle, Request};
use std::fs::File;
use std::io::BufWriter;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vfio_user::Server;

/// Receives what a device logs, with its number.
pub type LogSink = Arc<dyn Fn(usize, &Entry) + Send + Sync>;

/// What is served.
pub struct Options {
    /// One HCA each.
    pub sockets: Vec<PathBuf>,
    /// The HCAs' profiles; where there is none, that of the node's number.
    pub profiles: Vec<Profile>,
    /// A file for all packets, in pcapng.
    pub capture: Option<PathBuf>,
    /// What goes wrong with packets.
    pub faults: Faults,
    /// The seed of what goes wrong.
    pub seed: u64,
    /// Who is told what the devices log.
    pub log: LogSink,
}

impl Options {
    /// One HCA for each of `sockets`, without faults, logging refusals to standard error.
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self {
            sockets,
            profiles: Vec::new(),
            capture: None,
            faults: Faults::default(),
            seed: 1,
            log: to_stderr(),
        }
    }
}

/// Prints warnings and refusals to standard error.
pub fn to_stderr() -> LogSink {
    Arc::new(|node, entry| {
        if entry.level >= Level::Warning {
            eprintln!("hca {node}: {:.6} s: {entry}", entry.at as f64 / 1e9);
        }
    })
}

/// HCAs being served. Dropped, the sockets are gone and the capture is complete.
#[derive(Debug)]
pub struct Served {
    handle: Handle,
    stopping: Arc<AtomicBool>,
    /// Shut down to end the threads that wait for a connection.
    listeners: Vec<OwnedFd>,
    sockets: Vec<Temporary>,
}

/// How long stopping may take: one bounded step of the model and the flush of the capture.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Serves HCAs until the answer is dropped.
///
/// # Errors
/// A socket is in use, or the capture cannot be written; nothing is served then.
pub fn serve(options: Options) -> Result<Served> {
    let config = FabricConfig { seed: options.seed, faults: options.faults, ..FabricConfig::default() };
    let mut world = World::new(config);
    if let Some(path) = &options.capture {
        let file = File::create(path).context("cannot write the capture", path)?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let writer = PcapNg::new(BufWriter::new(file), u64::try_from(epoch).unwrap_or(0));
        world.fabric.set_capture(Box::new(writer.context("cannot write the capture", path)?));
    }
    let mut bound = Vec::with_capacity(options.sockets.len());
    for path in &options.sockets {
        bound.push(listener::listen(path)?);
    }
    let mut fronts: Vec<(Arc<BarPort>, u16)> = Vec::with_capacity(bound.len());
    for index in 0..bound.len() {
        let number = u16::try_from(index).map_err(|_| Error::Serve("too many sockets".into()))?;
        let profile = options.profiles.get(index).cloned().unwrap_or_else(|| Profile::node(number));
        let vectors = profile.vectors;
        let place = world
            .add(profile, &format!("hca {index}"))
            .map_err(|error| Error::Serve(format!("{error}: give fewer sockets")))?;
        if let Some(node) = world.nodes.get_mut(place) {
            let log = Arc::clone(&options.log);
            node.hca.log.set_sink(Some(Box::new(move |entry| log(index, entry))));
            fronts.push((node.hca.bar(), vectors));
        }
    }
    let handle = model::start(world)?;
    let mut served = Served { handle, stopping: Arc::default(), listeners: Vec::new(), sockets: Vec::new() };
    for (index, ((listener, guard), (bar, vectors))) in bound.into_iter().zip(fronts).enumerate() {
        let descriptor = listener.try_clone().map_err(|error| Error::Serve(error.to_string()))?;
        served.listeners.push(descriptor.into());
        served.sockets.push(guard);
        let caller = served.handle.caller(index);
        let stopping = Arc::clone(&served.stopping);
        std::thread::Builder::new()
            .name(format!("hca {index}"))
            .spawn(move || serve_socket(listener, &caller, &bar, vectors, &stopping))
            .map_err(|error| Error::Serve(format!("cannot start a thread: {error}")))?;
    }
    // A capture is complete even when Ctrl-C ends the tool.
    let handle = served.handle.clone();
    process::before_exit(move || drop(handle.stop(STOP_LIMIT)));
    Ok(served)
}

/// Serves one socket, connection after connection.
fn serve_socket(
    listener: UnixListener,
    caller: &Caller,
    bar: &Arc<BarPort>,
    vectors: u16,
    stopping: &AtomicBool,
) {
    let server = Server::from_owned_fd(listener.into(), true, device::interrupts(vectors), device::regions());
    while !stopping.load(Ordering::Acquire) {
        let mut device = Device::new(caller.clone(), Arc::clone(bar), vectors);
        // The crate panics on a malformed version message: that ends the connection, not the server.
        let ended = catch_unwind(AssertUnwindSafe(|| server.run(&mut device)));
        if stopping.load(Ordering::Acquire) || caller.call(Request::Closed).is_err() {
            return;
        }
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(vfio_user::Error::SocketAccept(error))) => {
                eprintln!("hca {}: cannot accept a connection: {error}", caller.node());
                std::thread::sleep(Duration::from_millis(200));
            }
            // A killed client: the connection broke in the middle of a message.
            Ok(Err(error)) => eprintln!("hca {}: connection lost: {error}", caller.node()),
            Err(_) => eprintln!("hca {}: connection closed: malformed message", caller.node()),
        }
    }
}

impl Served {
    /// The sockets, in the order of the nodes.
    pub fn sockets(&self) -> impl Iterator<Item = &std::path::Path> {
        self.sockets.iter().map(Temporary::path)
    }

    /// Stops serving; connections that are still open get no answer any more.
    ///
    /// # Errors
    /// The model thread has ended or does not stop.
    pub fn stop(self) -> Result<Summary> {
        self.stopping.store(true, Ordering::Release);
        self.handle
            .stop(STOP_LIMIT)
            .ok_or_else(|| Error::Serve("the emulated HCAs' thread ended before its time".into()))
    }

    /// Whether the model thread still runs.
    pub fn is_alive(&self) -> bool {
        self.census().is_some()
    }

    /// Calls `task` on the model thread with all devices, their fabric and the time; `None` when the thread has ended.
    pub fn with_world<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut World, u64) -> T + Send + 'static,
    ) -> Option<T> {
        self.handle.with_world(task)
    }

    /// How many objects of each kind every HCA holds now; `None` when the model thread has ended.
    pub fn census(&self) -> Option<Vec<Census>> {
        self.with_world(|world, _| world.nodes.iter().map(|node| node.hca.census()).collect())
    }

    /// What happened to packets so far; `None` when the model thread has ended.
    pub fn counters(&self) -> Option<FabricCounters> {
        self.with_world(|world, _| world.fabric.counters())
    }

    /// What was lost so far, by flow; `None` when the model thread has ended.
    pub fn losses(&self) -> Option<LossTable> {
        self.with_world(|world, _| world.fabric.losses().clone())
    }

    /// From now on `faults` happen to packets, as `seed` has it; `None` when the model thread has ended.
    pub fn set_faults(&self, faults: Faults, seed: u64) -> Option<()> {
        self.with_world(move |world, _| {
            world.fabric.reseed(seed);
            world.fabric.set_faults(faults);
        })
    }

    /// Plugs the cable of node `node` in, or pulls it; `None` when the model thread has ended.
    pub fn set_cable(&self, node: usize, plugged: bool) -> Option<()> {
        self.with_world(move |world, _| world.set_cable(node, plugged))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        for listener in &self.listeners {
            // Ends a wait for a connection; an error means that it has ended already.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        drop(self.handle.stop(STOP_LIMIT));
    }
}
