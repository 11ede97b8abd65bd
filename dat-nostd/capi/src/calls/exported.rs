//! What all functions of C have in common.

use dat_nostd::{DatResult, DatReturn, ReturnType};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `DAT_SUCCESS`.
pub(super) const SUCCESS: u32 = 0;

/// `DAT_RETURN` of a call.
#[inline]
pub(super) fn code(result: DatResult<()>) -> u32 {
    match result {
        Ok(()) => SUCCESS,
        Err(error) => error.value(),
    }
}

/// `DAT_RETURN` of a call; a mistake of this library's is INTERNAL_ERROR, and not the end of the program.
pub(super) fn answer(call: impl FnOnce() -> DatResult<()>) -> u32 {
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
            if let Some(foreign) = $crate::foreign::foreign($first) {
                // SAFETY: the call that this is, with the arguments that its caller gave.
                return unsafe { (foreign.$member)($first $(, $argument)*) };
            }
            let call = || -> dat_nostd::DatResult<()> { $body };
            exported!(@ $wrap call)
        }
    )*};
    (@ checked $call:ident) => { $crate::calls::exported::answer($call) };
    // Without the few instructions that catch a panic, of which there is none on the way.
    (@ quick $call:ident) => { $crate::calls::exported::code($call()) };
}
pub(super) use exported;
