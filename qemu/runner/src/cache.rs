//! Cache under `target/` of everything that set-up downloads and builds. Each entry is complete or
//! absent.

use crate::error::{IoContext, Result};
use crate::process::Temporary;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Returns the project's root directory.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // The tool runs for a package of this workspace: its root is the nearest directory above with a
    // lock file.
    here.ancestors().find(|folder| folder.join("Cargo.lock").exists()).unwrap_or(&here).to_path_buf()
}

/// Returns the cache's directory, and creates it if it is missing.
///
/// # Errors
/// The directory cannot be created.
pub fn folder() -> Result<PathBuf> {
    let folder = root().join("target").join("xtask");
    std::fs::create_dir_all(&folder).context("cannot create", &folder)?;
    Ok(folder)
}

/// Returns the cache entry `name`; `make` creates it if it is missing.
///
/// `make` gets a path to create. The path is renamed to its final name only if `make` succeeds, so
/// that an interrupted set-up leaves no incomplete entry. Concurrent runs wait for each other.
///
/// # Errors
/// Errors of `make` and of the file system.
pub fn entry(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = folder()?;
    let path = folder.join(name);
    if path.exists() {
        return Ok(path);
    }
    let lock_path = folder.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).context("cannot create", &lock_path)?;
    lock.lock().context("cannot lock", &lock_path)?;
    if path.exists() {
        return Ok(path);
    }
    remove_partial(&folder, name)?;
    // The name contains the process id, because children of a killed run may still write to that
    // run's path.
    let partial = Temporary::adopt(folder.join(format!("{name}{PARTIAL}{}", std::process::id())));
    make(partial.path())?;
    std::fs::rename(partial.path(), &path).context("cannot rename to", &path)?;
    Ok(path)
}

/// Separates an entry's name from the id of the process that creates the entry.
const PARTIAL: &str = ".partial-";

/// Removes the leftovers of killed runs. The caller holds the entry's lock.
fn remove_partial(folder: &Path, name: &str) -> Result<()> {
    let prefix = format!("{name}{PARTIAL}");
    for entry in std::fs::read_dir(folder).context("cannot read", folder)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // Dropping a `Temporary` retries, because children of a killed run may still write
            // there.
            drop(Temporary::adopt(entry.path()));
        }
    }
    Ok(())
}
