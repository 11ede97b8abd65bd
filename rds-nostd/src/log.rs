//! Log statements: through defmt with the feature of that name, compiled away without it.

/// Logs a statement of one level. The arguments count as used in either case.
macro_rules! log {
    ($level:ident, $format:literal $(, $argument:expr)* $(,)?) => {{
        #[cfg(feature = "defmt")]
        defmt::$level!($format $(, $argument)*);
        #[cfg(not(feature = "defmt"))]
        let _ = ($(&$argument,)*);
    }};
}

pub(crate) use log;
