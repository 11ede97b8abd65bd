//! What every object has.

use super::exported::{answer, exported};
use crate::args::{need, put};
use crate::handles::{RawHandle, adapter_of};
use crate::nodes;
use dat_nostd::{DatReturn, Handle, ReturnType, Subtype, strerror};
use std::ffi::c_char;

const NO_HANDLE: DatReturn = DatReturn::error(ReturnType::InvalidHandle, Subtype::InvalidHandle1);

exported! {
    /// `dat_set_consumer_context`.
    checked fn dat_set_consumer_context(dat_handle: RawHandle, context: u64) as set_consumer_context_func {
        let node = nodes::get(adapter_of(dat_handle)).ok_or(NO_HANDLE)?;
        node.lock().adapter.set_consumer_context(Handle::from_bits(dat_handle), context)
    }

    /// `dat_get_consumer_context`.
    checked fn dat_get_consumer_context(dat_handle: RawHandle, context: *mut u64) as get_consumer_context_func {
        need(context, Subtype::InvalidArg2)?;
        let node = nodes::get(adapter_of(dat_handle)).ok_or(NO_HANDLE)?;
        let found = node.lock().adapter.get_consumer_context(Handle::from_bits(dat_handle))?;
        // SAFETY: the caller's.
        unsafe { put(context, found) };
        Ok(())
    }

    /// `dat_get_handle_type`.
    checked fn dat_get_handle_type(dat_handle: RawHandle, handle_type: *mut u32) as get_handle_type_func {
        need(handle_type, Subtype::InvalidArg2)?;
        let node = nodes::get(adapter_of(dat_handle)).ok_or(NO_HANDLE)?;
        let found = node.lock().adapter.get_handle_type(Handle::from_bits(dat_handle))?;
        // SAFETY: the caller's.
        unsafe { put(handle_type, found as u32) };
        Ok(())
    }
}

/// `dat_strerror`: static strings. Programs copy them even after a failure, so there always are some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_strerror(
    value: u32,
    major_message: *mut *const c_char,
    minor_message: *mut *const c_char,
) -> u32 {
    answer(|| {
        let named = strerror(value);
        let (major, minor) = named.unwrap_or(("unknown DAT_RETURN", ""));
        // SAFETY: the caller's.
        unsafe {
            put(major_message, names::of(major).as_ptr());
            put(minor_message, names::of(minor).as_ptr());
        }
        need(major_message, Subtype::InvalidArg2)?;
        need(minor_message, Subtype::InvalidArg3)?;
        named.map(drop)
    })
}

/// The texts of `dat_strerror` with a zero at their ends: each is made once and stays.
mod names {
    use std::collections::BTreeMap;
    use std::ffi::{CStr, CString};
    use std::sync::{Mutex, PoisonError};

    static MADE: Mutex<BTreeMap<&'static str, &'static CStr>> = Mutex::new(BTreeMap::new());

    pub(super) fn of(text: &'static str) -> &'static CStr {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        // There are as many as there are names in `dat_error.h`.
        made.entry(text)
            .or_insert_with(|| Box::leak(CString::new(text).unwrap_or_default().into_boxed_c_str()))
    }
}
