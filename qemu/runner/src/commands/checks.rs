//! `test`, `ci`, `docs`, `graph` and `prose`: what a change has to pass.

use crate::levels::{self, Level};
use crate::{cargo, ci};
use hca_serve::product::options::{Argument, Value};
use rdma_lab::command_line::{Command, Entry, Host};
use rdma_lab::process::Supervised;
use rdma_lab::{Error, Result};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time limit of a check, with its compilation.
const CHECK_LIMIT: Duration = Duration::from_secs(3600);

/// `test`: levels of tests.
#[derive(Default)]
pub(super) struct Test {
    levels: Vec<Level>,
    long: bool,
}

impl Command for Test {
    const NAME: &'static str = "test";
    const ARGUMENTS: &'static str = "[LEVEL]... [--long]";
    const SUMMARY: &'static str =
        "the tests; without LEVEL all that need no more than a Rust toolchain and QEMU";

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
#[derive(Default)]
pub(super) struct Ci;

impl Command for Ci {
    const NAME: &'static str = "ci";
    const ARGUMENTS: &'static str = "";
    const SUMMARY: &'static str = "all that a change has to pass: lint, bench, Miri, the tests";

    fn run(self, _: &Host) -> Result<ExitCode> {
        ci::run()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs a command of the crate `checks`, which has its options and help. Its dependencies would
/// double the time that `cargo xtask` takes to compile, so that it is a program of its own.
fn call(check: &str, mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let arguments = arguments.raw_args().map_err(|error| Error::Usage(error.to_string()))?;
    let mut command = cargo::command();
    command.args(["run", "--quiet", "--package", "checks", "--", check]).args(arguments);
    let mut child = Supervised::spawn(command)?;
    let status = child.wait_until(Instant::now() + CHECK_LIMIT)?;
    let status =
        status.ok_or_else(|| Error::Timeout { what: format!("no end of {check}"), limit: CHECK_LIMIT })?;
    // The check has printed what is wrong.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns `docs`: the site of the documentation.
pub(super) fn docs() -> Entry {
    let summary = "the guides and the API as one site, target/docs/index.html";
    Entry::verbatim("docs", summary, |arguments| call("docs", arguments))
}

/// Returns `graph`: import circles.
pub(super) fn graph() -> Entry {
    let summary = "the import circles among the source files of each crate";
    Entry::verbatim("graph", summary, |arguments| call("graph", arguments))
}

/// Returns `prose`: the ratchet for words.
pub(super) fn prose() -> Entry {
    let summary = "shares of sentences that are hard to read, by crate, against the recorded ones";
    Entry::verbatim("prose", summary, |arguments| call("prose", arguments))
}
