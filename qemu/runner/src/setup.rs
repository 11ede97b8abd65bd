//! `cargo xtask setup`: provides the requirements of the other commands on a fresh machine.
//! Idempotent.

use crate::cargo::root;
use crate::kernel_image::UEFI_TARGET;
use rdma_lab::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub use rdma_lab::setup::{Qemu, program, qemu};

/// Targets of image, libraries and UEFI programs.
pub const TARGETS: [&str; 3] = ["x86_64-unknown-none", "aarch64-unknown-none", UEFI_TARGET];

/// Adds the Rust targets and provides QEMU, showing progress.
///
/// # Errors
/// [`Error::Missing`] says what to install.
pub fn all() -> Result<Qemu> {
    rust_targets()?;
    qemu()
}

/// Makes sure that the bare-metal targets' core library is installed.
///
/// # Errors
/// rustup is missing or cannot add the targets.
pub fn rust_targets() -> Result<()> {
    let remedy = format!("install these Rust targets: {}", TARGETS.join(" "));
    let sysroot = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .current_dir(root())
        .args(["--print", "sysroot"])
        .output()
        .map_err(|error| Error::Program(format!("cannot start rustc: {error}")))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    if TARGETS.iter().all(|target| sysroot.join("lib/rustlib").join(target).join("lib").is_dir()) {
        return Ok(());
    }
    eprintln!("setup: rustup target add {}", TARGETS.join(" "));
    let status = Command::new("rustup")
        .current_dir(root())
        .args(["target", "add"])
        .args(TARGETS)
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Missing { what: format!("rustup failed ({status})"), remedy }),
        Err(error) => Err(Error::Missing { what: format!("cannot start rustup: {error}"), remedy }),
    }
}

/// Toolchain with Miri, which no stable toolchain contains.
pub const MIRI_TOOLCHAIN: &str = "nightly-2026-03-01";

/// Makes sure that Miri is installed, with the standard library that it interprets.
///
/// # Errors
/// [`Error::Missing`]: rustup is missing or cannot install the toolchain.
pub fn miri() -> Result<()> {
    let missing = |what| Error::Missing {
        what,
        remedy: format!("install the toolchain {MIRI_TOOLCHAIN} with the components miri and rust-src"),
    };
    let toolchain = format!("+{MIRI_TOOLCHAIN}");
    let prepare = || {
        let mut command = Command::new("cargo");
        command.current_dir(root()).args([&toolchain, "miri", "setup"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if prepare() {
        return Ok(());
    }
    let words =
        ["toolchain", "install", MIRI_TOOLCHAIN, "--profile", "minimal", "-c", "miri", "-c", "rust-src"];
    eprintln!("setup: rustup {}", words.join(" "));
    match Command::new("rustup").args(words).stdin(Stdio::null()).status() {
        Ok(status) if status.success() && prepare() => Ok(()),
        Ok(status) => Err(missing(format!("Miri cannot be set up (rustup: {status})"))),
        Err(error) => Err(missing(format!("cannot start rustup: {error}"))),
    }
}
