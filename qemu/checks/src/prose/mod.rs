//! Ratchet for prose: comments, docs and Markdown, measured per crate against a recorded file.
//!
//! Two shares of all sentences are measured. `open`: sentences that open with a pronoun, a wh-word
//! or a function word, which hide the subject. `person`: sentences that personify a device
//! (`knows`, `tells`) or name no actor (`nobody`). Neither share of a crate may rise above
//! `.ci/prose.txt`. Cells of Markdown tables have up to 25 words.
//!
//! A line with `prose: off` (in Markdown `<!-- prose: off -->`) ends the measuring until `prose:
//! on` or the end of the comment or file.
//!
//! | module | subject |
//! |---|---|
//! | `comments` | comments of Rust and C sources |
//! | [`diff`] | sentences on lines that a change adds |
//! | `sentences` | paragraphs, sentences and their measures |

mod comments;
pub mod diff;
mod sentences;

use crate::sources::{self, Source};
use comments::Language;
use rdma_lab::error::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The recorded counts, below the workspace's root.
const RECORD: &str = ".ci/prose.txt";
/// Shares that a new crate may have, in tenths of a percent.
const NEW_CRATE: (u64, u64) = (50, 20);
/// Longest cell of a Markdown table, in words.
const LONGEST_CELL: usize = 25;

/// The measures of some sentences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    sentences: u64,
    open: u64,
    person: u64,
}

/// A share of sentences in tenths of a percent, rounded.
fn tenths(hits: u64, sentences: u64) -> u64 {
    (2000 * hits + sentences).checked_div(2 * sentences).unwrap_or(0)
}

impl Counts {
    fn shares(self) -> (u64, u64) {
        (tenths(self.open, self.sentences), tenths(self.person, self.sentences))
    }

    fn add(&mut self, other: Self) {
        self.sentences += other.sentences;
        self.open += other.open;
        self.person += other.person;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, person) = self.shares();
        let percent = |tenths: u64| format!("{}.{} %", tenths / 10, tenths % 10);
        write!(f, "{:6} sentences, open {:>6}, person {:>6}", self.sentences, percent(open), percent(person))
    }
}

/// The measures of all crates, and cells of tables that are too long.
#[derive(Debug, Default)]
struct Report {
    crates: BTreeMap<String, Counts>,
    /// File, line and number of words.
    long_cells: Vec<(PathBuf, usize, usize)>,
}

impl Report {
    /// Measures one file as part of the crate `name`.
    fn file(&mut self, name: &str, path: &Path, text: &str, language: Language) {
        let markdown = language == Language::Markdown;
        let counts = self.crates.entry(name.to_owned()).or_default();
        for block in comments::blocks(text, language) {
            if block
                .iter()
                .take(6)
                .any(|(_, row)| row.contains("SPDX-License") || row.contains("Copyright (c)"))
            {
                continue;
            }
            for sentence in sentences::of_block(&block, markdown) {
                counts.add(Counts {
                    sentences: 1,
                    open: sentence.opens().into(),
                    person: sentence.has_person().into(),
                });
            }
            if markdown {
                for (line, row) in block.iter().filter(|(_, row)| row.trim_start().starts_with('|')) {
                    let longest = row.split('|').map(|cell| cell.split_whitespace().count()).max();
                    if let Some(words) = longest.filter(|words| *words > LONGEST_CELL) {
                        self.long_cells.push((path.to_path_buf(), *line, words));
                    }
                }
            }
        }
    }

    fn of_project() -> Result<Self> {
        let root = runner::root();
        let mut report = Self::default();
        for Source { path, package } in sources::all(&root)? {
            let extension = path.extension().and_then(|extension| extension.to_str());
            let Some(language) = extension.and_then(Language::of_extension) else { continue };
            let bytes = std::fs::read(root.join(&path));
            let bytes =
                bytes.map_err(|source| Error::Io { action: "cannot read", path: path.clone(), source })?;
            report.file(&package, &path, &String::from_utf8_lossy(&bytes), language);
        }
        Ok(report)
    }

    fn total(&self) -> Counts {
        total(&self.crates)
    }

    /// Returns a line for each fault.
    fn faults(&self, record: &BTreeMap<String, Counts>) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, counts) in &self.crates {
            let (open, person) = counts.shares();
            let (most_open, most_person) = record.get(name).map_or(NEW_CRATE, |counts| counts.shares());
            for (measure, share, most, hits) in
                [("open", open, most_open, counts.open), ("person", person, most_person, counts.person)]
            {
                // A share of a few sentences means little: one hit is allowed in a new crate.
                if share > most && (hits > 1 || record.contains_key(name)) {
                    let percent = |tenths: u64| format!("{}.{} %", tenths / 10, tenths % 10);
                    faults.push(format!(
                        "{name}: {measure} is {}, at most {} is allowed",
                        percent(share),
                        percent(most)
                    ));
                }
            }
        }
        for (path, line, words) in &self.long_cells {
            let at = path.display();
            faults.push(format!(
                "{at}:{line}: a table cell has {words} words, at most {LONGEST_CELL} are allowed"
            ));
        }
        faults
    }
}

fn total(crates: &BTreeMap<String, Counts>) -> Counts {
    let mut total = Counts::default();
    crates.values().for_each(|counts| total.add(*counts));
    total
}

/// Parses the record.
fn parse(text: &str) -> Result<BTreeMap<String, Counts>> {
    let wrong =
        |line: &str| Error::Format(format!("{RECORD}: \"{line}\" is not `CRATE SENTENCES OPEN PERSON`"));
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, numbers @ ..] = words.as_slice() else { return Err(wrong(line)) };
            let numbers: Vec<u64> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
            match numbers[..] {
                [sentences, open, person] => Ok(((*name).to_owned(), Counts { sentences, open, person })),
                _ => Err(wrong(line)),
            }
        })
        .collect()
}

fn record() -> Result<BTreeMap<String, Counts>> {
    let path = runner::root().join(RECORD);
    let text = std::fs::read_to_string(&path);
    parse(&text.map_err(|source| Error::Io { action: "cannot read", path, source })?)
}

/// Fails if a share of a crate is above the record, or a table's cell is too long.
///
/// # Errors
/// Such a fault exists, or the sources or the record cannot be read.
pub fn judge() -> Result<()> {
    let faults = Report::of_project()?.faults(&record()?);
    faults.iter().for_each(|fault| eprintln!("prose: {fault}"));
    match faults.len() {
        0 => Ok(()),
        number => Err(Error::Program(format!(
            "{number} measures of prose are above their limits: rewrite sentences (`cargo xtask prose`)"
        ))),
    }
}

/// Prints the measures of all crates; records them if `write` is set.
///
/// # Errors
/// As [`judge`]. With `write`: a crate's share rises, and all crates together have more hits than
/// the record. Code that moves to another crate moves its hits too, which leaves the sum unchanged.
pub fn run(write: bool) -> Result<()> {
    let report = Report::of_project()?;
    for (name, counts) in &report.crates {
        println!("{name:20} {counts}");
    }
    println!("{:20} {}", "all", report.total());
    if !write {
        return judge();
    }
    let path = runner::root().join(RECORD);
    if path.exists() {
        let old = record()?;
        let (before, now) = (total(&old), report.total());
        let rises = report.crates.iter().any(|(name, counts)| {
            let most = old.get(name).map_or(NEW_CRATE, |counts| counts.shares());
            counts.shares().0 > most.0 || counts.shares().1 > most.1
        });
        if rises && (now.open > before.open || now.person > before.person) {
            return Err(Error::Program(format!(
                "not recorded: {} and {} hits of open and person were {} and {}",
                now.open, now.person, before.open, before.person
            )));
        }
    }
    let mut text = String::from("# crate, sentences, hits of open and person: `cargo xtask prose --write`\n");
    for (name, Counts { sentences, open, person }) in &report.crates {
        text += &format!("{name} {sentences} {open} {person}\n");
    }
    std::fs::write(&path, text).map_err(|source| Error::Io { action: "cannot write", path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_may_fall_but_not_rise() {
        let mut report = Report::default();
        report.file("old", Path::new("a.rs"), "// Who asks?\n// A slot is free.\n", Language::Rust);
        report.file("new", Path::new("b.md"), "Who asks?\n", Language::Markdown);
        let record = parse("# comment\nold 4 2 2\n").expect("a record");
        assert_eq!(report.faults(&record), Vec::<String>::new());
        let record = parse("old 1000 499 500\n").expect("a record");
        assert_eq!(report.faults(&record), ["old: open is 50.0 %, at most 49.9 % is allowed"]);
        assert!(parse("old 1 2\n").is_err());
    }

    #[test]
    fn long_cells_of_tables_are_faults() {
        let mut report = Report::default();
        let table = format!("| a | b |\n|---|---|\n| {} | short |\n", "word ".repeat(LONGEST_CELL + 1));
        report.file("k", Path::new("k.md"), &table, Language::Markdown);
        let faults = report.faults(&BTreeMap::new());
        assert_eq!(faults, ["k.md:3: a table cell has 26 words, at most 25 are allowed"]);
    }
}
