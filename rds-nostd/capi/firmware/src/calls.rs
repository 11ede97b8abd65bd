//! The calls of DAT, RDS and this library, exported to C.
//!
//! # Safety
//! Pointers are null, or point to memory of the type that the header declares. The call may read or
//! write that memory as the header says. The same holds for memory that structures name. Handles
//! and socket numbers may have any value.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, missing_docs)] // The module says it, and the headers.

use crate::abi::{MlxConfig, MlxPlatform};
use crate::life;
use crate::node::NODE;
use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::time::Duration;
use dat_calls::args::{name, need, put};
use dat_calls::layout::*;
use dat_calls::{NAMES, Node as _, RawHandle, open_ia};
use dat_nostd::{DatResult, DatReturn, LmrTriplet, ReturnType, RmrTriplet, Subtype};
use rds_calls::calls::Called;
use rds_nostd::{Profile, RdsError};

fn code(result: DatResult<()>) -> u32 {
    result.map_or_else(DatReturn::value, |()| 0)
}

macro_rules! dat {
    ($($wrap:ident $member:ident: $name:ident($($argument:ident: $type:ty),* $(,)?),)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: this module's contract.
            code(unsafe { dat_calls::calls::$name::<crate::node::Node>($($argument),*) })
        }
    )*};
}

dat_calls::for_each_call!(dat);

macro_rules! extensions {
    ($($wrap:ident $name:ident($($argument:ident: $type:ty),* $(,)?),)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: this module's contract.
            code(unsafe { dat_calls::calls::$name::<crate::node::Node>($($argument),*) })
        }
    )*};
}

dat_calls::for_each_extension!(extensions);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_openv(
    ia_name: *const u8,
    async_evd_min_qlen: i32,
    async_evd_handle: *mut RawHandle,
    ia_handle: *mut RawHandle,
    dat_major: u32,
    dat_minor: u32,
    _thread_safety: i32,
) -> u32 {
    let open = || {
        need(async_evd_handle, Subtype::InvalidArg3)?;
        need(ia_handle, Subtype::InvalidArg4)?;
        // SAFETY: this module's contract. `need` has checked the pointers.
        unsafe {
            let (name, evd) = (name(ia_name)?, async_evd_handle.read_unaligned());
            let no = |subtype| DatReturn::error(ReturnType::ProviderNotFound, subtype);
            let known = NAMES.into_iter().chain(life::ROCE_NAMES);
            let registered = known.into_iter().find(|registered| *registered == name);
            let registered = registered.ok_or(no(Subtype::NameNotRegistered))?;
            if dat_major != 1 {
                return Err(no(Subtype::MajorNotFound));
            }
            let mut node = NODE.lock().ok_or(no(Subtype::NameNotRegistered))?;
            let opened = open_ia(&mut *node, registered, name, async_evd_min_qlen, evd, dat_minor)?;
            put(async_evd_handle, opened.async_evd);
            put(ia_handle, opened.ia);
        }
        Ok(())
    };
    code(open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_strerror(
    value: u32,
    major_message: *mut *const c_char,
    minor_message: *mut *const c_char,
) -> u32 {
    // SAFETY: this module's contract.
    code(unsafe { dat_calls::calls::dat_strerror(value, major_message, minor_message) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_list_providers(
    max_to_return: i32,
    number_entries: *mut i32,
    list: *const *mut ProviderInfo,
) -> u32 {
    let known = life::ia_names().map(|ia_name| ProviderInfo {
        ia_name: dat_calls::name(ia_name),
        dapl_version_major: 1,
        dapl_version_minor: 2,
        is_thread_safe: 0,
    });
    // SAFETY: this module's contract.
    code(unsafe { dat_calls::calls::list_providers(max_to_return, number_entries, list, &known) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_add_provider(_: *const c_void, _: *const ProviderInfo) -> u32 {
    DatReturn::new(ReturnType::NotImplemented).value()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_remove_provider(_: *const c_void, _: *const ProviderInfo) -> u32 {
    DatReturn::new(ReturnType::NotImplemented).value()
}

/// Returns a call's value, or a negative error number.
fn value(called: Called) -> isize {
    called.unwrap_or_else(|number| -(number as isize))
}

macro_rules! rds {
    ($($wrap:ident $name:ident($($argument:ident: $type:ty),*) -> $answer:ty,)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
            // SAFETY: this module's contract.
            value(unsafe { rds_calls::calls::$name::<crate::node::Node>($($argument),*) }) as $answer
        }
    )*};
}

rds_calls::for_each_call!(rds);

/// `struct rds_pollfd`.
#[repr(C)]
pub struct PollFd {
    fd: c_int,
    events: u16,
    revents: u16,
}

/// Event of a number without a socket.
const NVAL: u16 = 0x20;

/// `poll(2)` of sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rds_poll(fds: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int {
    let errno = |error: RdsError| -error.errno_for(Profile::Linux);
    let fds: &mut [PollFd] = match usize::try_from(count) {
        Ok(0) => &mut [],
        // SAFETY: the caller's array of `count` entries.
        Ok(count @ 1..=0xffff) if !fds.is_null() => unsafe { core::slice::from_raw_parts_mut(fds, count) },
        _ => return errno(RdsError::InvalidArgument),
    };
    let Some(mut node) = NODE.begin() else { return errno(RdsError::NoDevice) };
    let limit = u64::try_from(timeout).ok();
    let limit = limit.map(|limit| node.adapter.now() + Duration::from_millis(limit));
    loop {
        for fd in &mut *fds {
            let ready = <crate::node::Node as rds_calls::Node>::state(&mut node).ready(fd.fd, fd.events);
            fd.revents = if fd.fd < 0 { 0 } else { ready.unwrap_or(NVAL) };
        }
        let ready = fds.iter().filter(|fd| fd.revents != 0).count();
        if ready > 0 || limit.is_some_and(|limit| node.adapter.now() >= limit) {
            return ready as c_int;
        }
        node = match NODE.pause(node, limit) {
            Some(node) => node,
            None => return errno(RdsError::NoDevice),
        };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_open(platform: *const MlxPlatform, config: *const MlxConfig) -> c_int {
    // SAFETY: this module's contract.
    unsafe { life::open(platform, config) }
}

#[unsafe(no_mangle)]
pub extern "C" fn mlx_poll() -> u64 {
    life::poll()
}

#[unsafe(no_mangle)]
pub extern "C" fn mlx_close() -> c_int {
    life::close()
}
