//! The commands of `cargo xtask`, including those of `rdma-lab` with the project's own unikernel.

mod bench;
mod checks;
mod demo;
mod install;
mod profile;

use crate::kernel_image;
use crate::setup;
use rdma_lab::command_line::{Entry, Host, OwnImage, Section, for_users};
use rdma_lab::{Error, Result};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// The program.
pub const HOST: Host =
    Host { name: "cargo xtask", own_image: Some(OwnImage { build: build_image, words: "app=hello" }) };

fn build_image() -> Result<PathBuf> {
    setup::rust_targets()?;
    kernel_image::build()
}

/// Returns all commands.
#[must_use]
pub fn sections() -> [Section; 3] {
    let qemu = Entry::verbatim("qemu", "QEMU with vfio-user-pci; all arguments are QEMU's", run_qemu);
    let own = vec![
        Entry::of::<demo::Demonstrate>(),
        Entry::of::<install::Install>(),
        Entry::of::<profile::MakeProfile>(),
        checks::docs(),
        Entry::of::<install::SetUp>(),
        qemu,
    ];
    let developers = vec![
        Entry::of::<checks::Test>(),
        Entry::of::<bench::Measure>(),
        Entry::of::<checks::Ci>(),
        checks::graph(),
        checks::prose(),
    ];
    [
        ("this project", own),
        ("rdma-lab, with this project's unikernel", for_users()),
        ("for developers of this project", developers),
    ]
}

fn run_qemu(mut arguments: lexopt::Parser) -> Result<ExitCode> {
    let qemu = setup::qemu()?;
    let words = arguments.raw_args().map_err(|error| Error::Usage(error.to_string()))?;
    let error = qemu.command().args(words).exec();
    Err(Error::Program(format!("cannot start QEMU: {error}")))
}
