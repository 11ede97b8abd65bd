//! `profile`: from a self-test's dump to a card of the emulated HCA.

use hca_model::measured::{Dump, Measured};
use hca_serve::product::options::Argument;
use rdma_lab::command_line::{Command, Host};
use rdma_lab::error::IoContext;
use rdma_lab::{Error, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The command.
#[derive(Default)]
pub(super) struct MakeProfile {
    dump: Option<PathBuf>,
}

impl Command for MakeProfile {
    const NAME: &'static str = "profile";
    const ARGUMENTS: &'static str = "FILE";
    const SUMMARY: &'static str =
        "a profile for --profile FILE.profile from the output of a self-test with --dump or dump=yes";

    fn table() -> Vec<Argument<Self>> {
        vec![Argument::word("FILE", "the self-test's output", |command: &mut Self, value| {
            command.dump = Some(value.path());
            Ok(())
        })]
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        let path = self.dump.ok_or_else(|| Error::Usage("which dump? FILE".into()))?;
        print!("{}", profile(&path)?);
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the profile of the card whose self-test wrote the file at `path`.
fn profile(path: &Path) -> Result<String> {
    let text = std::fs::read(path).context("cannot read", path)?;
    let measured = Dump::parse(&String::from_utf8_lossy(&text)).and_then(|dump| dump.card());
    let Measured { card, remarks } =
        measured.map_err(|why| Error::Program(format!("{}: {why}", path.display())))?;
    let mut profile = card.to_text();
    for remark in remarks {
        let _ = writeln!(profile, "# {remark}");
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_dump_is_named() {
        let path = std::env::current_exe().expect("a path");
        let error = profile(&path).expect_err("no dump").to_string();
        assert!(error.contains("no @dump lines"), "{error}");
    }
}
