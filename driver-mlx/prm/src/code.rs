//! The macro for numbers that firmware may extend: newtypes with named values instead of `enum`s,
//! so that an unknown value stays representable and printable.

/// Makes an open enumeration: `Name(integer) { VALUE = 1 "what it means"; }`.
macro_rules! codes {
    ($( $(#[$doc:meta])* $name:ident ($repr:ty) { $( $value:ident = $number:literal $text:literal; )+ } )+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                #[doc = concat!($text, " (", stringify!($number), ").")]
                pub const $value: Self = Self($number);
            )+

            /// Every value that has a name here.
            pub const ALL: &'static [Self] = &[ $( Self::$value ),+ ];

            /// Returns the value's description, or `None` if no source documents it.
            #[must_use]
            pub const fn meaning(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some($text), )+
                    _ => None,
                }
            }

            /// The name of the constant; `None` for a value that no source names.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some(stringify!($value)), )+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.meaning() {
                    Some(text) => write!(f, "{text} ({:#x})", self.0),
                    None => write!(f, "unknown ({:#x})", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, concat!(stringify!($name), "::{}"), name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }
    )+ };
}

pub(crate) use codes;
