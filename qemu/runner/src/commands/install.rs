//! `install` and `setup`.

use crate::{install, setup};
use hca_serve::product::options::Argument;
use rdma_lab::command_line::{Command, Host};
use rdma_lab::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// `install`: the C libraries.
#[derive(Default)]
pub(super) struct Install {
    prefix: Option<PathBuf>,
}

impl Command for Install {
    const NAME: &'static str = "install";
    const ARGUMENTS: &'static str = "--prefix DIR";
    const SUMMARY: &'static str =
        "libdat and librds for C programs: headers, libraries, manual pages, files of pkg-config";

    fn table() -> Vec<Argument<Self>> {
        vec![Argument::value(
            "--prefix DIR",
            "below which they go: include, lib, share/man/man3",
            |install: &mut Self, value| {
                install.prefix = Some(value.path());
                Ok(())
            },
        )]
    }

    fn run(self, _: &Host) -> Result<ExitCode> {
        let prefix = self.prefix.ok_or_else(|| Error::Usage("where to? --prefix DIR".into()))?;
        install::install(&prefix)?.iter().for_each(|path| println!("{}", path.display()));
        Ok(ExitCode::SUCCESS)
    }
}

/// `setup`: what the other commands need.
#[derive(Default)]
pub(super) struct SetUp;

impl Command for SetUp {
    const NAME: &'static str = "setup";
    const ARGUMENTS: &'static str = "";
    const SUMMARY: &'static str = "what the others do first: Rust targets, QEMU";

    fn run(self, _: &Host) -> Result<ExitCode> {
        let qemu = setup::all()?;
        println!("{}\n{}", qemu.version, qemu.words().join(" "));
        Ok(ExitCode::SUCCESS)
    }
}
