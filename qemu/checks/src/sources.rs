//! The project's files, and the packages that they belong to.

use rdma_lab::error::{IoContext, Result};
use regex::Regex;
use std::path::{Path, PathBuf};

/// Directories with a dot that belong to the project's text.
const DOT_DIRECTORIES: [&str; 2] = [".github", ".ci"];
/// Package of files outside of all packages.
const ROOT: &str = "(root)";

/// Compiles a regular expression of this program.
///
/// # Panics
/// If `text` is not one: a mistake in this program that its tests find.
pub(crate) fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its path from the workspace's root.
    pub(crate) path: PathBuf,
    /// The name of its package, or `(root)`.
    pub(crate) package: String,
}

/// Returns all files below `root`, sorted, without build output and hidden directories.
///
/// # Errors
/// A directory cannot be read.
pub(crate) fn all(root: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    walk(root, root, ROOT, &mut found)?;
    Ok(found)
}

fn walk(root: &Path, directory: &Path, package: &str, found: &mut Vec<Source>) -> Result<()> {
    let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).ok();
    let own = manifest.and_then(|manifest| package_name(&manifest));
    let package = own.as_deref().unwrap_or(package);
    let entries = std::fs::read_dir(directory).context("cannot list", directory)?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.is_symlink() {
            continue;
        }
        if !path.is_dir() {
            let path = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            found.push(Source { path, package: package.to_owned() });
        } else if name != "target" && (!name.starts_with('.') || DOT_DIRECTORIES.contains(&name)) {
            walk(root, &path, package, found)?;
        }
    }
    Ok(())
}

/// The name in the section `[package]` of a manifest.
fn package_name(manifest: &str) -> Option<String> {
    let package = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    package
        .take_while(|line| !line.starts_with('['))
        .find_map(|line| line.strip_prefix("name")?.trim_start().strip_prefix('='))
        .map(|name| name.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_name_packages() {
        assert_eq!(package_name("[lib]\nname = \"x\"\n[package]\nname = \"k\"\n"), Some("k".to_owned()));
        assert_eq!(package_name("[workspace]\n"), None);
    }

    #[test]
    fn files_belong_to_the_nearest_package() {
        let files = all(&runner::root()).expect("the workspace");
        let package = |path: &str| {
            let file = files.iter().find(|file| file.path == Path::new(path));
            file.map(|file| file.package.as_str())
        };
        assert_eq!(package("README.md"), Some(ROOT));
        assert_eq!(package("qemu/checks/src/sources.rs"), Some("checks"));
        assert_eq!(package(".github/SECURITY.md"), Some(ROOT));
        assert!(files.iter().all(|file| !file.path.starts_with("target") && !file.path.starts_with(".git")));
    }
}
