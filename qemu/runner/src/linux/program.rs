//! Programs of this project for Linux guests: C linked to Debian's verbs libraries, compiled by
//! this machine's compiler.

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

/// Builds the example `name` of the package `package` of this workspace. Linked statically, so that
/// it runs in every guest. Uses the profile of the tests, because their build has compiled the
/// dependencies.
///
/// # Errors
/// [`Error::Program`] with the compiler's messages.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    build(&["--package", package, "--example", name])
}

/// Builds the program `name` of the package `package` like [`example`].
///
/// # Errors
/// As [`example`].
pub fn binary(package: &str, name: &str) -> Result<PathBuf> {
    build(&["--package", package, "--bin", name])
}

fn build(what: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["rustc", "--quiet"]).args(what);
    command.args(["--message-format=json-render-diagnostics", "--", "-Ctarget-feature=+crt-static"]);
    command.current_dir(crate::cache::root()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let result = command.output().map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    // Cargo prints the requested executable last.
    let lines = String::from_utf8_lossy(&result.stdout).into_owned();
    let built = lines.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    match built {
        Some(path) if result.status.success() => Ok(path),
        _ => Err(Error::Program(format!("`cargo rustc {}` fails", what.join(" ")))),
    }
}

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
