//! Import graph of the source files of all libraries, of the unikernel and of the host tool:
//! cycles, and files with `unsafe`.
//!
//! File A uses file B if a path in A resolves to an item that B defines. Such a path is in a `use`,
//! a type, a call or a macro. Paths are followed through re-exports; re-exports in `lib.rs` and
//! `mod.rs` are not uses themselves. Tests are left out.
//!
//! | module | subject |
//! |---|---|
//! | `modules` | the tree of modules of some crates, from their source files |
//! | `references` | the paths that a file's code names |
//! | `names` | from a path to the file that defines its item |
//! | `components` | the strongly connected components of a graph |

mod components;
mod modules;
mod names;
mod references;
#[cfg(test)]
mod tests;

pub use modules::Root;
use modules::Tree;
pub(crate) use modules::is_for_tests;
use rdma_lab::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Most files of an import cycle.
pub const MOST_FILES: usize = 2;

/// Directories of the judged crates.
const FOLDERS: [&str; 5] = ["driver-mlx", "dat-nostd", "rds-nostd", "kernel", "qemu"];

/// Position at which a file names an item of another file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// Line, from 1.
    pub line: usize,
    /// Path as written in the source.
    pub path: String,
}

/// Source files and the uses between them.
#[derive(Debug, Default)]
pub struct Graph {
    /// Positions, by the using file and the used file.
    uses: BTreeMap<(PathBuf, PathBuf), BTreeSet<Use>>,
    files: BTreeSet<PathBuf>,
    /// Files with `unsafe` in their code.
    unsafe_files: BTreeSet<PathBuf>,
}

impl Graph {
    /// Builds the graph of the crates in `roots`. `read` returns a file's text, or `None` if the
    /// file does not exist.
    ///
    /// # Errors
    /// A file is missing or is not valid Rust.
    pub fn of(roots: &[Root], read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let tree = Tree::load(roots, read)?;
        let mut graph = Self::default();
        for module in &tree.modules {
            graph.files.insert(module.file.clone());
            if module.has_unsafe {
                graph.unsafe_files.insert(module.file.clone());
            }
        }
        for (at, module) in tree.modules.iter().enumerate() {
            for reference in &module.references {
                let Some(used) = names::defining_file(&tree, at, reference) else { continue };
                if *used != module.file {
                    let place = Use { line: reference.line, path: reference.path.join("::") };
                    graph.uses.entry((module.file.clone(), used.clone())).or_default().insert(place);
                }
            }
        }
        Ok(graph)
    }

    /// Builds the graph of the project's crates.
    ///
    /// # Errors
    /// As [`Graph::of`], or cargo fails.
    pub fn of_project() -> Result<Self> {
        let workspace = runner::root();
        let roots = project_roots(&workspace)?;
        Self::of(&roots, &|path| std::fs::read_to_string(workspace.join(path)).ok())
    }

    /// Returns all files, tests excepted.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// Returns the cycles: groups of at least two files that all use each other, directly or
    /// through other files of the group. Largest first.
    #[must_use]
    pub fn circles(&self) -> Vec<Vec<&Path>> {
        let files: Vec<&Path> = self.files().collect();
        let index: BTreeMap<&Path, usize> = files.iter().enumerate().map(|(at, file)| (*file, at)).collect();
        let mut edges = vec![Vec::new(); files.len()];
        for (from, to) in self.uses.keys() {
            edges[index[from.as_path()]].push(index[to.as_path()]);
        }
        let mut circles: Vec<Vec<&Path>> = components::strongly_connected(&edges)
            .into_iter()
            .filter(|component| component.len() > 1)
            .map(|component| component.into_iter().map(|at| files[at]).collect())
            .collect();
        circles.iter_mut().for_each(|circle: &mut Vec<&Path>| circle.sort());
        circles.sort_by_key(|circle| (std::cmp::Reverse(circle.len()), circle.first().copied()));
        circles
    }

    /// Returns the files with the keyword `unsafe` in their code, tests excepted: file names by
    /// directory.
    #[must_use]
    pub fn unsafe_files(&self) -> BTreeMap<&Path, Vec<&str>> {
        let mut directories: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
        for file in &self.unsafe_files {
            if let (Some(directory), Some(name)) =
                (file.parent(), file.file_stem().and_then(|name| name.to_str()))
            {
                directories.entry(directory).or_default().push(name);
            }
        }
        directories
    }

    /// Returns a text with a cycle's files and the uses among them.
    #[must_use]
    pub fn describe(&self, circle: &[&Path]) -> String {
        let mut text = format!("circle of {} files\n", circle.len());
        for file in circle {
            let _ = writeln!(text, "  {}", file.display());
            for ((_, used), places) in self.uses.iter().filter(|((from, _), _)| from == file) {
                if circle.contains(&used.as_path()) {
                    let _ = writeln!(text, "    uses {}: {}", used.display(), listed(places));
                }
            }
        }
        text
    }

    /// Returns a text with the uses by and of the files whose names end with `name`.
    #[must_use]
    pub fn neighbours(&self, name: &str) -> String {
        let mut text = String::new();
        for ((from, to), places) in self.uses.iter().filter(|((from, _), _)| from.ends_with(name)) {
            let _ = writeln!(text, "{} uses {}: {}", from.display(), to.display(), listed(places));
        }
        for ((from, to), places) in self.uses.iter().filter(|((_, to), _)| to.ends_with(name)) {
            let _ = writeln!(text, "{} is used by {}: {}", to.display(), from.display(), listed(places));
        }
        text
    }

    /// Fails if a cycle has more than [`MOST_FILES`] files, and prints each such cycle.
    ///
    /// # Errors
    /// Such a cycle exists.
    pub fn judge(&self) -> Result<()> {
        let circles = self.circles();
        let too_large: Vec<_> = circles.iter().filter(|circle| circle.len() > MOST_FILES).collect();
        for circle in &too_large {
            print!("{}", self.describe(circle));
        }
        if too_large.is_empty() {
            return Ok(());
        }
        let number = too_large.len();
        Err(Error::Program(format!(
            "{number} import circles have more than {MOST_FILES} files (`cargo xtask graph`)"
        )))
    }
}

/// Returns the first positions of a use; positions that contain the used file's path are preferred.
fn listed(places: &BTreeSet<Use>) -> String {
    let written: Vec<&Use> = places.iter().filter(|place| place.path.contains("::")).collect();
    let chosen = if written.is_empty() { places.iter().collect() } else { written };
    let first: Vec<String> =
        chosen.iter().take(4).map(|place| format!("{} (line {})", place.path, place.line)).collect();
    let more = if chosen.len() > first.len() { ", ..." } else { "" };
    format!("{}{more}", first.join(", "))
}

/// Returns the library crates of [`FOLDERS`], including those for C, and the unikernel's image.
/// Paths start at the workspace's root.
fn project_roots(workspace: &Path) -> Result<Vec<Root>> {
    let metadata = runner::metadata()?;
    let mut roots = Vec::new();
    for target in metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|package| package["targets"].as_array().into_iter().flatten())
        .filter(|target| {
            let kind =
                |name| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name));
            // The image of our applications is a program with enough modules to judge.
            kind("lib") || kind("rlib") || kind("staticlib") || kind("bin") && target["name"] == "kernel"
        })
    {
        let (Some(name), Some(path)) = (target["name"].as_str(), target["src_path"].as_str()) else {
            continue;
        };
        let path = Path::new(path);
        let file = path.strip_prefix(workspace).unwrap_or(path);
        if FOLDERS.iter().any(|folder| file.starts_with(folder)) {
            roots.push(Root { name: name.replace('-', "_"), file: file.to_path_buf() });
        }
    }
    if roots.is_empty() {
        return Err(Error::Format(format!("cargo names no library under {}", FOLDERS.join(", "))));
    }
    Ok(roots)
}

/// Prints the project's cycles, or the uses by and of the files whose names end with one of
/// `names`.
///
/// # Errors
/// As [`Graph::of_project`], or no file matches `names`.
pub fn print(names: &[String]) -> Result<()> {
    let graph = Graph::of_project()?;
    for name in names {
        let text = graph.neighbours(name);
        if text.is_empty() {
            return Err(Error::Usage(format!("no file {name} uses another one or is used")));
        }
        print!("{text}");
    }
    if names.is_empty() {
        let circles = graph.circles();
        circles.iter().for_each(|circle| print!("{}", graph.describe(circle)));
        let sizes: Vec<String> = circles.iter().map(|circle| circle.len().to_string()).collect();
        println!(
            "{} files, {} uses between them, {} circles of two files or more ({}); at most {MOST_FILES} files are allowed in each",
            graph.files.len(),
            graph.uses.len(),
            circles.len(),
            sizes.join(", ")
        );
    }
    Ok(())
}
