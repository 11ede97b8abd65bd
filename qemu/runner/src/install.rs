//! `cargo xtask install`: installs the C libraries for programs outside the project.

use crate::cargo;
use crate::kernel_image::{TARGET, UEFI_TARGET};
use rdma_lab::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A library for C programs.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Link name: programs link with `-lNAME` and load `libNAME.so.1`.
    pub name: &'static str,
    /// Package that builds `libNAME.a`.
    pub package: &'static str,
    /// The package's directory in the project: headers in `include`, manual pages in `man`,
    /// `NAME.pc.in`, and symbol versions in `libNAME.map`.
    pub folder: &'static str,
    /// Version of the shared library's file `libNAME.so.VERSION`. Begins with 1.
    version: &'static str,
}

/// DAT 1.2, with the symbol versions of other DAT libraries, so that existing programs load it.
pub const DAT: Library =
    Library { name: "dat", package: "dat-capi", folder: "dat-nostd/capi", version: "1.0.2" };
/// Reliable Datagram Sockets.
pub const RDS: Library =
    Library { name: "rds", package: "rds-capi", folder: "rds-nostd/capi", version: "1.0.0" };

/// Linker arguments for programs that link a static library.
pub const STATIC_NEEDS: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

impl Library {
    /// Returns the file name of the static library.
    #[must_use]
    pub fn archive(&self) -> String {
        format!("lib{}.a", self.name)
    }

    /// Returns the SONAME of the shared library.
    #[must_use]
    pub fn soname(&self) -> String {
        format!("lib{}.so.1", self.name)
    }
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { action, path: path.into(), source }
}

/// Links the shared library from the static one. `sources` is the package's directory; the file and
/// its links are created in `folder`.
///
/// # Errors
/// The C compiler is missing or fails.
pub fn shared_library(library: &Library, archive: &Path, sources: &Path, folder: &Path) -> Result<()> {
    let Library { name, version, .. } = library;
    let file = format!("lib{name}.so.{version}");
    let output = Command::new("cc")
        .args(["-shared", &format!("-Wl,-soname,{}", library.soname()), "-o"])
        .arg(folder.join(&file))
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .arg(format!("-Wl,--version-script={}", sources.join(format!("lib{name}.map")).display()))
        // The library's thread outlives every close, so the library must not be unloaded.
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
        return Err(Error::Program(format!("{file} does not link: {}", text.trim())));
    }
    let soname = library.soname();
    for (name, target) in [(&soname, &file), (&format!("lib{name}.so"), &soname)] {
        let name = folder.join(name);
        let _ = fs::remove_file(&name);
        std::os::unix::fs::symlink(target, &name).map_err(io("cannot make", &name))?;
    }
    Ok(())
}

/// Builds the C libraries for release and installs them below `prefix`: headers, libraries,
/// pkg-config files and manual pages. Returns their paths.
///
/// # Errors
/// A build fails, or files cannot be written.
pub fn install(prefix: &Path) -> Result<Vec<PathBuf>> {
    let mut installed = Vec::new();
    for library in [DAT, RDS] {
        build(&["--package", library.package])?;
        let archive = target_folder().join("release").join(library.archive());
        installed.extend(install_built(&library, &archive, &cargo::root().join(library.folder), prefix)?);
    }
    let archive = firmware_library()?;
    let prefix = &std::path::absolute(prefix).map_err(io("cannot find", prefix))?;
    copy_folders(&cargo::root().join(FIRMWARE_FOLDER), prefix)?;
    let library = prefix.join("lib").join(FIRMWARE_ARCHIVE);
    copy(&archive, &library)?;
    installed.extend([prefix.join("include/mlx"), library]);
    Ok(installed)
}

/// Directory of the library for firmware.
pub const FIRMWARE_FOLDER: &str = "rds-nostd/capi/firmware";
const FIRMWARE_ARCHIVE: &str = "libmlx_firmware.a";

/// Builds the static library for firmware and returns its path.
///
/// # Errors
/// The build fails.
pub fn firmware_library() -> Result<PathBuf> {
    build(&["--package", "mlx-firmware", "--target", TARGET])?;
    Ok(target_folder().join(TARGET).join("release").join(FIRMWARE_ARCHIVE))
}

/// Builds the static library for firmware that is linked as COFF, and returns its path.
///
/// # Errors
/// The build fails.
pub fn coff_firmware_library() -> Result<PathBuf> {
    build(&["--package", "mlx-firmware", "--target", UEFI_TARGET])?;
    Ok(target_folder().join(UEFI_TARGET).join("release").join(FIRMWARE_ARCHIVE))
}

/// Builds the cargo arguments `what` in release mode.
fn build(what: &[&str]) -> Result<()> {
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(cargo::root())
        .args(["build", "--release"])
        .args(what)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| Error::Program(format!("cannot start cargo: {error}")))?;
    if status.success() { Ok(()) } else { Err(Error::Program(format!("{} does not build", what.join(" ")))) }
}

fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| cargo::root().join("target"), PathBuf::from)
}

/// Installs one library whose static library has been built.
///
/// # Errors
/// Files cannot be written.
pub fn install_built(
    library: &Library,
    archive: &Path,
    sources: &Path,
    prefix: &Path,
) -> Result<Vec<PathBuf>> {
    let prefix = &std::path::absolute(prefix).map_err(io("cannot find", prefix))?;
    copy_folders(sources, prefix)?;
    let libraries = prefix.join("lib");
    let headers = prefix.join("include");
    let pkg_config = libraries.join("pkgconfig");
    fs::create_dir_all(&pkg_config).map_err(io("cannot make", &pkg_config))?;
    let name = library.name;
    copy(archive, &libraries.join(library.archive()))?;
    shared_library(library, archive, sources, &libraries)?;
    let template = sources.join(format!("{name}.pc.in"));
    let text = fs::read_to_string(&template).map_err(io("cannot read", &template))?;
    let text = text
        .replace("@PREFIX@", &prefix.display().to_string())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let file = pkg_config.join(format!("{name}.pc"));
    fs::write(&file, text).map_err(io("cannot write", &file))?;
    let shared = libraries.join(format!("lib{name}.so"));
    Ok(vec![headers.join(name), shared, libraries.join(library.archive()), file])
}

/// Copies headers and manual pages.
fn copy_folders(sources: &Path, prefix: &Path) -> Result<()> {
    let mut folders = vec![(sources.join("man/man3"), prefix.join("share/man/man3"))];
    for entry in fs::read_dir(sources.join("include")).map_err(io("cannot read", sources))? {
        let entry = entry.map_err(io("cannot read", sources))?;
        folders.push((entry.path(), prefix.join("include").join(entry.file_name())));
    }
    for (from, to) in folders.iter().filter(|(from, _)| from.is_dir()) {
        fs::create_dir_all(to).map_err(io("cannot make", to))?;
        for entry in fs::read_dir(from).map_err(io("cannot read", from))? {
            let entry = entry.map_err(io("cannot read", from))?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).map_err(io("cannot write", to))
}
