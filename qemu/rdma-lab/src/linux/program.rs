//! C programs for Linux guests, linked to Debian's verbs libraries and compiled by this machine's
//! compiler.

use crate::debian::{self, Packages};
use crate::error::{Error, IoContext, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packages of the C library and the verbs libraries, with headers. Debian 12's are used on every
/// machine, because the programs run in later releases too.
const PACKAGES: Packages<'static> = Packages {
    suites: &["bookworm"],
    release: None,
    names: &["libc6-dev", "libibverbs-dev", "librdmacm-dev"],
};

/// Cache entry of these packages.
const ENTRY: &str = "linux-dev-bookworm-1";

/// Remedy if the packages are unavailable.
const REMEDY: &str =
    "programs for Linux guests need Debian on x86-64, root, the network (package mmdebstrap) and gcc";

/// Compiles the C file `source` into `folder`. The program has the file's name without ".c".
///
/// # Errors
/// - [`Error::Missing`]: the compiler or Debian packages are unavailable.
/// - [`Error::Program`]: the source has errors; contains the compiler's messages.
pub fn compile(source: &Path, folder: &Path) -> Result<PathBuf> {
    let name = source.file_stem().unwrap_or_default();
    let output = folder.join(name);
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::Missing { what: "this machine is not x86-64".into(), remedy: REMEDY.into() });
    }
    let tree = debian::tree(ENTRY, &PACKAGES, REMEDY)?;
    source.metadata().context("cannot read", source)?;
    debian::ensure_installed("gcc", "gcc")
        .map_err(|error| Error::Missing { what: error.to_string(), remedy: REMEDY.into() })?;
    let mut command = Command::new("gcc");
    let mut sysroot = std::ffi::OsString::from("--sysroot=");
    sysroot.push(&tree);
    command.arg(sysroot);
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&output).arg(source);
    for folder in ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
        let mut option = std::ffi::OsString::from("-Wl,-rpath-link,");
        option.push(tree.join(folder));
        command.arg(option);
    }
    command.args(["-libverbs", "-lrdmacm", "-lpthread"]);
    let result = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Program(format!("cannot start gcc: {error}")))?;
    if result.status.success() {
        Ok(output)
    } else {
        let messages = String::from_utf8_lossy(&result.stderr);
        Err(Error::Program(format!("{} does not compile:\n{messages}", source.display())))
    }
}
