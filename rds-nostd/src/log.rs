//! Log statements: through defmt with the feature of that name, compiled away without it.

/// A statement of one level. Its arguments count as used either way.
macro_rules! log {
    ($level:ident, $format:literal $(, $argument:expr)* $(,)?) => {{
        #[cfg(feature = "defmt")]
        defmt::$level!($format $(, $argument)*);
        #[cfg(not(feature = "defmt"))]
        let _ = ($(&$argument,)*);
    }};
}

pub(crate) use log;
