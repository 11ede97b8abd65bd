//! The macro for numbers that firmware may extend: newtypes with named values instead of `enum`s,
//! so that an unknown value stays representable and printable.

/// Returns the line of `lines` that belongs to `number`, by its place in `numbers`.
///
/// All enumerations share this search, because a `match` with a pointer to each text takes three times the memory.
pub(crate) fn text(numbers: &[u16], lines: &'static str, number: u16) -> Option<&'static str> {
    let at = numbers.iter().position(|known| *known == number)?;
    lines.split('\n').nth(at)
}

/// Logs a number as `Debug` prints it, without the code of the formatter.
#[cfg(feature = "defmt")]
pub(crate) fn log(f: defmt::Formatter<'_>, kind: &str, name: Option<&str>, number: u16) {
    match name {
        Some(name) => defmt::write!(f, "{=str}::{=str}", kind, name),
        None => defmt::write!(f, "{=str}({=u16:#x})", kind, number),
    }
}

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
            pub fn meaning(self) -> Option<&'static str> {
                crate::code::text(&[$( $number ),+], concat!($( $text, "\n" ),+), self.0.into())
            }

            /// The name of the constant; `None` for a value that no source names.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                crate::code::text(&[$( $number ),+], concat!($( stringify!($value), "\n" ),+), self.0.into())
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

        #[cfg(feature = "defmt")]
        impl defmt::Format for $name {
            fn format(&self, f: defmt::Formatter<'_>) {
                $crate::code::log(f, stringify!($name), self.name(), self.0.into());
            }
        }
    )+ };
}

pub(crate) use codes;

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_number_has_the_line_at_its_place() {
        let of = |number| text(&[1, 0x300, 7], "one\nmany: more than 2\nseven\n", number);
        assert_eq!([of(1), of(0x300), of(7)], [Some("one"), Some("many: more than 2"), Some("seven")]);
        assert_eq!((of(0), of(2)), (None, None));
    }
}
