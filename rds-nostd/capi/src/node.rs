//! An HCA of a process with its sockets, behind one lock, and the thread that moves them on.

use crate::descriptor::Event;
use crate::process;
use capi_device::{Choices, Device, Guard, Lock, Parked, Target, complain, device, sleep, start_thread};
use dat_nostd::{Adapter, Wake, adapter_storage};
use platform_linux::{LinuxBar, LinuxPlatform, Sleeper};
use rds_calls::{Answer, Node as _, Pieces, Socket, Sockets, State};
use rds_nostd::wire::MAX_MESSAGE_LEN;
use rds_nostd::{
    Generation, RDS_INFO_RETRANS_MESSAGES, RDS_INFO_SEND_MESSAGES, Rds, RdsConfig, RdsError, RdsStorage,
};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// How long the end of the process waits for acknowledgements, and for a thread that has the lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of the library's messages to people.
pub(crate) const LIBRARY: &str = "librds";

/// An HCA.
pub(crate) struct Node {
    lock: Lock<Inner>,
    sleeper: Sleeper,
}

/// What the lock is for.
pub(crate) struct Inner {
    adapter: Adapter<'static, LinuxPlatform>,
    rds: Rds<'static>,
    sockets: Descriptors,
    whole: &'static mut [u8],
    pieces: Box<Pieces>,
    parked: Parked<()>,
}

/// The sockets of an HCA.
#[derive(Default)]
pub(crate) struct Descriptors {
    of: HashMap<RawFd, Socket<Event>>,
    /// Where new ones are; None before the HCA is up.
    node: Option<&'static Node>,
}

impl Sockets<Event> for Descriptors {
    fn get(&mut self, fd: RawFd) -> Option<&mut Socket<Event>> {
        self.of.get_mut(&fd)
    }

    fn add(
        &mut self,
        make: impl FnOnce(Event) -> Socket<Event>,
        nonblocking: bool,
    ) -> Result<RawFd, RdsError> {
        let event = Event::new(nonblocking)?;
        let fd = event.number();
        self.of.insert(fd, make(event));
        process::settle(fd, self.node);
        Ok(fd)
    }

    fn remove(&mut self, fd: RawFd) {
        process::settle(fd, None);
        self.of.remove(&fd);
    }
}

impl rds_calls::Node for Node {
    type Platform = LinuxPlatform;
    type Descriptor = Event;
    type Sockets = Descriptors;
    type Guard<'n> = Guard<'n, Inner>;

    fn state<'g>(guard: &'g mut Guard<'_, Inner>) -> State<'g, Self> {
        let Inner { adapter, rds, sockets, whole, pieces, .. } = &mut **guard;
        State { adapter, rds, sockets, whole, pieces }
    }

    fn open() -> Result<&'static Self, RdsError> {
        process::first()
    }

    fn of(fd: RawFd) -> Option<&'static Self> {
        process::home(fd)
    }

    fn home(fd: RawFd, address: IpAddr) -> Result<Option<&'static Self>, RdsError> {
        match (process::home(fd), process::with_address(address)?) {
            (Some(old), Some(new)) if !std::ptr::eq(old, new) => {
                old.hand_over(fd, new)?;
                Ok(Some(new))
            }
            (old, _) => Ok(old),
        }
    }

    fn lock(&self) -> Option<Guard<'_, Inner>> {
        self.lock.lock_urgently()
    }

    /// The thread carries on what was begun, and looks at the other sockets.
    fn changed(&self, guard: Guard<'_, Inner>) {
        drop(guard);
        self.sleeper.wake();
    }

    fn closed(&self, guard: Guard<'_, Inner>) {
        guard.parked.wake_all();
        self.changed(guard);
    }

    fn sleep<'n>(
        &'n self,
        mut guard: Guard<'n, Inner>,
        now: dat_nostd::Instant,
    ) -> Answer<(Guard<'n, Inner>, bool)> {
        let waker = guard.parked.enter(()).map_err(|_| RdsError::NoMemory)?;
        self.changed(guard);
        let interrupted = sleep(&waker, Wake::Idle, now);
        let mut guard = self.lock().ok_or(RdsError::BadSocket)?;
        guard.parked.leave(waker);
        Ok((guard, interrupted))
    }
}

impl Node {
    /// Brings an HCA up, which then stays so as long as the process.
    pub(crate) fn open(target: &Target) -> Result<&'static Self, RdsError> {
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
        let node: &'static Self = Box::leak(Box::new(Self { lock: Lock::default(), sleeper }));
        let sockets = Descriptors { of: HashMap::new(), node: Some(node) };
        let whole = vec![0; MAX_MESSAGE_LEN].leak();
        let pieces = Box::default();
        node.lock.open(Inner { adapter, rds, sockets, whole, pieces, parked: Parked::default() });
        start_thread(LIBRARY, move || node.run()).map_err(|_| RdsError::NoMemory)?;
        Ok(node)
    }

    /// Moves everything on, as long as the process.
    fn run(&self) {
        while let Some(mut inner) = self.lock() {
            let (rest, dead) = (Self::state(&mut inner).work(), inner.adapter.is_dead());
            tell(&mut inner);
            drop(inner);
            if let Some(deadline) = rest {
                self.sleeper.sleep(deadline, dead);
            }
        }
    }

    /// Another HCA has the address that a socket of this one is to be bound to: it goes there, with what was set on it.
    fn hand_over(&self, fd: RawFd, new: &'static Node) -> Result<(), RdsError> {
        let (handle, options) = {
            let mut inner = self.lock().ok_or(RdsError::BadSocket)?;
            let handle = Self::state(&mut inner).socket(fd)?.handle;
            (handle, Options::of(&inner.rds, handle)?)
        };
        let moved = {
            let mut inner = new.lock().ok_or(RdsError::NoDevice)?;
            let Inner { adapter, rds, .. } = &mut *inner;
            let moved = rds.socket()?;
            if let Err(error) = options.set(rds, adapter, moved) {
                let _ = rds.close(adapter, moved);
                return Err(error);
            }
            moved
        };
        let socket = {
            let mut inner = self.lock().ok_or(RdsError::BadSocket)?;
            let Inner { adapter, rds, sockets, .. } = &mut *inner;
            let socket = sockets.of.remove(&fd).ok_or(RdsError::BadSocket)?;
            rds.close(adapter, handle)?;
            socket
        };
        let mut inner = new.lock().ok_or(RdsError::NoDevice)?;
        inner.rds.set_congestion_monitor(moved, socket.monitors_congestion)?;
        let monitors_congestion = socket.monitors_congestion;
        let mut moved = Socket::new(moved, socket.profile, socket.descriptor);
        moved.monitors_congestion = monitors_congestion;
        inner.sockets.of.insert(fd, moved);
        process::settle(fd, Some(new));
        Ok(())
    }

    /// The process ends: once peers have acknowledged what was sent, or [`PATIENCE`] is over, connections end and the HCA is given back.
    pub(crate) fn end(&self) {
        const UNSENT: [u32; 2] = [RDS_INFO_SEND_MESSAGES, RDS_INFO_RETRANS_MESSAGES];
        let end = Instant::now() + PATIENCE;
        while let Some(mut inner) = self.lock.lock_within(PATIENCE) {
            let Inner { adapter, rds, .. } = &mut *inner;
            let mut is_none = |list| rds.info(adapter, list, &mut []).is_ok_and(|all| all.len == 0);
            let quiet = UNSENT.into_iter().all(&mut is_none) || adapter.is_dead();
            if quiet || Instant::now() >= end {
                if let Some(Inner { mut adapter, rds, .. }) = inner.take() {
                    let _ = rds.stop(&mut adapter);
                    let _ = adapter.close();
                }
                return;
            }
            drop(inner);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Who sleeps in `poll` is woken by this when something may have changed.
    pub(crate) fn waker(&self) -> Result<Arc<OwnedFd>, RdsError> {
        let mut inner = self.lock().ok_or(RdsError::BadSocket)?;
        inner.parked.enter(()).map_err(|_| RdsError::NoMemory)
    }

    /// And does not sleep any more.
    pub(crate) fn leave(&self, waker: Arc<OwnedFd>) {
        if let Some(mut inner) = self.lock() {
            inner.parked.leave(waker);
        }
    }
}

/// What a program may have set on a socket before it is bound.
struct Options {
    profile: rds_nostd::Profile,
    sndbuf: usize,
    rcvbuf: usize,
    errors: bool,
    tos: u8,
    peer: Option<std::net::SocketAddr>,
}

impl Options {
    fn of(rds: &Rds<'_>, handle: rds_nostd::SocketHandle) -> Result<Self, RdsError> {
        Ok(Self {
            profile: rds.profile(handle)?,
            sndbuf: rds.send_buffer(handle)?,
            rcvbuf: rds.receive_buffer(handle)?,
            errors: rds.receive_errors(handle)?,
            tos: rds.type_of_service(handle)?,
            peer: rds.peer_address(handle).ok(),
        })
    }

    fn set(
        &self,
        rds: &mut Rds<'_>,
        adapter: &mut Adapter<'_, LinuxPlatform>,
        handle: rds_nostd::SocketHandle,
    ) -> Result<(), RdsError> {
        rds.set_profile(handle, self.profile)?;
        rds.set_send_buffer(handle, self.sndbuf)?;
        rds.set_receive_buffer(adapter, handle, self.rcvbuf)?;
        rds.set_receive_errors(handle, self.errors)?;
        if self.tos != 0 {
            rds.set_type_of_service(handle, self.tos)?;
        }
        match self.peer {
            Some(peer) => rds.connect(handle, peer),
            None => Ok(()),
        }
    }
}

/// Something may have changed: descriptors say so, and those who wait look again.
fn tell(inner: &mut Inner) {
    let Inner { rds, sockets, parked, .. } = inner;
    for socket in sockets.of.values_mut() {
        socket.look(rds);
    }
    parked.wake_all();
}
