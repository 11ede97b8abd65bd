//! What all calls have in common.

/// Calls as each library exports them under these names: see [`for_each_call`](crate::for_each_call).
macro_rules! calls {
    ($($(#[$m:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$m])*
        ///
        /// # Errors
        /// Those of the call in the specification.
        #[inline]
        pub unsafe fn $name<N: $crate::Node>($($argument: $type),*) -> dat_nostd::DatResult<()> $body
    )*};
}
pub(super) use calls;
