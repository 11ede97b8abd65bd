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

use crate::blocking::{guarded, make};
use crate::node::Node;
use rds_calls::for_each_call;
use std::ffi::{c_ulong, c_void};

/// Makes a call, by its kind.
macro_rules! made {
    (checked $call:expr) => {
        guarded($call)
    };
    (waits $call:expr) => {
        make($call)
    };
}

macro_rules! exported {
    ($($wrap:ident $name:ident($($argument:ident: $type:ty),*) -> $answer:ty,)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $answer {
            // SAFETY: the caller's. Numbers and pointers own nothing.
            unsafe { made!($wrap || rds_calls::calls::$name::<Node>($($argument),*)) as $answer }
        }
    )*};
}

for_each_call!(exported);
