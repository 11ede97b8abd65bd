//! The node of a process: its HCA and its sockets, behind one lock, and the thread that moves them on.

use crate::socket::Socket;
use capi_device::{
    Choices, Device, Guard, Lock, Parked, Target, complain, conf, device, guard_children, start_thread,
};
use dat_nostd::{Adapter, Instant, Platform, adapter_storage};
use platform_linux::{LinuxBar, LinuxPlatform, Sleeper};
use rds_nostd::{Generation, Rds, RdsConfig, RdsError, RdsStorage};
use std::collections::HashMap;
use std::convert::Infallible;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of the DMA region: frames, queues and the firmware's pages.
const DMA_BYTES: usize = 256 << 20;
const SOCKETS: usize = 1024;
const CONNECTIONS: usize = 64;
const FRAMES: usize = 8192;
const REGIONS: usize = 1024;
const OPERATIONS: usize = 128;
const PIECES: usize = 4096;

type Tables = adapter_storage! {
    bar: LinuxBar, dma_bytes: DMA_BYTES, eps: CONNECTIONS + 8, evds: 16, lmrs: REGIONS + PIECES + 16,
    events: 4096, connections: CONNECTIONS + 64,
};
type Storage = RdsStorage<SOCKETS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS, PIECES>;

/// Which HCA: `DEVICE@ADDRESS`. Without it, the first line of `dat.conf` that names one.
const DEVICE: &str = "RDS_DEVICE";
/// Of the library's messages to people.
const LIBRARY: &str = "librds";

/// The node.
pub(crate) struct Node {
    lock: Lock<Inner>,
    pub(crate) sleeper: Sleeper,
}

/// What the lock is for.
pub(crate) struct Inner {
    pub(crate) adapter: Adapter<'static, LinuxPlatform>,
    pub(crate) rds: Rds<'static>,
    pub(crate) sockets: HashMap<RawFd, Socket>,
    pub(crate) parked: Parked<()>,
}

/// The node, once it is open. It stays as long as the process.
static NODE: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());
/// Whether children forget.
static GUARDED: AtomicBool = AtomicBool::new(false);
/// Who opens it.
static OPENING: AtomicPtr<Mutex<()>> = AtomicPtr::new(ptr::null_mut());

/// The node, if any socket was ever made.
pub(crate) fn get() -> Option<&'static Node> {
    // SAFETY: null, or a node that `open` leaked.
    unsafe { NODE.load(Ordering::Acquire).as_ref() }
}

/// A child process begins with nothing: the device and the thread are its parent's.
extern "C" fn forget() {
    NODE.store(ptr::null_mut(), Ordering::Release);
    OPENING.store(ptr::null_mut(), Ordering::Release);
}

fn opening() -> &'static Mutex<()> {
    let made = Box::into_raw(Box::new(Mutex::new(())));
    let stored = OPENING.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    let lock = match stored {
        Ok(_) => made,
        Err(other) => {
            // SAFETY: nobody has seen this one.
            drop(unsafe { Box::from_raw(made) });
            other
        }
    };
    // SAFETY: what was stored there was leaked for good.
    unsafe { &*lock }
}

/// The node, which is opened if it is not.
///
/// # Errors
/// [`RdsError::NoDevice`]: none is named, or it does not open.
pub(crate) fn open() -> Result<&'static Node, RdsError> {
    if let Some(node) = get() {
        return Ok(node);
    }
    guard_children(&GUARDED, forget);
    let _held = opening().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = get() {
        return Ok(node);
    }
    let target = target().ok_or_else(|| {
        complain(LIBRARY, &format!("no HCA: set {DEVICE}=DEVICE@ADDRESS, or name one in dat.conf"));
        RdsError::NoDevice
    })?;
    let node: &'static Node = Box::leak(Box::new(Node::open(&target)?));
    start_thread(LIBRARY, move || node.run()).map_err(|_| RdsError::NoMemory)?;
    NODE.store(ptr::from_ref(node).cast_mut(), Ordering::Release);
    Ok(node)
}

fn target() -> Option<Target> {
    match std::env::var(DEVICE) {
        Ok(name) => Target::from_name(&name),
        Err(_) => conf::read(LIBRARY).into_iter().find_map(|entry| entry.target),
    }
}

impl Node {
    fn open(target: &Target) -> Result<Self, RdsError> {
        let tables: &'static mut Tables = Box::leak(Box::new(Tables::new()));
        let storage: &'static mut Storage = Box::leak(Box::new(Storage::new()));
        let choices =
            Choices { library: LIBRARY, dma_bytes: DMA_BYTES, id: 0, service_patience: Duration::ZERO };
        let opened = device::open(target, tables.parts(), &choices).map_err(|_| RdsError::NoDevice)?;
        let Device { mut adapter, sleeper, .. } = opened;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let config = RdsConfig {
            send_frames: FRAMES / 2,
            seed: since.as_nanos() as u64,
            // RDS_GET_MR says nothing of who the memory is for.
            isolate_peers: false,
            ..RdsConfig::new(Generation::from_wall_clock(since))
        };
        let rds = Rds::start(&mut adapter, storage.parts(), config).inspect_err(|error| {
            complain(LIBRARY, &format!("{}: {error}", target.device));
        })?;
        let inner = Inner { adapter, rds, sockets: HashMap::new(), parked: Parked::default() };
        Ok(Self { lock: Lock::new(inner), sleeper })
    }

    pub(crate) fn lock(&self) -> Guard<'_, Inner> {
        self.lock.lock_urgently()
    }

    /// Moves everything on for good.
    fn run(&self) -> Infallible {
        loop {
            let (rest, dead) = {
                let mut inner = self.lock();
                (inner.work(), inner.adapter.is_dead())
            };
            if let Some(deadline) = rest {
                self.sleeper.sleep(deadline, dead);
            }
        }
    }
}

impl Inner {
    /// Moves everything on; until when the thread may sleep then, if it may.
    fn work(&mut self) -> Option<Instant> {
        // Takes the interrupts and does not wait.
        self.adapter.platform().idle(Instant::ORIGIN);
        let now = self.adapter.platform().now();
        let _ = self.adapter.poll(now);
        let wake = self.rds.poll(&mut self.adapter, now);
        let rest = self.adapter.rest(now);
        self.tell();
        let rest = rest.filter(|_| !wake.is_due(now))?;
        Some(wake.deadline(now).map_or(rest, |deadline| rest.min(deadline)))
    }

    /// Something may have changed: descriptors say so, and those who wait look again.
    pub(crate) fn tell(&mut self) {
        let Self { rds, sockets, parked, .. } = self;
        for socket in sockets.values_mut() {
            socket.look(rds);
        }
        parked.wake_all();
    }

    /// One socket may have changed.
    pub(crate) fn look(&mut self, fd: RawFd) {
        if let Some(socket) = self.sockets.get_mut(&fd) {
            socket.look(&mut self.rds);
        }
    }

    /// The socket of a descriptor.
    ///
    /// # Errors
    /// [`RdsError::BadSocket`].
    pub(crate) fn socket(&mut self, fd: RawFd) -> Result<&mut Socket, RdsError> {
        self.sockets.get_mut(&fd).ok_or(RdsError::BadSocket)
    }
}
