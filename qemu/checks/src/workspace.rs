//! The project's directory and packages.

use crate::error::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the project's root directory.
#[must_use]
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // Cargo names the package that runs, which is of this workspace: its root has the lock file.
    here.ancestors().find(|directory| directory.join("Cargo.lock").exists()).unwrap_or(&here).to_path_buf()
}

/// Returns the output of `cargo metadata` for this workspace, without its dependencies.
///
/// # Errors
/// Cargo fails.
pub fn metadata() -> Result<serde_json::Value> {
    let output = Command::new("cargo")
        .current_dir(root())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::Failed(format!("cannot start cargo: {error}")))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::Format(format!("cargo metadata is not JSON: {error}")))
}
