//! Unpacks Debian packages by name into a directory, without installing them.

mod mirror;

use crate::cache;
use crate::error::{Error, IoContext, Result};
use crate::process::{Supervised, Temporary};
use crate::progress::Progress;
use mirror::{Host, MIRROR_VARIABLE, host, mirror_of, no_mirror};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Packages to unpack, with all their dependencies.
#[derive(Debug, Clone)]
pub struct Packages<'a> {
    /// Suites to take the packages from, such as "trixie". A later suite takes precedence only
    /// if `release` names it.
    pub suites: &'a [&'a str],
    /// Suite that wins if several have a package.
    pub release: Option<&'a str>,
    /// Package names or apt patterns.
    pub names: &'a [&'a str],
}

/// Time limit of an unpacking, including downloads of some 100 MB.
const UNPACK_LIMIT: Duration = Duration::from_secs(900);

/// Returns the address of the Debian mirror that packages are taken from.
///
/// # Errors
/// [`Error::Missing`] says how to name one.
pub fn mirror() -> Result<String> {
    let host = host();
    mirror_of(host).ok_or_else(|| {
        let remedy = format!("set {MIRROR_VARIABLE}");
        Error::Missing { what: no_mirror(host), remedy }
    })
}

/// Returns a tree with `packages` unpacked, from the cache if it is there.
///
/// # Errors
/// [`Error::Missing`] says what to install if this machine cannot unpack Debian packages; `remedy`
/// is an alternative for the user.
pub fn tree(name: &str, packages: &Packages<'_>, remedy: &str) -> Result<PathBuf> {
    cache::entry(name, |path| unpack(path, packages, remedy))
}

/// Unpacks `packages` into the new directory `into`.
///
/// # Errors
/// As [`tree`].
pub fn unpack(into: &Path, packages: &Packages<'_>, remedy: &str) -> Result<()> {
    let missing = |what: String| Error::Missing { what, remedy: remedy.into() };
    let host = host();
    if host == Host::Other {
        return Err(missing("this machine runs neither Debian nor Ubuntu".into()));
    }
    // Only root can create files with foreign owners. Other users get an archive and unpack it as
    // their own files.
    let archive =
        (!rustix::process::geteuid().is_root()).then(|| PathBuf::from(format!("{}.tar", into.display())));
    ensure_installed("mmdebstrap", "mmdebstrap")
        .map_err(|error| missing(format!("{error}; install the package mmdebstrap")))?;
    let mirror = mirror_of(host).ok_or_else(|| missing(no_mirror(host)))?;
    // Systems other than Debian do not trust Debian's keys by default.
    let signed = if host == Host::Debian {
        String::new()
    } else {
        format!("[signed-by={}] ", keyring().map_err(missing)?)
    };
    let output = archive.as_deref().unwrap_or(into);
    let source = format!("{signed}{mirror}");
    let mut command = Command::new("mmdebstrap");
    command.args(arguments(packages, &source, &host_apt_options(), archive.is_some(), output));
    let what = format!("unpacking {}", packages.names.join(" "));
    let archive = archive.clone().map(Temporary::adopt);
    run_with_progress(command, &what, output).map_err(|error| missing(error.to_string()))?;
    archive.map_or(Ok(()), |archive| extract(archive.path(), into))
}

/// Returns the arguments for mmdebstrap, which writes `deb SOURCE SUITE main`. Packages are only
/// unpacked, so that an unprivileged user needs neither a chroot nor namespaces.
fn arguments(
    packages: &Packages<'_>,
    source: &str,
    apt_options: &[String],
    archive: bool,
    output: &Path,
) -> Vec<OsString> {
    let mut words = vec!["--variant=extract".to_owned()];
    if archive {
        words.extend(["--mode=chrootless".to_owned(), "--format=tar".to_owned()]);
    } else {
        words.push("--format=directory".to_owned());
    }
    words.push(format!("--include={}", packages.names.join(",")));
    words.extend(packages.release.map(|release| format!("--aptopt=APT::Default-Release \"{release}\"")));
    words.extend(apt_options.iter().map(|option| format!("--aptopt={option}")));
    words.push(String::new());
    let mut arguments: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    arguments.push(output.into());
    arguments.extend(packages.suites.iter().map(|suite| format!("deb {source} {suite} main").into()));
    arguments
}

/// Unpacks an archive of packages into the new directory `into`, owned by the calling user and
/// without devices.
fn extract(archive: &Path, into: &Path) -> Result<()> {
    std::fs::create_dir_all(into).context("cannot create", into)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--no-same-owner", "--exclude=./dev/*", "--file"]);
    tar.arg(archive).arg("--directory").arg(into);
    run_with_progress(tar, "unpacking the archive", into)
}

/// Installs the package if `program` is missing. The caller explains the error to the user.
///
/// # Errors
/// `program` is missing and cannot be installed.
pub fn ensure_installed(program: &str, package: &str) -> Result<()> {
    if find_program(program).is_some() {
        return Ok(());
    }
    if host() == Host::Other || !rustix::process::geteuid().is_root() {
        return Err(Error::Program(format!("{program} is not installed")));
    }
    install(package)?;
    find_program(program)
        .map(|_| ())
        .ok_or_else(|| Error::Program(format!("{package} was installed but {program} is not there")))
}

/// Installs a package. The caller is root.
fn install(package: &str) -> Result<()> {
    let mut update = Command::new("apt-get");
    update.args(["update", "-q"]).env("DEBIAN_FRONTEND", "noninteractive");
    run_with_progress(update, "apt-get update", Path::new("/var/lib/apt/lists"))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "-q", "-y", "--no-install-recommends", package]);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    run_with_progress(install, &format!("apt-get install {package}"), Path::new("/var/cache/apt/archives"))
}

/// Returns the path of `program`, found by `PATH`.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns the path of the keys that sign Debian's archive.
fn keyring() -> std::result::Result<String, String> {
    const FILE: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    const PACKAGE: &str = "debian-archive-keyring";
    if !Path::new(FILE).is_file() && rustix::process::geteuid().is_root() {
        install(PACKAGE).map_err(|error| error.to_string())?;
    }
    if Path::new(FILE).is_file() {
        Ok(FILE.into())
    } else {
        Err(format!("no {FILE}: install the package {PACKAGE}"))
    }
}

/// Returns the machine's own apt options for the network: proxies and validity checks.
fn host_apt_options() -> Vec<String> {
    let Ok(output) = Command::new("apt-config").arg("dump").output() else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| {
            ["Acquire::http::", "Acquire::https::", "Acquire::Check-"]
                .iter()
                .any(|wanted| line.starts_with(wanted))
                && !line.ends_with("\"\";")
        })
        .map(|line| line.trim_end_matches(';').to_owned())
        .collect()
}

/// Runs `command` and shows progress. The error contains the first complaint in its output.
fn run_with_progress(mut command: Command, what: &str, growing: &Path) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = Supervised::spawn(command)?;
    let (sender, lines) = mpsc::channel();
    let streams = child.streams();
    let readers: [Option<Box<dyn std::io::Read + Send>>; 2] = [
        streams.stdout.take().map(|stream| Box::new(stream) as _),
        streams.stderr.take().map(|stream| Box::new(stream) as _),
    ];
    for reader in readers.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).split(b'\n').map_while(std::result::Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut progress = Progress::start(what);
    let started = Instant::now();
    let mut errors: Vec<String> = Vec::new();
    let mut last = None;
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => {
                let line = line.trim().to_owned();
                if let Some(stage) = line.strip_prefix("I: ") {
                    progress.stage(stage);
                }
                if line.starts_with("E: ") || line.starts_with("Err:") {
                    errors.push(line.clone());
                }
                if !line.is_empty() {
                    last = Some(line);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => progress.alive(folder_bytes(growing)),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        if started.elapsed() > UNPACK_LIMIT {
            child.kill();
            return Err(Error::Timeout { what: format!("{what}: not finished"), limit: UNPACK_LIMIT });
        }
    }
    let deadline = started + UNPACK_LIMIT;
    match child.wait_until(deadline)? {
        Some(status) if status.success() => {
            progress.done();
            Ok(())
        }
        Some(status) => {
            // The first complaint is the cause; later ones follow from it.
            let reason = errors.first().or(last.as_ref()).cloned().unwrap_or_default();
            Err(Error::Program(format!("{program} failed ({status}) while {what}: {reason}")))
        }
        None => Err(Error::Timeout { what: format!("{what}: not finished"), limit: UNPACK_LIMIT }),
    }
}

/// Returns the bytes of all files below `folder`. Concurrent changes do not matter.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => folder_bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Returns the directories of a tree's shared libraries and loader, in Debian's multiarch form for
/// this machine.
///
/// # Errors
/// The tool does not support this machine's architecture.
fn library_folder(tree: &Path) -> Result<(PathBuf, PathBuf)> {
    let (triple, loader) = match std::env::consts::ARCH {
        "x86_64" => ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
        "aarch64" => ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
        other => return Err(Error::Format(format!("no Debian tree for the architecture {other}"))),
    };
    // Up to bookworm, packages have /lib in addition to /usr/lib.
    let loader = [tree.join("usr/lib").join(triple), tree.join("lib").join(triple)]
        .into_iter()
        .map(|folder| folder.join(loader))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Format(format!("no program loader in {}", tree.display())))?;
    Ok((loader, tree.join("usr/lib").join(triple)))
}

/// Returns a command that runs `program` (a path inside the tree) with the tree's own loader and
/// libraries. It does not depend on this machine's C library.
///
/// # Errors
/// The tree has no loader.
pub fn command_in(tree: &Path, program: &str) -> Result<Command> {
    let (loader, libraries) = library_folder(tree)?;
    let mut command = Command::new(&loader);
    let mut path = libraries.into_os_string();
    if let Some(folder) = loader.parent() {
        path.push(":");
        path.push(folder);
    }
    command.arg("--library-path").arg(path);
    // Multi-call programs select their function by argv[0].
    command.arg("--argv0").arg(program).arg(resolve(tree, program));
    Ok(command)
}

/// Returns the target of a link of the tree. Absolute links start at the tree's root.
fn resolve(tree: &Path, program: &str) -> PathBuf {
    let path = tree.join(program);
    match std::fs::read_link(&path) {
        Ok(target) => match target.strip_prefix("/") {
            Ok(from_root) => tree.join(from_root),
            Err(_) => path.parent().unwrap_or(tree).join(target),
        },
        Err(_) => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_asked_for_without_root_s_rights_and_by_others_than_debian() {
        let packages = Packages {
            suites: &["trixie", "trixie-backports"],
            release: Some("trixie-backports"),
            names: &["a", "b"],
        };
        let words = |archive, source: &str| -> Vec<String> {
            let options = ["Acquire::http::Proxy \"http://proxy.example\"".to_owned()];
            let words = arguments(&packages, source, &options, archive, Path::new("/out"));
            words.into_iter().map(|word| word.into_string().expect("text")).collect()
        };
        let signed = "[signed-by=/keys.gpg] http://mirror.example/debian";
        let asked = words(true, signed);
        assert_eq!(
            asked,
            [
                "--variant=extract",
                "--mode=chrootless",
                "--format=tar",
                "--include=a,b",
                "--aptopt=APT::Default-Release \"trixie-backports\"",
                "--aptopt=Acquire::http::Proxy \"http://proxy.example\"",
                "",
                "/out",
                "deb [signed-by=/keys.gpg] http://mirror.example/debian trixie main",
                "deb [signed-by=/keys.gpg] http://mirror.example/debian trixie-backports main",
            ]
        );
        let as_root = words(false, signed);
        assert!(as_root.contains(&"--format=directory".to_owned()));
        assert!(!as_root.iter().any(|word| word.starts_with("--mode")), "mmdebstrap's own choice");
    }

    #[test]
    fn archives_are_unpacked_without_devices() {
        let folder = Temporary::folder("debian").expect("a folder");
        let [from, into] = ["from", "into"].map(|name| folder.path().join(name));
        for (place, text) in [("usr/bin/program", "runs"), ("dev/null", "")] {
            let path = from.join(place);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let archive = folder.path().join("archive.tar");
        let packed = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&from).arg(".").status();
        assert!(packed.expect("tar").success());
        extract(&archive, &into).expect("unpacked");
        assert_eq!(std::fs::read_to_string(into.join("usr/bin/program")).expect("a file"), "runs");
        assert!(!into.join("dev/null").exists(), "only root can make devices");
    }
}
