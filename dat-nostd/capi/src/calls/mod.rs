//! The functions of DAT 1.2 and of `<dat/dat_ib_extensions.h>`, as [`dat_calls`] makes them. They
//! get their names here.
//!
//! # Safety
//! Every pointer is null or to memory of the type that the header says, which the call may read or write as it says; of no other thread's
//! meanwhile. Handles may be any numbers.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, missing_docs)] // The module says it, and the specification.

mod ia;
mod registry;

pub use ia::*;
pub use registry::*;

use crate::foreign::{Provider, foreign};
use crate::node::Node;
use crate::waits;
use capi_device::Cancellation;
use dat_calls::layout::*;
use dat_calls::{RawHandle, for_each_call, for_each_extension};
use dat_nostd::{DatResult, DatReturn, LmrTriplet, ReturnType, RmrTriplet};
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `DAT_SUCCESS`.
const SUCCESS: u32 = 0;

/// Another provider's calls.
type Table = &'static Provider;

/// `DAT_RETURN` of a call.
pub(crate) fn value(result: DatResult<()>) -> u32 {
    match result {
        Ok(()) => SUCCESS,
        Err(error) => error.value(),
    }
}

/// Makes a call in which the thread cannot be cancelled: it may have the lock, and its frames have
/// destructors.
///
/// # Safety
/// As [`Cancellation::restore`].
unsafe fn guarded(call: impl FnOnce() -> DatResult<()>) -> u32 {
    // SAFETY: this function's contract. Nothing here has a destructor.
    let cancellation = unsafe { Cancellation::disable() };
    let code = caught(call);
    // SAFETY: as above.
    unsafe { cancellation.restore() };
    code
}

/// The code of a call. A mistake of this library's is INTERNAL_ERROR, and not the end of the
/// program.
#[inline(never)]
fn caught(call: impl FnOnce() -> DatResult<()>) -> u32 {
    let result = catch_unwind(AssertUnwindSafe(call));
    value(result.unwrap_or(Err(DatReturn::new(ReturnType::InternalError))))
}

/// A call with a handle of ours or of another provider's.
///
/// # Safety
/// As [`Cancellation::restore`]; `theirs` and `ours` own nothing.
unsafe fn checked(
    handle: RawHandle,
    theirs: impl FnOnce(Table) -> u32,
    ours: impl FnOnce() -> DatResult<()>,
) -> u32 {
    // SAFETY: this function's contract.
    match unsafe { foreign(handle) } {
        Some(table) => theirs(table),
        // SAFETY: this function's contract.
        None => unsafe { guarded(ours) },
    }
}

/// One that is made often: without the few instructions that catch a panic, of which there is none on the way. A handle of another
/// provider's is none of ours, so the call has failed before it is looked at.
#[inline]
fn quick(handle: RawHandle, theirs: impl FnOnce(Table) -> u32, ours: impl FnOnce() -> DatResult<()>) -> u32 {
    match ours() {
        Ok(()) => SUCCESS,
        // SAFETY: a thread with asynchronous cancellation does not make these calls (README.md).
        Err(error) => match unsafe { foreign(handle) } {
            Some(table) => theirs(table),
            None => error.value(),
        },
    }
}

/// A function of C.
macro_rules! exported_one {
    (checked $member:ident: $name:ident($first:ident: $kind:ty $(, $argument:ident: $type:ty)*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($first: $kind $(, $argument: $type)*) -> u32 {
            // SAFETY: the call that this is, with the arguments that its caller gave. Numbers and
            // pointers own nothing.
            unsafe {
                checked(
                    $first,
                    |table| (table.$member)($first $(, $argument)*),
                    || dat_calls::calls::$name::<Node>($first $(, $argument)*),
                )
            }
        }
    };
    (waits $member:ident: $name:ident($first:ident: $kind:ty $(, $argument:ident: $type:ty)*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($first: $kind $(, $argument: $type)*) -> u32 {
            // SAFETY: the call that this is, with the arguments that its caller gave. Numbers and
            // pointers own nothing.
            unsafe {
                match foreign($first) {
                    Some(table) => (table.$member)($first $(, $argument)*),
                    None => waits::make(dat_calls::requests::$name($first $(, $argument)*)),
                }
            }
        }
    };
    (quick $member:ident: $name:ident($first:ident: $kind:ty $(, $argument:ident: $type:ty)*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($first: $kind $(, $argument: $type)*) -> u32 {
            quick(
                $first,
                // SAFETY: the call that this is, with the arguments that its caller gave.
                |table| unsafe { (table.$member)($first $(, $argument)*) },
                // SAFETY: the caller's.
                || unsafe { dat_calls::calls::$name::<Node>($first $(, $argument)*) },
            )
        }
    };
}

/// Functions of C.
macro_rules! exported {
    ($($wrap:ident $member:ident: $name:ident($($argument:ident: $type:ty),* $(,)?),)*) => {$(
        exported_one!($wrap $member: $name($($argument: $type),*));
    )*};
}

for_each_call!(exported);

/// A function of `<dat/dat_ib_extensions.h>`. Handles of other providers are invalid: their tables
/// lack these calls.
macro_rules! extension {
    (checked $name:ident($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: this module's contract. Numbers and pointers own nothing.
            unsafe { guarded(|| dat_calls::calls::$name::<Node>($($argument),*)) }
        }
    };
    (waits $name:ident($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: this module's contract. Numbers and pointers own nothing.
            unsafe { waits::make(dat_calls::requests::$name($($argument),*)) }
        }
    };
}

macro_rules! extensions {
    ($($wrap:ident $name:ident($($argument:ident: $type:ty),* $(,)?),)*) => {$(
        extension!($wrap $name($($argument: $type),*));
    )*};
}

for_each_extension!(extensions);

/// `dat_strerror`: static strings.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dat_strerror(
    value: u32,
    major_message: *mut *const c_char,
    minor_message: *mut *const c_char,
) -> u32 {
    // SAFETY: the caller's. Numbers and pointers own nothing.
    unsafe { guarded(|| dat_calls::calls::dat_strerror(value, major_message, minor_message)) }
}
