//! What every object has.

use super::exported::calls;
use crate::args::{need, put};
use crate::handles::{RawHandle, adapter_of};
use core::ffi::c_char;
use dat_nostd::{DatResult, DatReturn, Handle, ReturnType, Subtype, strerror_c};

const NO_HANDLE: DatReturn = DatReturn::error(ReturnType::InvalidHandle, Subtype::InvalidHandle1);

calls! {
    /// `dat_set_consumer_context`.
    fn dat_set_consumer_context(dat_handle: RawHandle, context: u64) {
        let node = N::get(adapter_of(dat_handle)).ok_or(NO_HANDLE)?;
        node.lock().ok_or(NO_HANDLE)?.adapter.set_consumer_context(Handle::from_bits(dat_handle), context)
    }

    /// `dat_get_consumer_context`.
    fn dat_get_consumer_context(dat_handle: RawHandle, context: *mut u64) {
        need(context, Subtype::InvalidArg2)?;
        let node = N::get(adapter_of(dat_handle)).ok_or(NO_HANDLE)?;
        let found = node.lock().ok_or(NO_HANDLE)?.adapter.get_consumer_context(Handle::from_bits(dat_handle))?;
        // SAFETY: the caller's.
        unsafe { put(context, found) };
        Ok(())
    }

    /// `dat_get_handle_type`.
    fn dat_get_handle_type(dat_handle: RawHandle, handle_type: *mut u32) {
        need(handle_type, Subtype::InvalidArg2)?;
        let node = N::get(adapter_of(dat_handle)).ok_or(NO_HANDLE)?;
        let found = node.lock().ok_or(NO_HANDLE)?.adapter.get_handle_type(Handle::from_bits(dat_handle))?;
        // SAFETY: the caller's.
        unsafe { put(handle_type, found as u32) };
        Ok(())
    }
}

/// `dat_strerror`: static strings. Programs copy them even after a failure, so there always are some.
///
/// # Errors
/// INVALID_PARAMETER.
pub unsafe fn dat_strerror(
    value: u32,
    major_message: *mut *const c_char,
    minor_message: *mut *const c_char,
) -> DatResult<()> {
    let named = strerror_c(value);
    let (major, minor) = named.unwrap_or((c"unknown DAT_RETURN", c""));
    // SAFETY: the caller's.
    unsafe {
        put(major_message, major.as_ptr());
        put(minor_message, minor.as_ptr());
    }
    need(major_message, Subtype::InvalidArg2)?;
    need(minor_message, Subtype::InvalidArg3)?;
    named.map(drop)
}
