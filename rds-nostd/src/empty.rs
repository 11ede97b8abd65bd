//! Empty values of table entries.

/// Defines a struct, and `EMPTY`, its value without content. `EMPTY` has only zero bytes, so that
/// tables take no space in an image.
macro_rules! with_empty {
    ($(#[$attribute:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $field_vis:vis $field:ident: $kind:ty = $empty:expr,)*
    }) => {
        $(#[$attribute])*
        $vis struct $name {
            $($(#[$doc])* $field_vis $field: $kind,)*
        }

        impl $name {
            pub(crate) const EMPTY: Self = Self { $($field: $empty,)* };
        }
    };
}
