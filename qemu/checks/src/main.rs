//! The checks as a program: `cargo run --package checks -- CHECK`.

use checks::{Error, Result, docs, graph, prose};
use lexopt::prelude::*;
use std::process::ExitCode;

/// Checks and their arguments.
const USAGE: &str = "graph [FILE]..., prose [--write | --diff COMMIT], docs, lint";

fn main() -> ExitCode {
    match run(lexopt::Parser::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("checks: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn usage(error: lexopt::Error) -> Error {
    Error::Usage(format!("{error}; there are {USAGE}"))
}

fn run(mut arguments: lexopt::Parser) -> Result<()> {
    let Some(Value(check)) = arguments.next().map_err(usage)? else {
        return Err(Error::Usage(format!("a check is missing; there are {USAGE}")));
    };
    let (mut files, mut write, mut base) = (Vec::new(), false, None);
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Value(file) if check == "graph" => files.push(file.string().map_err(usage)?),
            Long("write") if check == "prose" => write = true,
            Long("diff") if check == "prose" => {
                base = Some(arguments.value().and_then(ValueExt::string).map_err(usage)?);
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    match check.to_str() {
        Some("prose") if base.is_some() => prose::diff::run(base.as_deref().unwrap_or_default()),
        Some("graph") => graph::print(&files),
        Some("prose") => prose::run(write),
        Some("docs") => docs::build().map(|page| println!("{}", page.display())),
        Some("lint") => lint(),
        _ => Err(Error::Usage(format!("unknown check {}; there are {USAGE}", check.display()))),
    }
}

/// Runs the checks that need nothing but sources. A failed one does not keep the others from running.
fn lint() -> Result<()> {
    let results = [
        ("import circles", graph::Graph::of_project().and_then(|graph| graph.judge())),
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
    if failed.is_empty() { Ok(()) } else { Err(Error::Failed(format!("failed: {}", failed.join(", ")))) }
}
