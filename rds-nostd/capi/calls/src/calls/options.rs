//! Options and requests.

use super::{Called, lock, on};
use crate::failure::Failure;
use crate::memory::{bytes, room};
use crate::node::Node;
use crate::options::{get, set};
use crate::socket::Descriptor;
use core::ffi::{c_ulong, c_void};

/// `setsockopt(2)`.
pub unsafe fn rds_setsockopt<N: Node>(
    fd: i32,
    level: i32,
    name: i32,
    value: *const c_void,
    len: u32,
) -> Called {
    on::<N>(fd, |node, _| {
        // SAFETY: the caller's.
        let value = unsafe { bytes(value.expose_provenance() as u64, len.into()) }?;
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        // SAFETY: the caller's: memory that the structures name, too.
        unsafe { set(inner, fd, level, name, value) }?;
        inner.look(fd);
        node.changed(guard);
        Ok(0)
    })
}

/// `getsockopt(2)`. Of information its value is the size of an element.
pub unsafe fn rds_getsockopt<N: Node>(
    fd: i32,
    level: i32,
    name: i32,
    value: *mut c_void,
    len: *mut u32,
) -> Called {
    on::<N>(fd, |node, _| {
        if len.is_null() {
            return Err(Failure::Fault);
        }
        // SAFETY: the caller's.
        let room = unsafe { room(value.expose_provenance() as u64, len.read().into()) }?;
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        let got = get(inner, fd, level, name, room)?;
        // SAFETY: the caller's.
        unsafe { len.write(got.len as u32) };
        if got.is_cut { Err(Failure::NoSpace) } else { Ok(got.value as isize) }
    })
}

const SETTOS: c_ulong = 0x89e0;
const GETTOS: c_ulong = 0x89e1;
const NONBLOCKING: c_ulong = 0x5421;

/// `ioctl(2)`: `SIOCRDSSETTOS`, `SIOCRDSGETTOS` (a byte), `FIONBIO` (an int).
pub unsafe fn rds_ioctl<N: Node>(fd: i32, request: c_ulong, argument: *mut c_void) -> Called {
    on::<N>(fd, |node, _| {
        if argument.is_null() {
            return Err(Failure::Fault);
        }
        let mut guard = lock(node)?;
        let inner = &mut N::state(&mut guard);
        let handle = inner.socket(fd)?.handle;
        match request {
            // SAFETY: the caller's: a byte.
            SETTOS => inner.rds.set_type_of_service(handle, unsafe { argument.cast::<u8>().read() })?,
            GETTOS => {
                let tos = inner.rds.type_of_service(handle)?;
                // SAFETY: the caller's: a byte.
                unsafe { argument.cast::<u8>().write(tos) };
            }
            NONBLOCKING => {
                // SAFETY: the caller's: an int.
                let on = unsafe { argument.cast::<i32>().read() } != 0;
                inner.socket(fd)?.descriptor.set_nonblocking(on);
            }
            _ => return Err(Failure::Rds(rds_nostd::RdsError::NoTypeOfService)),
        }
        Ok(0)
    })
}
