//! The cache under `target/`: what set-up downloads and makes, each entry complete or absent.

use crate::error::{IoContext, Result};
use crate::process::Temporary;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The project's root folder.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // The tool runs for a package of this workspace: its root is the nearest folder above with a lock file.
    here.ancestors().find(|folder| folder.join("Cargo.lock").exists()).unwrap_or(&here).to_path_buf()
}

/// The cache's folder, made when missing.
///
/// # Errors
/// The folder cannot be made.
pub fn folder() -> Result<PathBuf> {
    let folder = root().join("target").join("xtask");
    std::fs::create_dir_all(&folder).context("cannot create", &folder)?;
    Ok(folder)
}

/// The cache entry `name`, made by `make` when it is not there.
///
/// `make` is given a path to create; only when it succeeds is the path renamed to its final name, so that an
/// interrupted set-up leaves no half entry. Two runs at a time wait for each other.
///
/// # Errors
/// Those of `make`, and of the file system.
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
    // Of its own name: what a killed run started may still be writing to that run's.
    let partial = Temporary::adopt(folder.join(format!("{name}{PARTIAL}{}", std::process::id())));
    make(partial.path())?;
    std::fs::rename(partial.path(), &path).context("cannot rename to", &path)?;
    Ok(path)
}

/// Between an entry's name and the number of the process that makes it.
const PARTIAL: &str = ".partial-";

/// Removes what killed runs left; the caller holds the entry's lock.
fn remove_partial(folder: &Path, name: &str) -> Result<()> {
    let prefix = format!("{name}{PARTIAL}");
    for entry in std::fs::read_dir(folder).context("cannot read", folder)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // Adopted and dropped: removed, as often as somebody still writes there.
            drop(Temporary::adopt(entry.path()));
        }
    }
    Ok(())
}
