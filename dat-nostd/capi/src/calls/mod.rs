//! The functions of DAT 1.2, as `<dat/udat.h>` declares them.
//!
//! # Safety
//! Every pointer is null or to memory of the type that the header says, which the call may read or write as it says; of no other thread's
//! meanwhile. Handles may be any numbers.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)] // The module says it, and the specification.

mod cno;
mod connection;
mod context;
mod cr;
mod dto;
mod ep;
mod evd;
mod ia;
mod lmr;
mod pz;
mod registry;
mod rmr;
mod service_point;
mod srq;

pub use cno::*;
pub use connection::*;
pub use context::*;
pub use cr::*;
pub use dto::*;
pub use ep::*;
pub use evd::*;
pub use ia::*;
pub use lmr::*;
pub use pz::*;
pub use registry::*;
pub use rmr::*;
pub use service_point::*;
pub use srq::*;

use dat_nostd::{DatResult, DatReturn, ReturnType};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `DAT_SUCCESS`.
const SUCCESS: u32 = 0;

/// `DAT_RETURN` of a call.
#[inline]
fn code(result: DatResult<()>) -> u32 {
    match result {
        Ok(()) => SUCCESS,
        Err(error) => error.value(),
    }
}

/// `DAT_RETURN` of a call; a mistake of this library's is INTERNAL_ERROR, and not the end of the program.
fn answer(call: impl FnOnce() -> DatResult<()>) -> u32 {
    let result = catch_unwind(AssertUnwindSafe(call));
    code(result.unwrap_or(Err(DatReturn::new(ReturnType::InternalError))))
}

/// A function of C. A handle of another provider's goes there.
macro_rules! exported {
    ($($(#[$m:meta])* $wrap:ident fn $name:ident($first:ident: $kind:ty $(, $argument:ident: $type:ty)* $(,)?) as $member:ident
        $body:block)*) => {$(
        $(#[$m])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: $kind $(, $argument: $type)*) -> u32 {
            if let Some(foreign) = $crate::provider::foreign($first) {
                // SAFETY: the call that this is, with the arguments that its caller gave.
                return unsafe { (foreign.$member)($first $(, $argument)*) };
            }
            let call = || -> dat_nostd::DatResult<()> { $body };
            exported!(@ $wrap call)
        }
    )*};
    (@ checked $call:ident) => { $crate::calls::answer($call) };
    // Without the few instructions that catch a panic, of which there is none on the way.
    (@ quick $call:ident) => { $crate::calls::code($call()) };
}
use exported;
