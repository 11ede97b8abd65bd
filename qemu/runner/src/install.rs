//! `cargo xtask install`: the C library as other programs build against it.

use crate::cache;
use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The C library's folder in the project.
const SOURCES: &str = "dat-nostd/capi";
/// The shared library's file, and the names by which programs find it: at start, and when they are linked.
const SHARED: &str = "libdat.so.1.0.2";
const SONAME: &str = "libdat.so.1";
const LINK_NAME: &str = "libdat.so";

/// What a program that links the static library needs beside it.
pub const STATIC_NEEDS: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { action, path: path.into(), source }
}

/// Makes the shared library of the static one: `libdat.so.1` with the symbol versions that programs were linked with elsewhere.
/// `sources` is the C library's folder; the file and its names are made in `folder`.
///
/// # Errors
/// There is no C compiler, or it fails.
pub fn shared_library(archive: &Path, sources: &Path, folder: &Path) -> Result<()> {
    let output = Command::new("cc")
        .args(["-shared", "-Wl,-soname,libdat.so.1", "-o"])
        .arg(folder.join(SHARED))
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .arg(format!("-Wl,--version-script={}", sources.join("libdat.map").display()))
        // Its thread outlives every close: it must not be unloaded.
        .args(["-Wl,--gc-sections", "-Wl,-z,nodelete"])
        .args(STATIC_NEEDS)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Missing {
            what: format!("cannot start cc: {error}"),
            remedy: "install gcc and libc6-dev".into(),
        })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Program(format!("{SHARED} does not link: {}", text.trim())));
    }
    for (name, target) in [(SONAME, SHARED), (LINK_NAME, SONAME)] {
        let name = folder.join(name);
        let _ = fs::remove_file(&name);
        std::os::unix::fs::symlink(target, &name).map_err(io("cannot make", &name))?;
    }
    Ok(())
}

/// Builds the C library for release and installs it below `prefix`: headers, libraries, pkg-config's file, manual pages. What it says is
/// where.
///
/// # Errors
/// It does not build, or files cannot be written.
pub fn install(prefix: &Path) -> Result<Vec<PathBuf>> {
    let status = Command::new("cargo")
        .current_dir(cache::root())
        .args(["build", "--release", "--package", "dat-capi"])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    if !status.success() {
        return Err(Error::Program("the C library does not build".into()));
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| cache::root().join("target"), PathBuf::from);
    install_built(&target.join("release/libdat.a"), &cache::root().join(SOURCES), prefix)
}

/// The same of a static library that is built.
///
/// # Errors
/// Files cannot be written.
pub fn install_built(archive: &Path, sources: &Path, prefix: &Path) -> Result<Vec<PathBuf>> {
    let prefix = &std::path::absolute(prefix).map_err(io("cannot find", prefix))?;
    let libraries = prefix.join("lib");
    let folders = [
        (sources.join("include/dat"), prefix.join("include/dat")),
        (sources.join("include/dat2"), prefix.join("include/dat2")),
        (sources.join("man/man3"), prefix.join("share/man/man3")),
    ];
    for (from, to) in folders.iter().filter(|(from, _)| from.is_dir()) {
        fs::create_dir_all(to).map_err(io("cannot make", to))?;
        for entry in fs::read_dir(from).map_err(io("cannot read", from))? {
            let entry = entry.map_err(io("cannot read", from))?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    let pkg_config = libraries.join("pkgconfig");
    fs::create_dir_all(&pkg_config).map_err(io("cannot make", &pkg_config))?;
    copy(archive, &libraries.join("libdat.a"))?;
    shared_library(archive, sources, &libraries)?;
    let template = sources.join("dat.pc.in");
    let text = fs::read_to_string(&template).map_err(io("cannot read", &template))?;
    let text = text
        .replace("@PREFIX@", &prefix.display().to_string())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let file = pkg_config.join("dat.pc");
    fs::write(&file, text).map_err(io("cannot write", &file))?;
    Ok(vec![prefix.join("include/dat"), libraries.join(LINK_NAME), libraries.join("libdat.a"), file])
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).map_err(io("cannot write", to))
}
