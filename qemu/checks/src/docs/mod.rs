//! `cargo xtask docs`: one site from the Markdown files and the API of the published crates.
//!
//! | module | content |
//! |---|---|
//! | `page` | HTML from Markdown and from sources, and where links lead |
//! | `html` | ids and links of an HTML page |
//! | `anchors` | links of the site without a target |
//!
//! The site keeps the repository's directories: `kernel/README.md` is `kernel/README.html`. The
//! API is below `api`. Other files that a page links to become pages with their text.

mod anchors;
mod html;
mod page;

use crate::sources;
use page::Site;
use rdma_lab::error::{Error, IoContext, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directory of the API in the site.
const API: &str = "api";
/// The target that the unikernel is for.
const BARE_METAL: &str = "x86_64-unknown-none";
/// The package that is for bare metal only.
const UNIKERNEL: &str = "unikernel";

/// A published package.
#[derive(Debug)]
struct Package {
    name: String,
    description: String,
    /// Directory from the workspace's root.
    directory: PathBuf,
    /// Names of packages that it depends on.
    dependencies: Vec<String>,
}

impl Package {
    fn crate_name(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Returns the first page of its API in the site.
    fn api(&self) -> PathBuf {
        Path::new(API).join(self.crate_name()).join("index.html")
    }
}

/// Builds the site in `docs` below cargo's target directory, and returns its first page.
///
/// # Errors
/// Rustdoc fails or warns, a link leads nowhere, or a file cannot be read or written.
pub fn build() -> Result<PathBuf> {
    let root = runner::root();
    let metadata = runner::metadata()?;
    let target = metadata["target_directory"].as_str().map(PathBuf::from);
    let target = target.ok_or_else(|| Error::Format("cargo metadata names no target directory".into()))?;
    let published = published(&metadata, &root);
    let directory = target.join("docs");
    remove(&directory)?;

    let api = directory.join(API);
    let output = target.join("doc");
    prepare(&output, &published)?;
    for wave in waves(&published) {
        let names = wave.iter().flat_map(|package| ["--package", package.name.as_str()]);
        document(&root, names)?;
    }
    copy_directory(&output, &api)?;
    let output = target.join(BARE_METAL).join("doc");
    prepare(&output, &published)?;
    document(&root, ["--package", UNIKERNEL, "--features", "dat", "--target", BARE_METAL])?;
    // Its links to the other crates lead to their pages for the host.
    for part in [UNIKERNEL.into(), Path::new("src").join(UNIKERNEL)] {
        copy_directory(&output.join(&part), &api.join(&part))?;
    }

    let files = sources::all(&root)?.into_iter().map(|source| source.path).collect();
    let apis = published.iter().map(|package| (package.directory.clone(), package.api())).collect();
    let site = Site::new(files, apis);
    let read = |path: &Path| {
        fs::read(root.join(path))
            .context("cannot read", path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into())
    };
    let (mut pages, mut faults) = site.pages(&read)?;
    pages.insert("index.html".into(), contents(&site, &published, &read)?);
    // Rustdoc's pages for help and settings link to it.
    pages.insert(Path::new(API).join("index.html"), page::redirect("../index.html"));
    for (path, text) in &pages {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&directory)).context("cannot create", &path)?;
        fs::write(&path, text).context("cannot write", &path)?;
    }
    faults.extend(anchors::faults(&directory)?);
    faults.iter().for_each(|fault| eprintln!("docs: {fault}"));
    match faults.len() {
        0 => Ok(directory.join("index.html")),
        number => Err(Error::Program(format!("{number} links of the documentation lead nowhere"))),
    }
}

/// Returns the packages that are published.
fn published(metadata: &serde_json::Value, root: &Path) -> Vec<Package> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // `publish = false` is an empty list of registries, no such key is null.
    let published = packages.filter(|package| package["publish"].is_null());
    let mut published: Vec<Package> = published
        .filter_map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str()?);
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            let dependencies = dependencies.filter(|dependency| dependency["kind"].is_null());
            Some(Package {
                dependencies: dependencies
                    .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
                    .collect(),
                name: package["name"].as_str()?.to_owned(),
                description: package["description"].as_str().unwrap_or_default().to_owned(),
                directory: manifest.parent()?.strip_prefix(root).ok()?.to_path_buf(),
            })
        })
        .collect();
    published.sort_by(|a, b| a.name.cmp(&b.name));
    published
}

/// Returns the packages for the host in groups. The dependencies of a group's packages are in earlier
/// groups.
fn waves(published: &[Package]) -> Vec<Vec<&Package>> {
    let mut left: Vec<&Package> = published.iter().filter(|package| package.name != UNIKERNEL).collect();
    let mut waves = Vec::new();
    while !left.is_empty() {
        let names: Vec<&str> = left.iter().map(|package| package.name.as_str()).collect();
        let (later, wave): (Vec<&Package>, Vec<&Package>) = left
            .into_iter()
            .partition(|package| package.dependencies.iter().any(|name| names.contains(&name.as_str())));
        // Cargo refuses circles among packages.
        if wave.is_empty() {
            return waves;
        }
        waves.push(wave);
        left = later;
    }
    waves
}

/// Empties the directory of rustdoc's output. Pages of crates that are gone, or that are not
/// published, would be part of the site.
fn prepare(output: &Path, published: &[Package]) -> Result<()> {
    remove(output)?;
    // Rustdoc links to a crate only if that crate's directory exists.
    for package in published {
        let directory = output.join(package.crate_name());
        fs::create_dir_all(&directory).context("cannot create", &directory)?;
    }
    Ok(())
}

/// Runs rustdoc.
fn document<'a>(root: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).stdin(Stdio::null()).env("RUSTDOCFLAGS", "-D warnings");
    let status = command.args(["doc", "--no-deps"]).args(arguments).status();
    match status.map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?.success() {
        true => Ok(()),
        false => Err(Error::Program("cargo doc failed".into())),
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("cannot remove", directory)
        }
        _ => Ok(()),
    }
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).context("cannot create", to)?;
    for entry in fs::read_dir(from).context("cannot list", from)? {
        let path = entry.context("cannot list", from)?.path();
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            copy_directory(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).context("cannot copy", &path)?;
        }
    }
    Ok(())
}

/// Returns the page of contents.
fn contents(site: &Site, published: &[Package], read: &dyn Fn(&Path) -> Result<String>) -> Result<String> {
    let mut text = String::from("# Contents\n\n## Guides\n\n");
    let mut directories: BTreeMap<&Path, Vec<(String, PathBuf)>> = BTreeMap::new();
    for path in site.guides() {
        let title = page::title(&read(path)?).unwrap_or_else(|| path.display().to_string());
        let page = page::page_of(path);
        directories.entry(path.parent().unwrap_or(Path::new(""))).or_default().push((title, page));
    }
    for pages in directories.values() {
        for (title, page) in pages {
            text += &format!("- [{title}]({})\n", page.display());
        }
    }
    text += "\n## API\n\n| crate | content |\n|---|---|\n";
    for package in published {
        text += &format!("| [{}]({}) | {} |\n", package.name, package.api().display(), package.description);
    }
    Ok(page::from_generated("Contents", &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_documented_after_their_dependencies() {
        let package = |(name, dependencies): (&str, &[&str])| Package {
            name: name.into(),
            description: String::new(),
            directory: name.into(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
        };
        let packages =
            [("a", &["b", "x"][..]), ("b", &["c"]), ("c", &[]), ("d", &["c"]), (UNIKERNEL, &["c"])]
                .map(package);
        let names =
            |wave: &Vec<&Package>| wave.iter().map(|package| package.name.clone()).collect::<Vec<_>>();
        let found: Vec<_> = waves(&packages).iter().map(names).collect();
        assert_eq!(found, [vec!["c"], vec!["b", "d"], vec!["a"]]);
    }
}
