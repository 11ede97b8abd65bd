//! The firmware's handles: protocols that the program installed.

use r_efi::efi::{Guid, Handle, InterfaceType, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;

type Key = (usize, [u8; 16]);

thread_local! {
    static INTERFACES: RefCell<BTreeMap<Key, usize>> = const { RefCell::new(BTreeMap::new()) };
    static CHILDREN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Installs nothing, and forgets what was installed before.
pub fn clear() {
    INTERFACES.with_borrow_mut(BTreeMap::clear);
    CHILDREN.with_borrow_mut(Vec::clear);
}

/// Adds a protocol of the firmware's own.
pub fn add(handle: Handle, guid: Guid, protocol: *const c_void) {
    let key = (handle as usize, *guid.as_bytes());
    INTERFACES.with_borrow_mut(|all| all.insert(key, protocol.expose_provenance()));
}

pub fn remove(handle: Handle, guid: &Guid) {
    INTERFACES.with_borrow_mut(|all| all.remove(&(handle as usize, *guid.as_bytes())));
}

/// The protocol of a handle.
pub fn find(handle: Handle, guid: &Guid) -> Option<*mut c_void> {
    let key = (handle as usize, *guid.as_bytes());
    let found = INTERFACES.with_borrow(|all| all.get(&key).copied());
    found.map(std::ptr::with_exposed_provenance_mut)
}

/// Handles with this protocol.
pub fn with_protocol(guid: &Guid) -> Vec<Handle> {
    let matching = |(handle, found): &Key| (found == guid.as_bytes()).then_some(*handle as Handle);
    INTERFACES.with_borrow(|all| all.keys().filter_map(matching).collect())
}

/// Child controllers of the function.
pub fn children() -> Vec<usize> {
    CHILDREN.with_borrow(Clone::clone)
}

pub fn adopt(child: Handle) {
    CHILDREN.with_borrow_mut(|children| children.push(child as usize));
}

/// Returns whether it was one.
pub fn orphan(child: Handle) -> bool {
    CHILDREN.with_borrow_mut(|children| {
        let place = children.iter().position(|known| *known == child as usize);
        place.map(|place| children.remove(place)).is_some()
    })
}

pub unsafe extern "efiapi" fn install(
    handle: *mut Handle,
    guid: *mut Guid,
    _: InterfaceType,
    protocol: *mut c_void,
) -> Status {
    // SAFETY: the caller's variables.
    unsafe {
        if handle.read().is_null() {
            let used = INTERFACES.with_borrow(|all| all.keys().map(|key| key.0).max());
            handle.write((used.unwrap_or(0).max(0x3000) + 0x10) as Handle);
        }
        if find(handle.read(), &guid.read()).is_some() {
            return Status::INVALID_PARAMETER;
        }
        add(handle.read(), guid.read(), protocol);
    }
    Status::SUCCESS
}

pub unsafe extern "efiapi" fn uninstall(handle: Handle, guid: *mut Guid, protocol: *mut c_void) -> Status {
    // SAFETY: the caller's variable.
    let guid = unsafe { guid.read() };
    if find(handle, &guid) != Some(protocol) {
        return Status::NOT_FOUND;
    }
    remove(handle, &guid);
    Status::SUCCESS
}
