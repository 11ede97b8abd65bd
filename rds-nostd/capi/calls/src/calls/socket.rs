//! Calls that create, close and name sockets.

use super::{Called, Encoded, encoded, lock, on, put_encoded};
use crate::abi::profile_of;
use crate::failure::{Answer, Failure};
use crate::memory::bytes;
use crate::node::{Node, Sockets, State};
use crate::socket::Socket;
use crate::wait::finish;
use core::ffi::c_void;
use core::net::{Ipv4Addr, SocketAddr};
use rds_nostd::cmsg::decode_address;
use rds_nostd::{Profile, RdsError, SocketHandle};

/// Flags in the type of `socket(2)`.
const NONBLOCK: i32 = 0o4000;
const CLOEXEC: i32 = 0o2_000_000;

/// `socket(2)`. The family of Linux (21) or of Solaris (30) selects the layouts and numbers of the
/// socket.
pub unsafe fn rds_socket<N: Node>(domain: i32, kind: i32, protocol: i32) -> Called {
    let profile = profile_of(domain);
    let make = || -> Result<isize, RdsError> {
        let profile = profile.ok_or(RdsError::AddressFamily)?;
        if kind & !(NONBLOCK | CLOEXEC) != profile.socket_type() {
            return Err(RdsError::SocketType);
        }
        if protocol != 0 {
            return Err(RdsError::Protocol);
        }
        let node = N::open()?;
        let mut guard = node.lock().ok_or(RdsError::NoDevice)?;
        let inner = &mut N::state(&mut guard);
        inner.usable()?;
        let State { adapter, rds, sockets, .. } = inner;
        let handle = rds.socket()?;
        let made = rds.set_profile(handle, profile).and_then(|()| {
            sockets.add(|descriptor| Socket::new(handle, profile, descriptor), kind & NONBLOCK != 0)
        });
        match made {
            Ok(fd) => {
                inner.look(fd);
                node.opened(guard);
                Ok(fd as isize)
            }
            Err(error) => {
                let _ = rds.close(adapter, handle);
                Err(error)
            }
        }
    };
    make().map_err(|error| error.errno_for(profile.unwrap_or_default()))
}

/// `close(2)`: closes the descriptor and its socket.
pub unsafe fn rds_close<N: Node>(fd: i32) -> Called {
    on::<N>(fd, |node, _| {
        let (mut guard, closed) =
            finish(node, lock(node)?, fd, |inner, handle| Ok(inner.rds.close(inner.adapter, handle)?))?;
        // The HCA has failed, and may still use the program's memory.
        let closed = closed.map_err(|failure| match failure {
            Failure::Rds(RdsError::Dat(_)) => RdsError::Again.into(),
            other => other,
        });
        let later = closed == Err(RdsError::Again.into());
        let inner = &mut N::state(&mut guard);
        let handle = inner.socket(fd)?.handle;
        inner.sockets.remove(fd, later.then_some(handle));
        node.closed(guard);
        closed?;
        Ok(0)
    })
}

/// Reads an address from the program's memory.
///
/// # Safety
/// `at` is null, or `len` bytes are at `at`.
pub(super) unsafe fn read_address(profile: Profile, at: u64, len: u32) -> Answer<SocketAddr> {
    if at == 0 {
        return Err(Failure::Fault);
    }
    // SAFETY: this function's contract.
    let bytes = unsafe { bytes(at, len.into()) }?;
    Ok(decode_address(profile, bytes)?)
}

/// `bind(2)`.
pub unsafe fn rds_bind<N: Node>(fd: i32, address: *const c_void, len: u32) -> Called {
    on::<N>(fd, |_, profile| {
        // SAFETY: the caller's.
        let to = unsafe { read_address(profile, address.expose_provenance() as u64, len) }?;
        let node = N::home(fd, to.ip())?.ok_or(RdsError::BadSocket)?;
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        inner.usable()?;
        let handle = inner.socket(fd)?.handle;
        inner.rds.bind_socket(handle, to)?;
        inner.look(fd);
        Ok(0)
    })
}

/// `connect(2)`: sets the destination of messages that name none.
pub unsafe fn rds_connect<N: Node>(fd: i32, address: *const c_void, len: u32) -> Called {
    on::<N>(fd, |node, profile| {
        // SAFETY: the caller's.
        let to = unsafe { read_address(profile, address.expose_provenance() as u64, len) }?;
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        inner.usable()?;
        let handle = inner.socket(fd)?.handle;
        inner.rds.connect(handle, to)?;
        inner.look(fd);
        Ok(0)
    })
}

/// Writes a socket's address to the program's memory.
///
/// # Safety
/// `len` is null or points to a length, and `address` to that number of bytes.
unsafe fn name<N: Node>(
    fd: i32,
    address: *mut c_void,
    len: *mut u32,
    of: impl FnOnce(&State<'_, N>, SocketHandle, Profile) -> Result<Encoded, RdsError>,
) -> Called {
    on::<N>(fd, |node, profile| {
        if len.is_null() {
            return Err(Failure::Fault);
        }
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        let handle = inner.socket(fd)?.handle;
        let found = of(inner, handle, profile)?;
        // SAFETY: this function's contract.
        unsafe { len.write(put_encoded(found, address.cast(), len.read())?) };
        Ok(0)
    })
}

/// Encodes the address of an unbound socket as Linux does: the family of the peer if the socket is
/// connected, and zeros.
fn unbound(profile: Profile, peer: Option<SocketAddr>) -> Result<Encoded, RdsError> {
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let (mut bytes, len) = encoded(profile, &peer.unwrap_or(nowhere))?;
    let family = if peer.is_some() { size_of::<u16>() } else { 0 };
    bytes[family..].fill(0);
    Ok((bytes, len))
}

/// `getsockname(2)`.
pub unsafe fn rds_getsockname<N: Node>(fd: i32, address: *mut c_void, len: *mut u32) -> Called {
    // SAFETY: the caller's.
    unsafe {
        name::<N>(fd, address, len, |inner, handle, profile| match inner.rds.local_address(handle) {
            Err(RdsError::NotConnected) if profile == Profile::Linux => {
                unbound(profile, inner.rds.peer_address(handle).ok())
            }
            found => encoded(profile, &found?),
        })
    }
}

/// `getpeername(2)`.
pub unsafe fn rds_getpeername<N: Node>(fd: i32, address: *mut c_void, len: *mut u32) -> Called {
    // SAFETY: the caller's.
    unsafe {
        name::<N>(fd, address, len, |inner, handle, profile| {
            encoded(profile, &inner.rds.peer_address(handle)?)
        })
    }
}
