//! The unikernel's image. Boot order: start information, command line, exceptions, page tables, clock and interrupts, PCI,
//! then the application named on the command line.
//!
//! Unsafe code is confined to [`arch`] (CPU and board), [`mem`] (page tables, device windows) and [`platform`]
//! (what the driver is handed).
#![cfg_attr(target_os = "none", no_std, no_main)]
#![deny(unsafe_code)]

#[cfg(target_os = "none")]
#[allow(
    clippy::result_large_err,
    clippy::large_enum_variant,
    reason = "an error carries its words, once in a run, and there is no heap"
)]
mod app;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
mod arch;
#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
mod mem;
#[cfg(target_os = "none")]
#[allow(unsafe_code)]
mod platform;

/// On a host there is nothing to boot.
#[cfg(not(target_os = "none"))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "error: this is the unikernel; build it with --target x86_64-unknown-none and boot it with `cargo xtask`"
    );
    std::process::ExitCode::FAILURE
}
