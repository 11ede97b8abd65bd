//! The prose of a change: sentences on lines that were added since a commit.

use super::comments::{self, Language};
use super::{Counts, NEW_CRATE, sentences};
use rdma_lab::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Added lines of each file.
type Added = BTreeMap<PathBuf, BTreeSet<usize>>;

/// Returns the lines that git's working tree has beyond the commit `base`. New files count after
/// `git add`.
fn added_since(base: &str, root: &Path) -> Result<Added> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["-c", "core.quotepath=off", "diff", "--unified=0", "--no-color", "--no-ext-diff"])
        .args(["--src-prefix=a/", "--dst-prefix=b/", base, "--"])
        .output()
        .map_err(|error| Error::Program(format!("cannot start git: {error}")))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
        return Err(Error::Usage(format!("--diff {base}: {reason}")));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses the output of `git diff --unified=0`.
fn parse(diff: &str) -> Added {
    let mut added = Added::new();
    let mut path: Option<PathBuf> = None;
    for row in diff.lines() {
        if let Some(name) = row.strip_prefix("+++ ") {
            path = name.strip_prefix("b/").map(PathBuf::from);
        } else if let Some(path) = &path
            && let Some(hunk) = row.strip_prefix("@@ ")
            && let Some(range) = hunk.split_whitespace().find_map(|word| word.strip_prefix('+'))
        {
            let (first, count) = range.split_once(',').unwrap_or((range, "1"));
            let first: usize = first.parse().unwrap_or(0);
            let count: usize = count.parse().unwrap_or(0);
            added.entry(path.clone()).or_default().extend(first..first.saturating_add(count));
        }
    }
    added
}

/// Prints each sentence on added lines that opens or personifies, and the shares of all of them.
///
/// # Errors
/// A share is above that of a new crate; `base` is no commit; a file cannot be read.
pub fn run(base: &str) -> Result<()> {
    let root = runner::root();
    let mut counts = Counts::default();
    for (path, lines) in added_since(base, &root)? {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let Some(language) = extension.and_then(Language::of_extension) else { continue };
        let text = std::fs::read(root.join(&path));
        let text = text.map_err(|source| Error::Io { action: "cannot read", path: path.clone(), source })?;
        counts.add(measure(&path, &String::from_utf8_lossy(&text), language, &lines));
    }
    println!("{:20} {counts}", "added");
    let (open, person) = counts.shares();
    if open > NEW_CRATE.0 || person > NEW_CRATE.1 {
        return Err(Error::Program("the change has too many sentences that are hard to read".into()));
    }
    Ok(())
}

/// Measures the sentences of a file that touch `lines`, and prints those that are hard to read.
fn measure(path: &Path, text: &str, language: Language, lines: &BTreeSet<usize>) -> Counts {
    let mut counts = Counts::default();
    for block in comments::blocks(text, language) {
        for sentence in sentences::of_block(&block, language == Language::Markdown) {
            let Some(line) = sentence.lines.iter().find(|line| lines.contains(line)) else { continue };
            let (opens, person) = (sentence.opens(), sentence.has_person());
            counts.add(Counts { sentences: 1, open: opens.into(), person: person.into() });
            for (is_hit, measure) in [(opens, "open"), (person, "person")] {
                if is_hit {
                    println!("{}:{line}: {measure}: {}", path.display(), sentence.text);
                }
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_lines_are_those_of_git() {
        let diff = "diff --git a/x.rs b/x.rs\n--- a/x.rs\n+++ b/x.rs\n@@ -3,0 +4,2 @@ fn a\n+// New.\n+// Newer.\n\
                    @@ -9 +11 @@\n-a\n+b\n--- a/gone.rs\n+++ /dev/null\n@@ -1,2 +0,0 @@\n";
        let added = parse(diff);
        let lines: Vec<usize> = added[Path::new("x.rs")].iter().copied().collect();
        assert_eq!((added.len(), lines), (1, vec![4, 5, 11]));
    }

    #[test]
    fn only_sentences_on_added_lines_count() {
        let text = "// Who asks?\n// A slot is\n// free.\nlet x = 1;\n// Nobody asks.\n";
        let counts = measure(Path::new("a.rs"), text, Language::Rust, &BTreeSet::from([3, 5]));
        assert_eq!(counts, Counts { sentences: 2, open: counts.open, person: 1 });
    }
}
