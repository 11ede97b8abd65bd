//! The functions of `<rds/rds.h>`, as [`rds_calls`] makes them: here they get their names. What fails is -1, and `errno` says why, as the
//! system of the socket's program numbers it.
//!
//! # Safety
//! Every pointer is null or to memory of the type that the header says, which the call may read or write as it says; of no other thread's
//! meanwhile. So is what the structures lead to. Descriptors may be any numbers.
#![allow(clippy::missing_safety_doc, missing_docs)] // The module says it, and the manual pages.

mod numbers;
mod poll;

pub use numbers::*;
pub use poll::*;

use crate::node::Node;
use rds_calls::calls::Called;
use rds_calls::for_each_call;
use std::ffi::{c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A call's value, or -1 and `errno`. A mistake of this library's is `EIO`, and not the end of the program.
fn answer(call: impl FnOnce() -> Called) -> isize {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(number)) => number,
        Err(_) => libc::EIO,
    };
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = error };
    -1
}

macro_rules! exported {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty,)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
            // SAFETY: the caller's.
            answer(|| unsafe { rds_calls::calls::$name::<Node>($($argument),*) }) as $answer
        }
    )*};
}

for_each_call!(exported);
