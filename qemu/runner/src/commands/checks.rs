//! `test`, `ci`, `docs`, `graph` and `prose`: what a change has to pass.

use crate::levels::{self, Level};
use crate::{cargo, ci, setup};
use hca_serve::product::options::{Argument, Value};
use rdma_lab::command_line::{Command, Host};
use rdma_lab::process::Supervised;
use rdma_lab::{Error, Result};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time limit of a check, with its compilation.
const CHECK_LIMIT: Duration = Duration::from_secs(3600);

/// `test`: levels of tests.
pub(super) struct Test {
    levels: Vec<Level>,
    long: bool,
}

impl Command for Test {
    const NAME: &'static str = "test";
    const ARGUMENTS: &'static str = "[LEVEL]... [--long]";
    const SUMMARY: &'static str =
        "the tests; without LEVEL all that need no more than a Rust toolchain and QEMU";

    fn new() -> Self {
        Self { levels: Vec::new(), long: false }
    }

    fn table() -> Vec<Argument<Self>> {
        let levels = format!("{}: these only", levels::names());
        vec![
            Argument::word("LEVEL", &levels, |test: &mut Self, value: Value| {
                test.levels.push(value.parse()?);
                Ok(())
            }),
            Argument::flag("--long", "full lengths", |test: &mut Self| test.long = true),
        ]
    }

    fn run(mut self, _: &Host) -> Result<ExitCode> {
        if self.levels.is_empty() {
            self.levels.extend(levels::DEFAULT);
        }
        levels::test(&self.levels, self.long)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `ci`: everything.
pub(super) struct Ci;

impl Command for Ci {
    const NAME: &'static str = "ci";
    const ARGUMENTS: &'static str = "";
    const SUMMARY: &'static str = "all that a change has to pass: lint, bench, Miri, the tests";

    fn new() -> Self {
        Self
    }

    fn table() -> Vec<Argument<Self>> {
        Vec::new()
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        ci::run()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs a check of the crate `checks`. Its dependencies would double the time that `cargo xtask`
/// takes to compile, so that it is a program of its own.
fn call(check: &str, arguments: impl IntoIterator<Item = String>) -> Result<ExitCode> {
    let mut command = cargo::command();
    command.args(["run", "--quiet", "--package", "checks", "--", check]).args(arguments);
    let mut child = Supervised::spawn(command)?;
    let status = child.wait_until(Instant::now() + CHECK_LIMIT)?;
    let status =
        status.ok_or_else(|| Error::Timeout { what: format!("no end of {check}"), limit: CHECK_LIMIT })?;
    // The check has printed what is wrong.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// `docs`: the site of the documentation.
pub(super) struct Docs;

impl Command for Docs {
    const NAME: &'static str = "docs";
    const ARGUMENTS: &'static str = "";
    const SUMMARY: &'static str =
        "the guides and the API as one site, target/docs/index.html, without a broken link";

    fn new() -> Self {
        Self
    }

    fn table() -> Vec<Argument<Self>> {
        Vec::new()
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        setup::rust_targets()?;
        call("docs", [])
    }
}

/// `graph`: import circles.
pub(super) struct Circles {
    files: Vec<String>,
}

impl Command for Circles {
    const NAME: &'static str = "graph";
    const ARGUMENTS: &'static str = "[FILE]...";
    const SUMMARY: &'static str = "the import circles among the source files of each crate";

    fn new() -> Self {
        Self { files: Vec::new() }
    }

    fn table() -> Vec<Argument<Self>> {
        vec![Argument::word(
            "FILE",
            "in place of that what these files use and are used by, as in ep/mod.rs",
            |circles: &mut Self, value| {
                circles.files.push(value.text()?);
                Ok(())
            },
        )]
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        call("graph", self.files)
    }
}

/// `prose`: the ratchet for words.
pub(super) struct Prose {
    write: bool,
    /// Commit whose successors' lines alone are measured.
    base: Option<String>,
}

impl Command for Prose {
    const NAME: &'static str = "prose";
    const ARGUMENTS: &'static str = "[--write | --diff COMMIT]";
    const SUMMARY: &'static str =
        "shares of sentences that are hard to read, by crate, against the recorded ones";

    fn new() -> Self {
        Self { write: false, base: None }
    }

    fn table() -> Vec<Argument<Self>> {
        let write = "records them; refused if the whole project has more";
        vec![
            Argument::flag("--write", write, |prose: &mut Self| prose.write = true),
            Argument::value(
                "--diff COMMIT",
                "lists such sentences on lines added since the commit instead; 5 % and 2 % are allowed",
                |prose: &mut Self, value: Value| {
                    prose.base = Some(value.text()?);
                    Ok(())
                },
            ),
        ]
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        let diff = self.base.into_iter().flat_map(|base| ["--diff".to_owned(), base]);
        call("prose", self.write.then(|| "--write".to_owned()).into_iter().chain(diff))
    }
}
