//! Options.

use super::{Called, lock, on};
use crate::failure::Failure;
use crate::memory::{bytes, room};
use crate::node::Node;
use crate::options::{get, set};
use crate::wait::finish;
use core::ffi::c_void;

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
        let mut repeats = false;
        let (mut guard, done) = finish(node, lock(node)?, fd, |inner, _| {
            inner.usable()?;
            let repeats = core::mem::replace(&mut repeats, true);
            // SAFETY: the caller's contract covers the value, and the memory that its structures
            // name.
            unsafe { set(inner, fd, (level, name), value, repeats) }.map_err(|failure| inner.why(failure))
        })?;
        done?;
        N::state(&mut guard).look(fd);
        node.changed(guard);
        Ok(0)
    })
}

/// `getsockopt(2)`. Returns the size of an element for `RDS_INFO_*`.
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
