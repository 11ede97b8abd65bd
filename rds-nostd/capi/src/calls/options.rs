//! Options and requests.

use super::on;
use crate::failure::Failure;
use crate::memory::{bytes, room};
use crate::options::{get, set};
use std::ffi::{c_ulong, c_void};

/// `setsockopt(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_setsockopt(
    fd: i32,
    level: i32,
    name: i32,
    value: *const c_void,
    len: u32,
) -> i32 {
    let done = on(fd, |node, profile| {
        // SAFETY: the caller's.
        let value = unsafe { bytes(value.expose_provenance() as u64, len.into()) }?;
        let mut inner = node.lock();
        let handle = inner.socket(fd)?.handle;
        // SAFETY: the caller's: memory that the structures name, too.
        unsafe { set(&mut inner, (handle, profile), level, name, value) }?;
        inner.look(fd);
        drop(inner);
        node.sleeper.wake();
        Ok(0)
    });
    done as i32
}

/// `getsockopt(2)`. Of information its value is the size of an element.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_getsockopt(
    fd: i32,
    level: i32,
    name: i32,
    value: *mut c_void,
    len: *mut u32,
) -> i32 {
    let done = on(fd, |node, profile| {
        if len.is_null() {
            return Err(Failure::Fault);
        }
        // SAFETY: the caller's.
        let room = unsafe { room(value.expose_provenance() as u64, len.read().into()) }?;
        let mut inner = node.lock();
        let handle = inner.socket(fd)?.handle;
        let got = get(&mut inner, (handle, profile), level, name, room)?;
        // SAFETY: the caller's.
        unsafe { len.write(got.len as u32) };
        if got.is_cut { Err(Failure::NoSpace) } else { Ok(got.value as isize) }
    });
    done as i32
}

const SETTOS: c_ulong = 0x89e0;
const GETTOS: c_ulong = 0x89e1;

/// `ioctl(2)`: `SIOCRDSSETTOS`, `SIOCRDSGETTOS` (a byte), `FIONBIO` (an int).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_ioctl(fd: i32, request: c_ulong, argument: *mut c_void) -> i32 {
    let done = on(fd, |node, _| {
        if argument.is_null() {
            return Err(Failure::Fault);
        }
        let mut inner = node.lock();
        let handle = inner.socket(fd)?.handle;
        match request {
            // SAFETY: the caller's: a byte.
            SETTOS => inner.rds.set_type_of_service(handle, unsafe { argument.cast::<u8>().read() })?,
            GETTOS => {
                let tos = inner.rds.type_of_service(handle)?;
                // SAFETY: the caller's: a byte.
                unsafe { argument.cast::<u8>().write(tos) };
            }
            libc::FIONBIO => {
                // SAFETY: the caller's: an int.
                let on = unsafe { argument.cast::<i32>().read() } != 0;
                inner.socket(fd)?.set_nonblocking(on);
            }
            _ => return Err(Failure::Rds(rds_nostd::RdsError::NoTypeOfService)),
        }
        Ok(0)
    });
    done as i32
}
