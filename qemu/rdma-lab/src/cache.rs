//! Cache in the user's directory of everything that set-up downloads and makes. Each entry is
//! complete or absent.

use crate::error::{Error, IoContext, Result};
use crate::process::Temporary;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Environment variable that names the cache's directory.
pub const VARIABLE: &str = "RDMA_LAB_CACHE";

/// Returns the cache's directory, and creates it if it is missing. [`VARIABLE`] names the directory.
/// The default is `rdma-lab` in the user's cache directory (XDG Base Directory Specification).
///
/// # Errors
/// The user has no home directory, or the directory cannot be created.
pub fn folder() -> Result<PathBuf> {
    let folder = place(|name| std::env::var_os(name).map(PathBuf::from))?;
    std::fs::create_dir_all(&folder).context("cannot create", &folder)?;
    Ok(folder)
}

/// Returns the place of the cache's directory with these environment variables.
fn place(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    // The specification ignores relative paths; so does this for its own variable's empty value.
    let named = |name: &str| variable(name).filter(|path| path.is_absolute());
    if let Some(own) = variable(VARIABLE).filter(|path| !path.as_os_str().is_empty()) {
        return if own.is_absolute() {
            Ok(own)
        } else {
            Err(Error::Usage(format!("{VARIABLE}={}: give an absolute path", own.display())))
        };
    }
    let caches = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    caches.map(|caches| caches.join("rdma-lab")).ok_or_else(|| Error::Missing {
        what: "there is no cache directory, because HOME is not set".into(),
        remedy: format!("set {VARIABLE} to a directory for about 1 GB"),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(variables: &[(&str, &str)]) -> Result<PathBuf> {
        place(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_cache_is_where_the_user_s_caches_are() {
        for (variables, expected) in [
            (&[("HOME", "/home/a")][..], "/home/a/.cache/rdma-lab"),
            (&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/var/a")], "/var/a/rdma-lab"),
            (&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "relative")], "/home/a/.cache/rdma-lab"),
            (&[("HOME", "/home/a"), (VARIABLE, "/ci/cache")], "/ci/cache"),
            (&[("HOME", "/home/a"), (VARIABLE, "")], "/home/a/.cache/rdma-lab"),
        ] {
            assert_eq!(placed(variables).expect("a place"), Path::new(expected), "{variables:?}");
        }
        let refused = placed(&[("HOME", "/home/a"), (VARIABLE, "cache")]).expect_err("relative");
        assert!(refused.to_string().contains("give an absolute path"), "{refused}");
        assert!(placed(&[]).expect_err("no home").to_string().contains(VARIABLE));
    }
}
