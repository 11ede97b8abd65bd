//! Rust programs of this project for Linux guests.

use crate::cargo::root;
use rdma_lab::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Builds the example `name` of the package `package` of this workspace. Linked statically, so that
/// it runs in every guest. Uses the profile of the tests, because their build has compiled the
/// dependencies.
///
/// # Errors
/// [`Error::Program`] with the compiler's messages.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    build(&["--package", package, "--example", name])
}

/// Builds the program `name` of the package `package` like [`example`].
///
/// # Errors
/// As [`example`].
pub fn binary(package: &str, name: &str) -> Result<PathBuf> {
    build(&["--package", package, "--bin", name])
}

fn build(what: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["rustc", "--quiet"]).args(what);
    command.args(["--message-format=json-render-diagnostics", "--", "-Ctarget-feature=+crt-static"]);
    command.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let result = command.output().map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    // Cargo prints the requested executable last.
    let lines = String::from_utf8_lossy(&result.stdout).into_owned();
    let built = lines.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    match built {
        Some(path) if result.status.success() => Ok(path),
        _ => Err(Error::Program(format!("`cargo rustc {}` fails", what.join(" ")))),
    }
}
