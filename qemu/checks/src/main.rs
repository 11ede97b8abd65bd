//! The checks as commands of `cargo xtask`, which calls this program with its arguments.

use checks::{docs, fields, graph, prose};
use hca_serve::product::options::{Argument, Value};
use rdma_lab::command_line::{self, Command, Entry, Host};
use rdma_lab::{Error, Result};
use std::process::ExitCode;

fn main() -> ExitCode {
    let commands =
        vec![Entry::of::<Docs>(), Entry::of::<Circles>(), Entry::of::<Prose>(), Entry::of::<Lint>()];
    command_line::main(&Host { name: "cargo xtask", own_image: None }, &[("checks", commands)])
}

/// `docs`: the site of the documentation.
#[derive(Default)]
struct Docs;

impl Command for Docs {
    const NAME: &'static str = "docs";
    const ARGUMENTS: &'static str = "";
    const SUMMARY: &'static str =
        "the guides and the API as one site, target/docs/index.html, without a broken link";

    fn run(self, _: &Host) -> Result<ExitCode> {
        runner::setup::rust_targets()?;
        println!("{}", docs::build()?.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// `graph`: import circles.
#[derive(Default)]
struct Circles {
    files: Vec<String>,
}

impl Command for Circles {
    const NAME: &'static str = "graph";
    const ARGUMENTS: &'static str = "[FILE]...";
    const SUMMARY: &'static str = "the import circles among the source files of each crate";

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
        graph::print(&self.files)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `prose`: the ratchet for words.
#[derive(Default)]
struct Prose {
    write: bool,
    /// Commit whose successors' lines alone are measured.
    base: Option<String>,
}

impl Command for Prose {
    const NAME: &'static str = "prose";
    const ARGUMENTS: &'static str = "[--write | --diff COMMIT]";
    const SUMMARY: &'static str =
        "shares of sentences that are hard to read, by crate, against the recorded ones";

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
        match self.base {
            Some(base) => prose::diff::run(&base)?,
            None => prose::run(self.write)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `lint`: the checks that need nothing but sources.
#[derive(Default)]
struct Lint;

impl Command for Lint {
    const NAME: &'static str = "lint";
    const ARGUMENTS: &'static str = "";
    const SUMMARY: &'static str = "import circles, visible fields and prose, for `cargo xtask test lint`";

    /// A failed check does not keep the others from running.
    fn run(self, _: &Host) -> Result<ExitCode> {
        let results = [
            ("import circles", graph::Graph::of_project().and_then(|graph| graph.judge())),
            ("visible fields", fields::judge()),
            ("prose", prose::judge()),
        ];
        let mut failed = Vec::new();
        for (name, result) in results {
            match result {
                Ok(()) => println!("checks: {name}: passed"),
                Err(error) => {
                    eprintln!("checks: {name}: {error}");
                    failed.push(name);
                }
            }
        }
        match failed.as_slice() {
            [] => Ok(ExitCode::SUCCESS),
            names => Err(Error::Program(format!("failed: {}", names.join(", ")))),
        }
    }
}
