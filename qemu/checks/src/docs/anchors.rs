//! Links of the site that have no target: no file, or no such id in it.

use super::html::Page;
use super::page::normalized;
use rdma_lab::error::{IoContext, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns a line for each link without a target in the pages below `directory`. External links are
/// not followed.
///
/// # Errors
/// A page cannot be read.
pub(super) fn faults(directory: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    load(directory, Path::new(""), &mut pages)?;
    Ok(judge(&pages, &|path| directory.join(path).is_file()))
}

fn load(root: &Path, directory: &Path, pages: &mut BTreeMap<PathBuf, Page>) -> Result<()> {
    let from = root.join(directory);
    for entry in fs::read_dir(&from).context("cannot list", &from)? {
        let entry = entry.context("cannot list", &from)?;
        let path = directory.join(entry.file_name());
        if entry.path().is_dir() {
            load(root, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = fs::read_to_string(entry.path()).context("cannot read", &path)?;
            pages.insert(path, Page::parse(&text));
        }
    }
    Ok(())
}

/// Returns a line for each link of `pages` without a target. `exists` knows other files.
fn judge(pages: &BTreeMap<PathBuf, Page>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            if ["://", "mailto:", "data:", "javascript:"].iter().any(|scheme| link.contains(scheme)) {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = decoded(file.split_once('?').map_or(file, |(file, _)| file));
            let to = match file.as_str() {
                "" => path.clone(),
                file => normalized(&path.parent().unwrap_or(Path::new("")).join(file)),
            };
            let to = if file.ends_with('/') { to.join("index.html") } else { to };
            let has_anchor = opened(pages, &to).map(|page| has(page, anchor) || has(page, &decoded(anchor)));
            if has_anchor == Some(false) {
                faults.push(format!("{}: no anchor #{anchor} in {}", path.display(), to.display()));
            } else if has_anchor.is_none() && !exists(&to) {
                faults.push(format!("{}: no file {} for {link}", path.display(), to.display()));
            }
        }
    }
    faults.sort_unstable();
    faults.dedup();
    faults
}

/// Returns the page that a browser shows for `path`. Rustdoc leads from an item's module to the
/// module that exports it.
fn opened<'a>(pages: &'a BTreeMap<PathBuf, Page>, path: &Path) -> Option<&'a Page> {
    let page = pages.get(path)?;
    let to = page.redirect.as_ref().map(|to| normalized(&path.parent().unwrap_or(Path::new("")).join(to)));
    to.and_then(|to| pages.get(&to)).or(Some(page))
}

/// Returns whether a page has an anchor. Rustdoc's source pages have one for each line, and
/// resolve ranges such as `3-7`.
fn has(page: &Page, anchor: &str) -> bool {
    anchor.is_empty()
        || page.ids.contains(anchor)
        || anchor.split_once('-').is_some_and(|(first, last)| {
            [first, last].iter().all(|line| line.parse::<u32>().is_ok() && page.ids.contains(*line))
        })
}

/// Resolves `%XX`.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| byte == b'%') {
            Some(code) => {
                found.push(code);
                at += 3;
            }
            None => {
                found.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&found).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_without_a_file_or_an_id_are_faults() {
        let pages = [
            (
                "a.html",
                "<h1 id=top></h1><a href=#top></a><a href='d/b.html#%78'></a><a href='s.css?v=1'></a>",
            ),
            (
                "d/b.html",
                "<p id=x><a href='../a.html#no'></a><a href=gone.html></a><a href='https://x/y#z'></a>",
            ),
            (
                "d/src.html",
                "<a id=1></a><a id=2></a><a href=#1-2></a><a href=#1-3></a><a href='../d/b.html?q#x'></a>",
            ),
            ("e.html", "<meta content='0;url=d/b.html'><a href='#x'></a><a href='#y'></a>"),
        ];
        let pages = pages.map(|(path, html)| (PathBuf::from(path), Page::parse(html))).into();
        let expected = [
            "d/b.html: no anchor #no in a.html",
            "d/b.html: no file d/gone.html for gone.html",
            "d/src.html: no anchor #1-3 in d/src.html",
            "e.html: no anchor #y in e.html",
        ];
        assert_eq!(judge(&pages, &|path| path == Path::new("s.css")), expected);
    }
}
