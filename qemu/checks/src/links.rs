//! Links of the project's Markdown files: files and headings that they lead to.

use crate::error::{Error, Result};
use crate::sources::{self, Source, pattern};
use crate::workspace;
use regex::Regex;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

static LINK: LazyLock<Regex> = LazyLock::new(|| pattern(r"\]\(([^()\s]+)\)"));
static CODE: LazyLock<Regex> = LazyLock::new(|| pattern("`[^`]*`"));

/// Returns the targets of links in a Markdown text, with line numbers from 1. Code is left out.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (line, row) in (1..).zip(text.lines()) {
        if row.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || row.starts_with("    ") {
            continue;
        }
        // The text of a link may be code, its target never is.
        let row = CODE.replace_all(row, "x");
        found.extend(LINK.captures_iter(&row).map(|link| (line, link[1].to_owned())));
    }
    found
}

/// Returns the anchors of a Markdown text's headings: letters, digits, `-` and `_` in lower case, spaces as `-`.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut headings = Vec::new();
    for row in text.lines() {
        is_code ^= row.trim_start().starts_with("```");
        if let Some(heading) = row.strip_prefix('#').filter(|_| !is_code) {
            let heading = heading.trim_start_matches('#').trim();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            headings
                .push(kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    headings
}

/// Resolves `..` and `.` without the file system.
fn normalized(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = found.pop(),
            Component::CurDir => {}
            part => found.push(part),
        }
    }
    found
}

/// Returns a line for each link that leads nowhere. `files` are the Markdown files by path; `exists` tells of others.
fn faults(files: &BTreeMap<PathBuf, String>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in files {
        for (line, target) in targets(text) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target.as_str(), ""));
            let directory = path.parent().unwrap_or(Path::new(""));
            let to = if file.is_empty() { path.clone() } else { normalized(&directory.join(file)) };
            let at = format!("{}:{line}", path.display());
            match files.get(&to) {
                Some(text) if !anchor.is_empty() && !anchors(text).iter().any(|name| name == anchor) => {
                    faults.push(format!("{at}: no heading #{anchor} in {}", to.display()));
                }
                None if !exists(&to) => faults.push(format!("{at}: no file {}", to.display())),
                _ => {}
            }
        }
    }
    faults
}

/// Fails if a relative link in a Markdown file leads to no file or no heading.
///
/// # Errors
/// There is such a link; a file cannot be read.
pub fn judge() -> Result<()> {
    let root = workspace::root();
    let mut files = BTreeMap::new();
    for Source { path, .. } in sources::all(&root)? {
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(root.join(&path));
            let text =
                text.map_err(|source| Error::Io { action: "cannot read", path: path.clone(), source })?;
            files.insert(path, text);
        }
    }
    let faults = faults(&files, &|path| root.join(path).exists());
    faults.iter().for_each(|fault| eprintln!("links: {fault}"));
    match faults.len() {
        0 => Ok(()),
        number => Err(Error::Failed(format!("{number} links in Markdown files lead nowhere"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let files: BTreeMap<PathBuf, String> = [
            ("a.md", "# One & two\n[b](d/b.md#x-y), [own](#one--two), [code](../up.rs)\n"),
            ("d/b.md", "## X y\n[a](../a.md), [`gone`](gone.md), [site](https://x/y), [bad](#z)\n```\n[c](no.md)\n```\n"),
        ]
        .map(|(path, text)| (PathBuf::from(path), text.to_owned()))
        .into();
        let found = faults(&files, &|path| path == Path::new("up.rs"));
        assert_eq!(found, ["d/b.md:2: no file d/gone.md", "d/b.md:2: no heading #z in d/b.md"]);
    }
}
