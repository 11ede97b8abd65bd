//! Opening IAs.

use super::{SUCCESS, guarded};
use crate::process;
use crate::registry::Provider;
use dat_calls::args::{name, need, put};
use dat_calls::{NAMES, NULL, Opened, RawHandle, open_ia};
use dat_nostd::{DatResult, DatReturn, ReturnType, Subtype};

/// Opens an IA. No device is closed meanwhile.
///
/// # Safety
/// `ia_name` is the C text that `name` is of.
unsafe fn open(
    ia_name: *const u8,
    name: &str,
    qlen: i32,
    evd: RawHandle,
    version: [u32; 2],
) -> DatResult<Opened> {
    let [major, minor] = version;
    let mut names = process::names();
    match names.open(name, major)? {
        Provider::Ours { node, own_framing } => {
            let registered = NAMES[usize::from(own_framing)];
            let mut inner = node.lock_urgently().ok_or(DatReturn::new(ReturnType::InternalError))?;
            let opened = open_ia(&mut *inner, registered, name, qlen, evd, minor);
            drop(inner);
            names.close_unused(node);
            opened
        }
        Provider::Foreign(foreign) => {
            drop(names);
            let (mut async_evd, mut ia) = (evd, NULL);
            // SAFETY: a registered provider's call, with the caller's name.
            let code = unsafe { (foreign.calls().ia_open_func)(ia_name, qlen, &mut async_evd, &mut ia) };
            if code == SUCCESS { Ok(Opened { ia, async_evd }) } else { Err(DatReturn(code)) }
        }
    }
}

/// `dat_ia_openv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dat_ia_openv(
    ia_name: *const u8,
    async_evd_min_qlen: i32,
    async_evd_handle: *mut RawHandle,
    ia_handle: *mut RawHandle,
    dat_major: u32,
    dat_minor: u32,
    thread_safety: i32,
) -> u32 {
    // What was asked for is had in either case.
    let _ = thread_safety;
    let call = || {
        need(async_evd_handle, Subtype::InvalidArg3)?;
        need(ia_handle, Subtype::InvalidArg4)?;
        // SAFETY: the caller's; pointers are not null where that was looked at.
        unsafe {
            let (name, evd) = (name(ia_name)?, async_evd_handle.read_unaligned());
            let opened = open(ia_name, name, async_evd_min_qlen, evd, [dat_major, dat_minor])?;
            put(async_evd_handle, opened.async_evd);
            put(ia_handle, opened.ia);
        }
        Ok(())
    };
    // SAFETY: numbers and pointers own nothing.
    unsafe { guarded(call) }
}

/// `dat_ia_open` of this provider's table.
pub(crate) unsafe extern "C-unwind" fn dat_ia_open(
    ia_name: *const u8,
    async_evd_min_qlen: i32,
    async_evd_handle: *mut RawHandle,
    ia_handle: *mut RawHandle,
) -> u32 {
    // SAFETY: the caller's.
    unsafe { dat_ia_openv(ia_name, async_evd_min_qlen, async_evd_handle, ia_handle, 1, 2, 0) }
}
