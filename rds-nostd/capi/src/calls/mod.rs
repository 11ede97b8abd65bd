//! The functions of `<rds/rds.h>`, exported from [`rds_calls`]. A failed call returns -1 and sets
//! `errno` as the system of the socket's program numbers it.
//!
//! # Safety
//! Pointers are null, or point to memory of the type that the header declares. The call may read or
//! write that memory as the header says, and no other thread accesses it meanwhile. The same holds
//! for memory that structures name. Descriptors may be any numbers.
#![allow(clippy::missing_safety_doc, missing_docs)] // See the module docs and the manual pages.

mod numbers;
mod poll;

pub use numbers::*;
pub use poll::*;

use crate::blocking::{guarded, make};
use crate::node::Node;
use rds_calls::for_each_call;
use std::ffi::{c_ulong, c_void};

/// Makes a call of either kind.
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
            // SAFETY: the caller's contract. Numbers and pointers own nothing.
            unsafe { made!($wrap || rds_calls::calls::$name::<Node>($($argument),*)) as $answer }
        }
    )*};
}

for_each_call!(exported);
