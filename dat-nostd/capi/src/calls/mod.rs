//! The functions of DAT 1.2, as `<dat/udat.h>` declares them, and as [`dat_calls`] makes them: here they get their names.
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
use dat_calls::layout::*;
use dat_calls::{RawHandle, for_each_call};
use dat_nostd::{DatResult, DatReturn, LmrTriplet, ReturnType, RmrTriplet};
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `DAT_SUCCESS`.
const SUCCESS: u32 = 0;

/// Another provider's calls.
type Table = &'static Provider;

/// `DAT_RETURN` of a call.
fn value(result: DatResult<()>) -> u32 {
    match result {
        Ok(()) => SUCCESS,
        Err(error) => error.value(),
    }
}

/// A call; a mistake of this library's is INTERNAL_ERROR, and not the end of the program.
fn guarded(call: impl FnOnce() -> DatResult<()>) -> u32 {
    let result = catch_unwind(AssertUnwindSafe(call));
    value(result.unwrap_or(Err(DatReturn::new(ReturnType::InternalError))))
}

/// A call with a handle of ours or of another provider's.
fn checked(
    handle: RawHandle,
    theirs: impl FnOnce(Table) -> u32,
    ours: impl FnOnce() -> DatResult<()>,
) -> u32 {
    match foreign(handle) {
        Some(table) => theirs(table),
        None => guarded(ours),
    }
}

/// One that is made often: without the few instructions that catch a panic, of which there is none on the way. A handle of another
/// provider's is none of ours, so the call has failed before it is looked at.
#[inline]
fn quick(handle: RawHandle, theirs: impl FnOnce(Table) -> u32, ours: impl FnOnce() -> DatResult<()>) -> u32 {
    match ours() {
        Ok(()) => SUCCESS,
        Err(error) => match foreign(handle) {
            Some(table) => theirs(table),
            None => error.value(),
        },
    }
}

/// Functions of C.
macro_rules! exported {
    ($($wrap:ident $member:ident: $name:ident($first:ident: $kind:ty $(, $argument:ident: $type:ty)* $(,)?),)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: $kind $(, $argument: $type)*) -> u32 {
            $wrap(
                $first,
                // SAFETY: the call that this is, with the arguments that its caller gave.
                |table| unsafe { (table.$member)($first $(, $argument)*) },
                // SAFETY: the caller's.
                || unsafe { dat_calls::calls::$name::<Node>($first $(, $argument)*) },
            )
        }
    )*};
}

for_each_call!(exported);

/// `dat_strerror`: static strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_strerror(
    value: u32,
    major_message: *mut *const c_char,
    minor_message: *mut *const c_char,
) -> u32 {
    // SAFETY: the caller's.
    guarded(|| unsafe { dat_calls::calls::dat_strerror(value, major_message, minor_message) })
}
