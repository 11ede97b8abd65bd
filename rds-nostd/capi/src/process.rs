//! What a process has: its HCAs, and where its sockets are. A child process begins with nothing, because the devices and the threads are
//! its parent's.

use crate::descriptor::is_same;
use crate::homes::{Homes, Mark};
use crate::node::{LIBRARY, Node};
use capi_device::{Target, at_exit, close_inherited, complain, conf, guard_children};
use rds_nostd::RdsError;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Which HCAs: `DEVICE@ADDRESS`, several with commas between. Without it, those of `dat.conf`.
const DEVICE: &str = "RDS_DEVICE";

/// A process's HCAs and sockets.
pub(crate) struct Process {
    /// The process's number: between `vfork` and `exec` another one sees this memory.
    id: u32,
    hcas: RwLock<Hcas>,
    /// Whether some descriptors are those of an HCA that is up, or may come up. Handlers of signals may ask.
    is_up: AtomicBool,
    /// One at a time is brought up, which may take long: nobody waits for it who needs no other.
    opening: Mutex<()>,
    homes: Homes<Node>,
}

/// A process's HCAs.
#[derive(Default)]
struct Hcas {
    /// Those that are up; they stay so as long as the process.
    up: Vec<(Target, &'static Node)>,
    /// That of new sockets.
    chosen: Option<&'static Node>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// That of the process which this one was forked from.
static PARENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Whether children forget.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Whether the end of the process closes what is open.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The process ends: what was sent is delivered, and peers hear of the end at once, and not by their retries.
extern "C" fn end() {
    // Another thread may stand still with the list.
    let Some(Ok(hcas)) = get().map(|process| process.hcas.try_read()) else { return };
    // A mistake here is none of the program's, which has done what it wanted.
    let _ = catch_unwind(AssertUnwindSafe(|| hcas.up.iter().for_each(|(_, node)| node.end())));
}

/// This process's, if any socket was ever made.
pub(crate) fn get() -> Option<&'static Process> {
    // SAFETY: null, or a value that `get_or_make` leaked.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// A child process has none of this, but for its parent's descriptors.
extern "C" fn forget() {
    let parents = PROCESS.swap(ptr::null_mut(), Ordering::AcqRel);
    if !parents.is_null() {
        PARENT.store(parents, Ordering::Release);
    }
    close_inherited();
}

fn get_or_make() -> &'static Process {
    if let Some(process) = get() {
        return process;
    }
    guard_children(&GUARDED, forget);
    at_exit(&ENDS, end);
    let made = Box::into_raw(Box::new(Process {
        id: std::process::id(),
        hcas: RwLock::default(),
        is_up: AtomicBool::new(false),
        opening: Mutex::default(),
        homes: Homes::default(),
    }));
    let process = match PROCESS.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(other) => {
            // SAFETY: another thread was faster, and nobody has seen this one.
            drop(unsafe { Box::from_raw(made) });
            other
        }
    };
    // SAFETY: what was stored there was leaked for good.
    unsafe { &*process }
}

/// The HCAs that the process may use, in their order.
fn targets() -> Vec<Target> {
    let mut targets: Vec<Target> = match std::env::var(DEVICE) {
        Ok(names) => names.split(',').filter_map(Target::from_name).collect(),
        Err(_) => conf::read(LIBRARY).into_iter().filter_map(|entry| entry.target).collect(),
    };
    let mut seen = Vec::new();
    targets.retain(|target| {
        let is_new = !seen.contains(&target.device);
        seen.push(target.device.clone());
        is_new
    });
    targets
}

impl Process {
    fn hcas(&self) -> RwLockReadGuard<'_, Hcas> {
        self.hcas.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The HCA of new sockets, unless it is gone.
    fn chosen(&self) -> Option<&'static Node> {
        self.hcas().chosen.filter(|node| !node.is_gone())
    }

    fn with_address(&self, address: IpAddr) -> Option<&'static Node> {
        let hcas = self.hcas();
        let mut up = hcas.up.iter();
        up.find(|(target, _)| target.address == address).map(|(_, node)| *node)
    }

    /// An HCA, which is brought up if it is not. One at a time: `opening` is locked.
    fn bring_up(&self, target: Target) -> Result<&'static Node, RdsError> {
        let is_it = |(other, _): &&(Target, _)| other.device == target.device;
        if let Some((_, node)) = self.hcas().up.iter().find(is_it) {
            return Ok(node);
        }
        // Before it has a descriptor.
        self.is_up.store(true, Ordering::Release);
        let opened = Node::open(&target);
        let mut hcas = self.hcas.write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(node) = opened {
            hcas.up.push((target, node));
        }
        self.is_up.store(!hcas.up.is_empty(), Ordering::Release);
        opened
    }
}

/// The HCA of new sockets: the first of those that the process may use that comes up and is not gone, as long as that one is not; of none
/// but such that are gone, one of them.
///
/// # Errors
/// [`RdsError::NoDevice`]: none is named, or does not open.
pub(crate) fn first() -> Result<&'static Node, RdsError> {
    let process = get_or_make();
    if let Some(node) = process.chosen() {
        return Ok(node);
    }
    let _opening = process.opening.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have chosen meanwhile.
    if let Some(node) = process.chosen() {
        return Ok(node);
    }
    let mut none = None;
    for target in targets() {
        match process.bring_up(target) {
            Ok(node) if !node.is_gone() => {
                process.hcas.write().unwrap_or_else(PoisonError::into_inner).chosen = Some(node);
                return Ok(node);
            }
            other => none = none.or(Some(other)),
        }
    }
    none.unwrap_or_else(|| {
        complain(LIBRARY, &format!("no HCA: set {DEVICE}=DEVICE@ADDRESS, or name one in dat.conf"));
        Err(RdsError::NoDevice)
    })
}

/// The HCA with this address, if one of those that the process may use has it.
///
/// # Errors
/// [`RdsError::NoDevice`]: it does not open.
pub(crate) fn with_address(address: IpAddr) -> Result<Option<&'static Node>, RdsError> {
    let (process, address) = (get_or_make(), address.to_canonical());
    // What is gone still has its address.
    if let Some(node) = process.with_address(address) {
        return Ok(Some(node));
    }
    let Some(target) = targets().into_iter().find(|target| target.address == address) else {
        return Ok(None);
    };
    let _opening = process.opening.lock().unwrap_or_else(PoisonError::into_inner);
    process.bring_up(target).map(Some)
}

/// All HCAs that are up.
pub(crate) fn nodes() -> Vec<&'static Node> {
    let Some(process) = get() else { return Vec::new() };
    process.hcas().up.iter().map(|(_, node)| *node).collect()
}

/// Where a socket is.
pub(crate) fn home(fd: RawFd) -> Option<&'static Node> {
    Some(get()?.homes.get(fd)?.0)
}

/// A socket is there from now on, and its descriptor has another number, of the library's own. Where the one was that had its number before:
/// the program took that from it behind the library's back.
///
/// # Errors
/// [`RdsError::TooManySockets`]: a number beyond all that are looked after.
pub(crate) fn settle(fd: RawFd, node: &'static Node, own: RawFd) -> Result<Option<&'static Node>, RdsError> {
    get_or_make().homes.settle(fd, node, own).ok_or(RdsError::TooManySockets)
}

/// Marks a number as the library's own.
pub(crate) fn mark(own: RawFd) -> Option<Mark> {
    get_or_make().homes.mark(own)
}

/// A socket is there no more.
pub(crate) fn leave(fd: RawFd, node: &'static Node) {
    if let Some(process) = get() {
        process.homes.leave(fd, node);
    }
}

/// Whose a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The system's.
    System,
    /// A socket's.
    Socket,
    /// That of a socket of the parent process's.
    Parent,
    /// The library's own, of a socket which has another one for the program.
    Library,
}

/// Whose a descriptor is. Handlers of signals may ask.
pub(crate) fn whose(fd: RawFd) -> Whose {
    // SAFETY: null, or values that `get_or_make` leaked.
    let parents = || unsafe { PARENT.load(Ordering::Acquire).as_ref() };
    let has = |process: &&Process| process.homes.get(fd).is_some_and(|(_, own)| is_same(fd, own));
    match get().filter(has) {
        Some(process) if process.id == std::process::id() => Whose::Socket,
        Some(_) => Whose::Parent,
        None if parents().filter(has).is_some() => Whose::Parent,
        // Those of its parent's are no concern of a child's.
        None if get().is_some_and(|process| process.homes.is_own(fd) && process.id == std::process::id()) => {
            Whose::Library
        }
        None => Whose::System,
    }
}

/// Whether an HCA is up in this process, or about to be, whose descriptors are the library's. Handlers of signals may ask.
pub(crate) fn is_up() -> bool {
    get().is_some_and(|process| process.id == std::process::id() && process.is_up.load(Ordering::Acquire))
}
