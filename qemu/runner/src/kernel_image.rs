//! The images of unikernel and UEFI programs. Cargo builds them and reports their paths.

use crate::cargo;
use rdma_lab::error::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Bare-metal target.
pub const TARGET: &str = "x86_64-unknown-none";

/// Target of UEFI programs.
pub const UEFI_TARGET: &str = "x86_64-unknown-uefi";

/// Builds the image of our applications for release and returns its path. Cargo's progress and
/// messages go to standard error.
///
/// # Errors
/// The build fails.
pub fn build() -> Result<PathBuf> {
    build_program("kernel", "kernel", TARGET)
}

/// Builds the image of the test partners, as [`build`] does.
///
/// # Errors
/// The build fails.
pub fn build_workload() -> Result<PathBuf> {
    build_program("workload", "workload", TARGET)
}

/// Builds the UEFI program `name`, as [`build`] does.
///
/// # Errors
/// The build fails.
pub fn build_efi(name: &str) -> Result<PathBuf> {
    build_program("efi", name, UEFI_TARGET)
}

fn build_program(package: &str, name: &str, target: &str) -> Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(cargo::root())
        .args(["build", "--release", "--package", package, "--bin", name, "--target", target])
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    if !output.status.success() {
        return Err(Error::Program(format!("{name} does not build")));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact" && message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| Error::Format("cargo does not report the path of the image".into()))
}
