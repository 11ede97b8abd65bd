//! Calls of cargo in this workspace.

use crate::cache;
use crate::error::{Error, Result};
use std::process::{Command, Stdio};

/// Returns a call of cargo in the workspace's root, without standard input.
pub(crate) fn command() -> Command {
    // Not the variable CARGO: that names one toolchain's program, which does not take `+nightly`.
    let mut command = Command::new("cargo");
    command.current_dir(cache::root()).stdin(Stdio::null());
    command
}

/// Returns a call as [`command`] does, at the lowest priority.
pub(crate) fn background() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", "cargo"]).current_dir(cache::root()).stdin(Stdio::null());
    command
}

/// Returns the output of `cargo metadata` for this workspace, without its dependencies.
///
/// # Errors
/// Cargo fails.
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let output = command()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Format(format!("cargo metadata is not JSON: {error}")))
}
