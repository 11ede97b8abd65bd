//! This library as a provider, for programs that call by the macros of `<dat/udat_redirection.h>`.

use crate::calls::*;
use crate::foreign::{Provider, foreign};
use dat_calls::{RawHandle, for_each_call};
use std::ptr;

macro_rules! ours {
    ($($wrap:ident $member:ident: $call:ident($($argument:ident: $type:ty),* $(,)?),)*) => {
        static OURS: Provider = Provider {
            device_name: c"libdat".as_ptr(),
            extension: ptr::null_mut(),
            ia_open_func: dat_ia_open,
            $($member: $call,)*
        };
    };
}

for_each_call!(ours);

/// For `DAT_HANDLE_TO_PROVIDER`: the table of a handle's provider, which is ours for what is no handle: our calls say so.
///
/// # Safety
/// As every function of DAT with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dats_handle_to_provider(handle: RawHandle) -> *const Provider {
    // SAFETY: nothing here has a destructor.
    unsafe { foreign(handle) }.unwrap_or(&OURS)
}
