//! What a process has: its HCAs, and where its sockets are. A child process begins with nothing, because the devices and the threads are
//! its parent's.

use crate::node::{LIBRARY, Node};
use capi_device::{Target, at_exit, complain, conf, guard_children};
use rds_nostd::RdsError;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

/// Which HCAs: `DEVICE@ADDRESS`, several with commas between. Without it, those of `dat.conf`.
const DEVICE: &str = "RDS_DEVICE";

/// A process's HCAs and sockets.
#[derive(Default)]
pub(crate) struct Process {
    /// HCAs that are up; they stay so as long as the process.
    open: RwLock<Vec<(Target, &'static Node)>>,
    /// One at a time is brought up, which may take long: nobody waits for it who needs no other.
    opening: Mutex<()>,
    homes: RwLock<HashMap<RawFd, &'static Node>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Whether children forget.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Whether the end of the process closes what is open.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The process ends: what was sent is delivered, and peers hear of the end at once, and not by their retries.
extern "C" fn end() {
    // Another thread may stand still with the list.
    let Some(Ok(open)) = get().map(|process| process.open.try_read()) else { return };
    // A mistake here is none of the program's, which has done what it wanted.
    let _ = catch_unwind(AssertUnwindSafe(|| open.iter().for_each(|(_, node)| node.end())));
}

/// This process's, if any socket was ever made.
pub(crate) fn get() -> Option<&'static Process> {
    // SAFETY: null, or a value that `get_or_make` leaked.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// A child process has none of this.
extern "C" fn forget() {
    PROCESS.store(ptr::null_mut(), Ordering::Release);
}

fn get_or_make() -> &'static Process {
    if let Some(process) = get() {
        return process;
    }
    guard_children(&GUARDED, forget);
    at_exit(&ENDS, end);
    let made = Box::into_raw(Box::<Process>::default());
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

/// The HCA with this address, or the first; it is brought up if it is not.
///
/// # Errors
/// [`RdsError::NoDevice`]: none is named, or it does not open.
fn bring_up(address: Option<IpAddr>) -> Result<Option<&'static Node>, RdsError> {
    let process = get_or_make();
    let is_it = |target: &Target| address.is_none_or(|address| target.address == address);
    let find = || {
        let open = process.open.read().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|(target, _)| is_it(target)).map(|(_, node)| *node)
    };
    if let Some(node) = find() {
        return Ok(Some(node));
    }
    let Some(target) = targets().into_iter().find(is_it) else { return Ok(None) };
    let _opening = process.opening.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have opened it meanwhile.
    if let Some(node) = find() {
        return Ok(Some(node));
    }
    let node = Node::open(&target)?;
    process.open.write().unwrap_or_else(PoisonError::into_inner).push((target, node));
    Ok(Some(node))
}

/// The HCA of new sockets.
///
/// # Errors
/// [`RdsError::NoDevice`]: none is named, or it does not open.
pub(crate) fn first() -> Result<&'static Node, RdsError> {
    bring_up(None)?.ok_or_else(|| {
        complain(LIBRARY, &format!("no HCA: set {DEVICE}=DEVICE@ADDRESS, or name one in dat.conf"));
        RdsError::NoDevice
    })
}

/// The HCA with this address, if one of those that the process may use has it.
///
/// # Errors
/// [`RdsError::NoDevice`]: it does not open.
pub(crate) fn with_address(address: IpAddr) -> Result<Option<&'static Node>, RdsError> {
    bring_up(Some(address.to_canonical()))
}

/// All HCAs that are up.
pub(crate) fn nodes() -> Vec<&'static Node> {
    let Some(process) = get() else { return Vec::new() };
    let open = process.open.read().unwrap_or_else(PoisonError::into_inner);
    open.iter().map(|(_, node)| *node).collect()
}

/// Where a socket is.
pub(crate) fn home(fd: RawFd) -> Option<&'static Node> {
    get()?.homes.read().unwrap_or_else(PoisonError::into_inner).get(&fd).copied()
}

/// A socket is there from now on, or nowhere.
pub(crate) fn settle(fd: RawFd, node: Option<&'static Node>) {
    let mut homes = get_or_make().homes.write().unwrap_or_else(PoisonError::into_inner);
    match node {
        Some(node) => homes.insert(fd, node),
        None => homes.remove(&fd),
    };
}
