//! The workspace: its directory, and calls of cargo in it.

use rdma_lab::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the project's root directory.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // The tool runs for a package of this workspace: its root is the nearest directory above with a
    // lock file.
    here.ancestors().find(|folder| folder.join("Cargo.lock").exists()).unwrap_or(&here).to_path_buf()
}

/// Returns a call of cargo in the workspace's root, without standard input.
pub(crate) fn command() -> Command {
    // Not the variable CARGO: that names one toolchain's program, which does not take `+nightly`.
    let mut command = Command::new("cargo");
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Returns a call as [`command`] does, at the lowest priority.
pub(crate) fn background() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", "cargo"]).current_dir(root()).stdin(Stdio::null());
    command
}

/// Returns the output of `cargo metadata` for this workspace, without its dependencies.
///
/// # Errors
/// Cargo fails.
pub fn metadata() -> Result<serde_json::Value> {
    let output = command()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Format(format!("cargo metadata is not JSON: {error}")))
}
