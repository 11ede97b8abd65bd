//! How an image names its application.

/// Names the application's `fn(&mut Machine) -> ExitCode`. Once in an image; its name in reports of faults is that of the package.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        const _: () = {
            // The wrong signature is an error here, at the application's own line.
            const MAIN: fn(&mut $crate::Machine) -> $crate::ExitCode = $main;

            #[allow(unsafe_code)]
            // Not `main`: that may be the application's name for its own.
            // SAFETY: the name is this macro's own, and an image has one application.
            #[unsafe(export_name = "__unikernel_main")]
            extern "Rust" fn __unikernel_main(machine: &mut $crate::Machine) -> $crate::ExitCode {
                MAIN(machine)
            }

            #[allow(unsafe_code)]
            // SAFETY: as above.
            #[unsafe(export_name = "__unikernel_name")]
            static __UNIKERNEL_NAME: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
        };
    };
}
