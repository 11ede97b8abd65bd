//! This library as a provider, for programs that call by the macros of `<dat/udat_redirection.h>`.

use crate::calls::*;
use crate::foreign::{Provider, for_each_call, foreign};
use crate::handles::RawHandle;
use std::ptr;

macro_rules! ours {
    ($($member:ident: $call:ident($($argument:ty),*),)*) => {
        static OURS: Provider = Provider {
            device_name: c"libdat".as_ptr(),
            extension: ptr::null_mut(),
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
pub unsafe extern "C" fn dats_handle_to_provider(handle: RawHandle) -> *const Provider {
    foreign(handle).unwrap_or(&OURS)
}
