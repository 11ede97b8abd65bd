//! Per-process state: the HCAs, and the HCA of each socket. A child process starts with empty
//! state, because devices and threads belong to its parent.

use crate::descriptor::is_same;
use crate::fd_table::{FdTable, Mark};
use crate::node::{LIBRARY, Node};
use capi_device::{Target, at_exit, close_inherited, complain, conf, guard_children};
use rds_nostd::RdsError;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Environment variable with the HCAs: `DEVICE@ADDRESS`, with commas between several. Without it
/// `dat.conf` names them.
const DEVICE: &str = "RDS_DEVICE";

/// The HCAs and sockets of a process.
pub(crate) struct Process {
    /// The process ID. Differs from `getpid` between `vfork` and `exec`, when a child shares this
    /// memory.
    id: u32,
    hcas: RwLock<Hcas>,
    /// True while an HCA is up or may come up, so that some descriptors belong to the library.
    /// Signal handlers read it.
    is_up: AtomicBool,
    /// Held while an HCA is brought up, which may take long. Calls on other HCAs do not need it.
    opening: Mutex<()>,
    fd_table: FdTable<Node>,
}

/// The HCAs of a process.
#[derive(Default)]
struct Hcas {
    /// HCAs that are up. They remain so until the process exits.
    up: Vec<(Target, &'static Node)>,
    /// The HCA of new sockets.
    chosen: Option<&'static Node>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// State of the process from which this one was forked.
static PARENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// True once the fork handlers are registered.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// True once the exit handler is registered.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Exit handler: delivers pending messages and closes the connections, so that peers need not time
/// out.
extern "C" fn end() {
    // Another thread may be stopped with the list locked.
    let Some(Ok(hcas)) = get().map(|process| process.hcas.try_read()) else { return };
    // Do not let a panic here fail a program that has finished its work.
    let _ = catch_unwind(AssertUnwindSafe(|| hcas.up.iter().for_each(|(_, node)| node.end())));
}

/// Returns the state of this process, if any socket was ever made.
pub(crate) fn get() -> Option<&'static Process> {
    // SAFETY: null, or a value that `get_or_make` leaked.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Fork handler: the child starts with empty state, and stores the parent's to recognize its
/// descriptors.
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
        fd_table: FdTable::default(),
    }));
    let process = match PROCESS.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(other) => {
            // SAFETY: another thread was faster, and no reference to this value exists.
            drop(unsafe { Box::from_raw(made) });
            other
        }
    };
    // SAFETY: `PROCESS` points to a leaked value, which is never freed.
    unsafe { &*process }
}

/// Returns the HCAs that the process may use, in their order.
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

    /// Returns the HCA of new sockets, unless it is gone.
    fn chosen(&self) -> Option<&'static Node> {
        self.hcas().chosen.filter(|node| !node.is_gone())
    }

    fn with_address(&self, address: IpAddr) -> Option<&'static Node> {
        let hcas = self.hcas();
        let mut up = hcas.up.iter();
        up.find(|(target, _)| target.address == address).map(|(_, node)| *node)
    }

    /// Returns an HCA, and brings it up if necessary. The caller holds `opening`.
    fn bring_up(&self, target: Target) -> Result<&'static Node, RdsError> {
        let is_it = |(other, _): &&(Target, _)| other.device == target.device;
        if let Some((_, node)) = self.hcas().up.iter().find(is_it) {
            return Ok(node);
        }
        // Set before the HCA has a descriptor.
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

/// Returns the HCA of new sockets: the first of the process's HCAs that opens and is not gone. It
/// changes only when it is lost. If all HCAs are gone, returns one of them.
///
/// # Errors
/// [`RdsError::NoDevice`]: no HCA is named, or none opens.
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

/// Returns the HCA with this address, or `None` if the process may use none that has it.
///
/// # Errors
/// [`RdsError::NoDevice`]: it does not open.
pub(crate) fn with_address(address: IpAddr) -> Result<Option<&'static Node>, RdsError> {
    let (process, address) = (get_or_make(), address.to_canonical());
    // A lost HCA retains its address.
    if let Some(node) = process.with_address(address) {
        return Ok(Some(node));
    }
    let Some(target) = targets().into_iter().find(|target| target.address == address) else {
        return Ok(None);
    };
    let _opening = process.opening.lock().unwrap_or_else(PoisonError::into_inner);
    process.bring_up(target).map(Some)
}

/// Returns all HCAs that are up.
pub(crate) fn nodes() -> Vec<&'static Node> {
    let Some(process) = get() else { return Vec::new() };
    process.hcas().up.iter().map(|(_, node)| *node).collect()
}

/// Returns the HCA of a socket.
pub(crate) fn node_of(fd: RawFd) -> Option<&'static Node> {
    Some(get()?.fd_table.get(fd)?.0)
}

/// Records a new socket, with the library's own descriptor of it. Returns the HCA of an earlier
/// socket with the same number, which the program closed without the library.
///
/// # Errors
/// [`RdsError::TooManySockets`]: the number is beyond the table.
pub(crate) fn insert(fd: RawFd, node: &'static Node, own: RawFd) -> Result<Option<&'static Node>, RdsError> {
    get_or_make().fd_table.insert(fd, node, own).ok_or(RdsError::TooManySockets)
}

/// Marks a number as the library's own.
pub(crate) fn mark(own: RawFd) -> Option<Mark> {
    get_or_make().fd_table.mark(own)
}

/// Removes a socket.
pub(crate) fn remove(fd: RawFd, node: &'static Node) {
    if let Some(process) = get() {
        process.fd_table.remove(fd, node);
    }
}

/// Owner of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The system.
    System,
    /// A socket.
    Socket,
    /// A socket of the parent process.
    Parent,
    /// The library, for a socket that has another number for the program.
    Library,
}

/// Returns the owner of a descriptor. Async-signal-safe.
pub(crate) fn whose(fd: RawFd) -> Whose {
    // SAFETY: null, or values that `get_or_make` leaked.
    let parents = || unsafe { PARENT.load(Ordering::Acquire).as_ref() };
    let has = |process: &&Process| process.fd_table.get(fd).is_some_and(|(_, own)| is_same(fd, own));
    match get().filter(has) {
        Some(process) if process.id == std::process::id() => Whose::Socket,
        Some(_) => Whose::Parent,
        None if parents().filter(has).is_some() => Whose::Parent,
        // A child does not care for the own descriptors of its parent's library.
        None if get()
            .is_some_and(|process| process.fd_table.is_own(fd) && process.id == std::process::id()) =>
        {
            Whose::Library
        }
        None => Whose::System,
    }
}

/// Returns whether an HCA of this process is up or coming up, so that descriptors may be the
/// library's. Async-signal-safe.
pub(crate) fn is_up() -> bool {
    get().is_some_and(|process| process.id == std::process::id() && process.is_up.load(Ordering::Acquire))
}
