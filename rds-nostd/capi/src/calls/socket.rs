//! Sockets come and go, and where they are.

use super::{answer, on, put_address};
use crate::abi::profile_of;
use crate::failure::{Answer, Failure};
use crate::memory::bytes;
use crate::node::{self, Inner};
use crate::socket::Socket;
use rds_nostd::cmsg::decode_address;
use rds_nostd::{Profile, RdsError, SocketHandle};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// What `socket` takes along with its type.
const SOCK_NONBLOCK: i32 = libc::SOCK_NONBLOCK;
const SOCK_CLOEXEC: i32 = libc::SOCK_CLOEXEC;

/// `socket(2)`: of the family of Linux (21) or of Solaris (30), which says whose layouts and numbers the socket has.
#[unsafe(no_mangle)]
pub extern "C" fn rds_socket(domain: i32, kind: i32, protocol: i32) -> i32 {
    let profile = profile_of(domain);
    let made = answer(profile.unwrap_or_default(), || {
        let profile = profile.ok_or(RdsError::AddressFamily)?;
        if kind & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != profile.socket_type() {
            return Err(RdsError::SocketType.into());
        }
        if protocol != 0 {
            return Err(RdsError::Protocol.into());
        }
        let mut inner = node::open()?.lock();
        let handle = inner.rds.socket()?;
        let made = Socket::new(handle, profile, kind & SOCK_NONBLOCK != 0);
        match inner.rds.set_profile(handle, profile).and(made) {
            Ok(socket) => {
                let fd = socket.number();
                inner.sockets.insert(fd, socket);
                inner.look(fd);
                Ok(fd as isize)
            }
            Err(error) => {
                let Inner { adapter, rds, .. } = &mut *inner;
                let _ = rds.close(adapter, handle);
                Err(error.into())
            }
        }
    });
    made as i32
}

/// `close(2)`: the descriptor is closed, and the socket with it.
#[unsafe(no_mangle)]
pub extern "C" fn rds_close(fd: i32) -> i32 {
    let closed = on(fd, |node, _| {
        let mut inner = node.lock();
        let handle = inner.socket(fd)?.handle;
        let Inner { adapter, rds, sockets, parked, .. } = &mut *inner;
        let closed = rds.close(adapter, handle);
        sockets.remove(&fd);
        parked.wake_all();
        drop(inner);
        node.sleeper.wake();
        closed?;
        Ok(0)
    });
    closed as i32
}

/// A call with an address.
///
/// # Safety
/// `address` is null or `len` bytes.
unsafe fn with_address(
    fd: RawFd,
    address: *const c_void,
    len: u32,
    call: impl FnOnce(&mut Inner, SocketHandle, SocketAddr) -> Result<(), RdsError>,
) -> i32 {
    let done = on(fd, |node, profile| {
        // SAFETY: this function's contract.
        let address = unsafe { read_address(profile, address.expose_provenance() as u64, len) }?;
        let mut inner = node.lock();
        let handle = inner.socket(fd)?.handle;
        call(&mut inner, handle, address)?;
        inner.look(fd);
        Ok(0)
    });
    done as i32
}

/// An address of the program's.
///
/// # Safety
/// `at` is null or `len` bytes.
pub(super) unsafe fn read_address(profile: Profile, at: u64, len: u32) -> Answer<SocketAddr> {
    if at == 0 {
        return Err(Failure::Fault);
    }
    // SAFETY: this function's contract.
    let bytes = unsafe { bytes(at, len.into()) }?;
    Ok(decode_address(profile, bytes)?)
}

/// `bind(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_bind(fd: i32, address: *const c_void, len: u32) -> i32 {
    // SAFETY: the caller's.
    unsafe { with_address(fd, address, len, |inner, handle, to| inner.rds.bind_socket(handle, to)) }
}

/// `connect(2)`: where messages without a destination go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_connect(fd: i32, address: *const c_void, len: u32) -> i32 {
    // SAFETY: the caller's.
    unsafe { with_address(fd, address, len, |inner, handle, to| inner.rds.connect(handle, to)) }
}

/// What a call gives of an address.
///
/// # Safety
/// `len` is null or a length, and `address` so many bytes.
unsafe fn name(
    fd: RawFd,
    address: *mut c_void,
    len: *mut u32,
    of: impl FnOnce(&Inner, SocketHandle) -> Result<SocketAddr, RdsError>,
) -> i32 {
    let done = on(fd, |node, profile| {
        if len.is_null() {
            return Err(Failure::Fault);
        }
        let mut inner = node.lock();
        let handle = inner.socket(fd)?.handle;
        let found = of(&inner, handle)?;
        // SAFETY: this function's contract.
        unsafe { len.write(put_address(profile, &found, address.cast(), len.read())?) };
        Ok(0)
    });
    done as i32
}

/// `getsockname(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_getsockname(fd: i32, address: *mut c_void, len: *mut u32) -> i32 {
    // SAFETY: the caller's.
    unsafe { name(fd, address, len, |inner, handle| inner.rds.local_address(handle)) }
}

/// `getpeername(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_getpeername(fd: i32, address: *mut c_void, len: *mut u32) -> i32 {
    // SAFETY: the caller's.
    unsafe { name(fd, address, len, |inner, handle| inner.rds.peer_address(handle)) }
}
