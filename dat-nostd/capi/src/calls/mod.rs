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

use crate::foreign::foreign;
use crate::node::Node;
use dat_calls::layout::*;
use dat_calls::{RawHandle, for_each_call};
use dat_nostd::{DatResult, DatReturn, LmrTriplet, ReturnType, RmrTriplet};
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `DAT_SUCCESS`.
const SUCCESS: u32 = 0;

/// `DAT_RETURN` of a call that is made often: without the few instructions that catch a panic, of which there is none on the way.
#[inline]
fn quick(call: impl FnOnce() -> DatResult<()>) -> u32 {
    match call() {
        Ok(()) => SUCCESS,
        Err(error) => error.value(),
    }
}

/// `DAT_RETURN` of a call; a mistake of this library's is INTERNAL_ERROR, and not the end of the program.
fn checked(call: impl FnOnce() -> DatResult<()>) -> u32 {
    let result = catch_unwind(AssertUnwindSafe(call));
    quick(|| result.unwrap_or(Err(DatReturn::new(ReturnType::InternalError))))
}

/// Functions of C. A handle of another provider's goes there.
macro_rules! exported {
    ($($wrap:ident $member:ident: $name:ident($first:ident: $kind:ty $(, $argument:ident: $type:ty)* $(,)?),)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: $kind $(, $argument: $type)*) -> u32 {
            if let Some(foreign) = foreign($first) {
                // SAFETY: the call that this is, with the arguments that its caller gave.
                return unsafe { (foreign.$member)($first $(, $argument)*) };
            }
            // SAFETY: the caller's.
            $wrap(|| unsafe { dat_calls::calls::$name::<Node>($first $(, $argument)*) })
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
    checked(|| unsafe { dat_calls::calls::dat_strerror(value, major_message, minor_message) })
}
