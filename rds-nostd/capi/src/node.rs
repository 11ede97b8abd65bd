//! An HCA of a process with its sockets, behind one lock, and the thread that makes progress.

use crate::blocking::{self, Sleeping, Waiters};
use crate::descriptor::Event;
use crate::process;
use capi_device::{
    Choices, Device, Guard, Inherited, Lent, Lock, Parked, Rest, Target, complain, device, start_thread,
};
use dat_nostd::{Adapter, CloseFlags, SoleAccess, Wake, adapter_storage};
use platform_linux::{LinuxBar, LinuxPlatform, Sleeper};
use rds_calls::recovery::{Hca, Health};
use rds_calls::{
    Answer, Descriptor as _, Iovs, Node as _, Socket, SocketOption, Sockets, State, Target as Place,
};
use rds_nostd::wire::MAX_MESSAGE_LEN;
use rds_nostd::{
    Generation, RDS_INFO_RETRANS_MESSAGES, RDS_INFO_SEND_MESSAGES, Rds, RdsConfig, RdsError, RdsStorage,
    SocketHandle,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of the DMA region: frames, queues and the firmware's pages.
const DMA_BYTES: usize = 256 << 20;
const SOCKETS: usize = 1024;
const CONNECTIONS: usize = 64;
const FRAMES: usize = 8192;
const REGIONS: usize = 1024;
const OPERATIONS: usize = 128;
const IOVS: usize = 4096;

adapter_storage! {
    struct Tables {
        bar: LinuxBar, dma_bytes: DMA_BYTES, eps: CONNECTIONS + 8, evds: 16,
        pzs: CONNECTIONS + 2,
        lmrs: CONNECTIONS + REGIONS + IOVS + 16, events: 4096, connections: CONNECTIONS + 64,
    }
}
type Storage = RdsStorage<SOCKETS, CONNECTIONS, FRAMES, REGIONS, OPERATIONS, IOVS, 16, 4096>;

/// Limit for acknowledgements at exit, and for another thread that holds the lock then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which a call checks for the HCA's progress.
const NAP: Duration = Duration::from_micros(20);

/// Name of the library in its messages.
pub(crate) const LIBRARY: &str = "librds";

/// An HCA.
pub(crate) struct Node {
    lock: Lock<Inner>,
    /// The HCA is lost. New sockets use another.
    is_gone: AtomicBool,
    sleeper: Sleeper,
}

/// The state that the lock protects.
pub(crate) struct Inner {
    adapter: Adapter<'static, LinuxPlatform>,
    rds: Rds<'static>,
    sockets: Descriptors,
    whole: Box<[u8]>,
    iovs: Box<Iovs>,
    parked: Parked<()>,
    health: Health,
    inherited: Inherited,
}

/// The sockets of an HCA.
pub(crate) struct Descriptors {
    of: HashMap<RawFd, Socket<Event>>,
    /// The HCA.
    node: &'static Node,
    /// Sockets to close that no longer have a number. Either the program reused the number without
    /// the library, or the HCA has failed.
    to_close: Vec<SocketHandle>,
    /// Numbers that sockets of other HCAs have lost to new sockets here.
    replaced_elsewhere: Vec<(&'static Node, RawFd)>,
}

impl Descriptors {
    fn new(node: &'static Node) -> Self {
        Self { of: HashMap::new(), node, to_close: Vec::new(), replaced_elsewhere: Vec::new() }
    }

    /// Raises descriptors again that should be readable and are not. Another holder, e.g. a child
    /// process, may have read them.
    fn raise_again(&mut self) {
        let raised = || self.of.values().filter(|socket| socket.is_raised());
        let mut fds: Vec<_> =
            raised().map(|socket| PollFd::new(socket.descriptor.own(), PollFlags::IN)).collect();
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        if fds.is_empty() || poll(&mut fds, Some(&none)) == Ok(fds.len()) {
            return;
        }
        let is_taken: Vec<_> = fds.iter().map(|fd| fd.revents().is_empty()).collect();
        let raised = self.of.values_mut().filter(|socket| socket.is_raised());
        for (socket, _) in raised.zip(is_taken).filter(|(_, is_taken)| *is_taken) {
            socket.descriptor.raise();
        }
    }

    /// Adds a socket. Returns the HCA of an earlier socket with the same number.
    fn put(&mut self, socket: Socket<Event>) -> Result<Option<&'static Node>, RdsError> {
        let fd = socket.descriptor.number();
        let before = process::insert(fd, self.node, socket.descriptor.own().as_raw_fd())?;
        self.to_close.extend(self.of.insert(fd, socket).map(|replaced| replaced.handle));
        Ok(before)
    }
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
        let event = Event::new(nonblocking, process::mark)?;
        let fd = event.number();
        let elsewhere = self.put(make(event))?.filter(|before| !std::ptr::eq(*before, self.node));
        self.replaced_elsewhere.extend(elsewhere.map(|node| (node, fd)));
        Ok(fd)
    }

    fn remove(&mut self, fd: RawFd, later: Option<SocketHandle>) {
        process::remove(fd, self.node);
        self.of.remove(&fd);
        self.to_close.extend(later);
    }
}

impl rds_calls::Node for Node {
    type Platform = LinuxPlatform;
    type Descriptor = Event;
    type Sockets = Descriptors;
    type Guard<'n> = Guard<'n, Inner>;

    fn state<'g>(guard: &'g mut Guard<'_, Inner>) -> State<'g, Self> {
        let Inner { adapter, rds, sockets, whole, iovs, health, .. } = &mut **guard;
        let is_gone = *health == Health::Gone;
        let is_failed = *health != Health::Working || adapter.is_dead();
        State { adapter, rds, sockets, whole, iovs, is_gone, is_failed }
    }

    fn open() -> Result<&'static Self, RdsError> {
        process::first()
    }

    fn of(fd: RawFd) -> Option<&'static Self> {
        process::node_of(fd)
    }

    fn home(fd: RawFd, address: IpAddr) -> Result<Option<&'static Self>, RdsError> {
        let Some(old) = process::node_of(fd) else { return Ok(None) };
        if old.has_bound(fd) {
            return Ok(Some(old));
        }
        match process::with_address(address)? {
            Some(new) if !std::ptr::eq(old, new) => {
                old.move_socket(fd, new)?;
                Ok(Some(new))
            }
            _ => Ok(Some(old)),
        }
    }

    fn lock(&self) -> Option<Guard<'_, Inner>> {
        self.lock.lock_urgently()
    }

    /// The thread continues the work, and updates the other sockets.
    fn changed(&self, guard: Guard<'_, Inner>) {
        drop(guard);
        self.sleeper.wake();
    }

    /// Closes an earlier socket with the same number.
    fn opened(&self, mut guard: Guard<'_, Inner>) {
        guard.close_left();
        let elsewhere = std::mem::take(&mut guard.sockets.replaced_elsewhere);
        drop(guard);
        elsewhere.into_iter().for_each(|(node, fd)| node.close_replaced(fd));
    }

    fn closed(&self, guard: Guard<'_, Inner>) {
        guard.parked.wake_all();
        self.changed(guard);
    }

    /// Always fails, because the thread sleeps in the frame of the C call.
    fn sleep<'n>(
        &'n self,
        mut guard: Guard<'n, Inner>,
        socket: SocketHandle,
        now: dat_nostd::Instant,
    ) -> Answer<Guard<'n, Inner>> {
        let waker = guard.parked.enter(()).map_err(|_| RdsError::NoMemory)?;
        let rest = Rest::new(&waker, Wake::Idle, now);
        let node = guard.sockets.node;
        drop(guard);
        Err(blocking::pause(Sleeping::new(node, waker, socket, rest)))
    }

    /// The node's thread makes progress meanwhile.
    fn nap<'n>(&'n self, guard: Guard<'n, Inner>) -> Option<Guard<'n, Inner>> {
        self.changed(guard);
        std::thread::sleep(NAP);
        self.lock()
    }

    fn resumed() -> Option<SocketHandle> {
        blocking::resumed()
    }
}

impl Inner {
    /// Closes sockets without numbers, and wakes the threads that wait for them.
    fn close_left(&mut self) {
        let Self { adapter, rds, sockets, parked, .. } = self;
        if sockets.to_close.is_empty() {
            return;
        }
        // Retry those that cannot be closed yet.
        let is_later = |closed| matches!(closed, Err(RdsError::Again | RdsError::Dat(_)));
        sockets.to_close.retain(|handle| is_later(rds.close(adapter, *handle)));
        parked.wake_all();
    }

    /// Closes connections and HCA.
    fn close(self) {
        let Self { mut adapter, mut rds, inherited, .. } = self;
        drop(inherited);
        while rds.stop(&mut adapter, CloseFlags::Graceful, |_| {}) == Err(RdsError::Again) {
            let now = adapter.now();
            let _ = rds.poll(&mut adapter, now);
            std::thread::sleep(NAP);
        }
        let _ = adapter.close();
    }
}

impl Node {
    /// Brings an HCA up until the process exits. Frees everything if that fails.
    pub(crate) fn open(target: &Target) -> Result<&'static Self, RdsError> {
        // SAFETY: `adapter_storage!` defines structs whose empty form is all zero bytes.
        let (tables, adapter_parts) = unsafe { Lent::zeroed() };
        let (storage, rds_parts) = Lent::new(Box::new(Storage::new()));
        Self::open_with(target, adapter_parts, rds_parts).inspect_err(|_| {
            // SAFETY: adapter and protocol are gone, and they borrowed these.
            unsafe {
                tables.free();
                storage.free();
            }
        })
    }

    /// Opens an HCA with these tables. No reference to them remains on failure.
    fn open_with(
        target: &Target,
        tables: &'static mut Tables,
        storage: &'static mut Storage,
    ) -> Result<&'static Self, RdsError> {
        let choices =
            Choices { library: LIBRARY, dma_bytes: DMA_BYTES, id: 0, service_patience: Duration::ZERO };
        let opened = device::open(target, tables.parts(), &choices).map_err(|_| RdsError::NoDevice)?;
        let Device { mut adapter, sleeper, memory, inherited, .. } = opened;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let config = RdsConfig {
            send_frames: FRAMES / 2,
            // From getrandom(2), as std seeds its hash maps: peers must not predict ports and
            // buckets.
            seed: RandomState::new().hash_one(0),
            isolate_peers: !shares_keys(),
            // SAFETY: C programs offer memory that their threads do not touch while a peer may read
            // or write it.
            rdma_within: Some(unsafe { SoleAccess::promised() }),
            ..RdsConfig::new(Generation::from_wall_clock(since))
        };
        let rds = match Rds::start(&mut adapter, storage.parts(), config) {
            Ok(rds) => rds,
            Err(error) => {
                complain(LIBRARY, &format!("{}: {error}", target.device));
                let _ = adapter.close();
                // SAFETY: the adapter is closed, and the protocol did not start.
                unsafe { memory.free() };
                return Err(error);
            }
        };
        let node: &'static Self =
            Box::leak(Box::new(Self { lock: Lock::default(), is_gone: AtomicBool::new(false), sleeper }));
        let sockets = Descriptors::new(node);
        let whole = vec![0; MAX_MESSAGE_LEN].into_boxed_slice();
        let iovs = Box::default();
        let (parked, health) = (Parked::default(), Health::Working);
        node.lock.open(Inner { adapter, rds, sockets, whole, iovs, parked, health, inherited });
        start_thread(LIBRARY, move || node.run()).map_err(|error| {
            complain(LIBRARY, &format!("{}: no thread: {error}", target.device));
            if let Some(inner) = node.lock().and_then(Guard::take) {
                inner.close();
                // SAFETY: adapter and protocol are gone.
                unsafe { memory.free() };
            }
            RdsError::NoMemory
        })?;
        Ok(node)
    }

    /// Thread of the node: makes progress until the process exits, and recovers the HCA after a
    /// failure.
    fn run(&self) {
        while let Some(mut inner) = self.lock() {
            let rest = Self::state(&mut inner).work();
            inner.close_left();
            let Inner { adapter, rds, health, .. } = &mut *inner;
            let is_gone = self.sleeper.is_gone();
            let complain = |what: &dyn Display| complain(LIBRARY, &what.to_string());
            let look = health.tend(&mut Hca { adapter, rds, is_gone, complain: &complain });
            let dead = adapter.is_dead();
            // Set before threads are woken, because they may request another HCA.
            self.is_gone.store(*health == Health::Gone, Ordering::Release);
            notify(&mut inner);
            drop(inner);
            if let Some(deadline) = rest {
                self.sleeper.sleep(look.map_or(deadline, |look| look.min(deadline)), dead);
            }
        }
    }

    /// Moves a socket, with its options, to the HCA that has the address to bind. Leaves it
    /// unchanged on failure.
    fn move_socket(&self, fd: RawFd, new: &'static Node) -> Result<(), RdsError> {
        let (mut here, mut there) = self.both(new).ok_or(RdsError::NoDevice)?;
        let (here, there) = (&mut *here, &mut *there);
        let old = here.sockets.of.get(&fd).ok_or(RdsError::BadSocket)?;
        let (handle, profile) = (old.handle, old.profile);
        if is_bound(&here.rds, handle) {
            return Err(RdsError::InvalidArgument);
        }
        let moved = there.rds.socket()?;
        let done = there.rds.set_profile(moved, profile).and_then(|()| {
            let (rds, adapter) = (&mut there.rds, &mut there.adapter);
            let mut place = Place { rds, adapter, handle: moved, profile, repeats: false };
            SocketOption::move_all((&here.rds, handle), &mut place)?;
            if let Ok(peer) = here.rds.peer_address(handle) {
                there.rds.connect(moved, peer)?;
            }
            here.rds.close(&mut here.adapter, handle)
        });
        if let Err(error) = done {
            let _ = there.rds.close(&mut there.adapter, moved);
            return Err(error);
        }
        // Cannot fail: the table has an entry for this number already.
        if let Some(socket) = here.sockets.of.remove(&fd) {
            there.sockets.put(socket.moved_to(moved))?;
        }
        // Waiting threads continue on the new HCA.
        here.parked.wake_all();
        Ok(())
    }

    /// Closes a socket of this HCA whose number now belongs to another.
    fn close_replaced(&self, fd: RawFd) {
        let Some(mut inner) = self.lock() else { return };
        // A third socket may have moved here with the number meanwhile.
        if process::node_of(fd).is_none_or(|node| !std::ptr::eq(node, self)) {
            let replaced = inner.sockets.of.remove(&fd);
            inner.sockets.to_close.extend(replaced.map(|replaced| replaced.handle));
            inner.close_left();
        }
        self.changed(inner);
    }

    /// Takes both locks in the order of their addresses, to avoid deadlock.
    fn both<'n>(&'n self, other: &'n Self) -> Option<(Guard<'n, Inner>, Guard<'n, Inner>)> {
        if std::ptr::from_ref(self) < std::ptr::from_ref(other) {
            let first = self.lock()?;
            Some((first, other.lock()?))
        } else {
            let first = other.lock()?;
            Some((self.lock()?, first))
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Returns whether a socket of this HCA is bound. A bound socket cannot move.
    fn has_bound(&self, fd: RawFd) -> bool {
        self.lock().is_some_and(|mut inner| {
            let handle = inner.sockets.get(fd).map(|socket| socket.handle);
            handle.is_some_and(|handle| is_bound(&inner.rds, handle))
        })
    }

    /// Exit: waits up to [`PATIENCE`] for acknowledgements, then closes connections and HCA.
    pub(crate) fn end(&self) {
        const UNSENT: [u32; 2] = [RDS_INFO_SEND_MESSAGES, RDS_INFO_RETRANS_MESSAGES];
        let end = Instant::now() + PATIENCE;
        while let Some(mut inner) = self.lock.lock_within(PATIENCE) {
            let Inner { adapter, rds, health, .. } = &mut *inner;
            let mut is_none = |list| rds.info(adapter, list, &mut []).is_ok_and(|all| all.len == 0);
            let quiet = UNSENT.into_iter().all(&mut is_none) || *health == Health::Gone;
            if quiet || Instant::now() >= end {
                // Woken threads find the lock closed.
                inner.parked.wake_all();
                // The process exit frees the tables.
                if let Some(inner) = inner.take() {
                    inner.close();
                }
                return;
            }
            drop(inner);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns a descriptor that becomes readable when something may have changed.
    pub(crate) fn waker(&self) -> Result<Arc<OwnedFd>, RdsError> {
        let mut inner = self.lock().ok_or(RdsError::BadSocket)?;
        inner.parked.enter(()).map_err(|_| RdsError::NoMemory)
    }
}

/// Returns whether one protection zone serves all peers. `RDS_GET_MR` works only then, because it
/// names no peer.
fn shares_keys() -> bool {
    std::env::var_os("RDS_SHARED_KEYS").is_some_and(|value| value == "1")
}

impl Waiters for Node {
    fn leave(&self, waker: Arc<OwnedFd>) {
        if let Some(mut inner) = self.lock() {
            inner.parked.leave(waker);
        }
    }
}

/// Returns whether a socket has an address.
fn is_bound(rds: &Rds<'_>, handle: SocketHandle) -> bool {
    rds.local_address(handle).is_ok_and(|address| address.port() != 0)
}

/// Updates all descriptors and wakes all waiting threads.
fn notify(inner: &mut Inner) {
    let Inner { rds, sockets, parked, health, .. } = inner;
    for socket in sockets.of.values_mut() {
        socket.look(rds, *health == Health::Gone);
    }
    sockets.raise_again();
    parked.wake_all();
}
