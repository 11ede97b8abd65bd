//! Where the header comes from: Debian's package of the Linux 6.1 headers, which is never part of
//! this repository.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// When this environment variable is set (and not empty), a missing header is a failure and not a
/// skipped test.
pub const REQUIRE: &str = "MLX5_TESTS_REQUIRE";

/// The folder of headers, or `None` after saying in plain words that `what` is not compared.
///
/// # Panics
/// If the headers are not available although [`REQUIRE`] requires them.
pub fn folder_or_skip(what: &str) -> Option<PathBuf> {
    match folder() {
        Ok(folder) => Some(folder),
        Err(reason) => {
            let required = std::env::var_os(REQUIRE).is_some_and(|value| !value.is_empty());
            assert!(!required, "{REQUIRE} is set, but the Linux 6.1 headers cannot be had: {reason}");
            say(&format!("SKIPPED: {what} not compared, the Linux 6.1 headers cannot be had: {reason}"));
            None
        }
    }
}

/// Past the test harness, which shows the output of failed tests only.
fn say(line: &str) {
    // A closed standard error is ignored, because no reader is left.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The folder `include/linux/mlx5` of the header package, or why it cannot be had.
///
/// Sources in this order: `target/cache/linux-headers`, unpacked by an earlier run; the package as
/// installed on this machine; the package downloaded with `apt-get download` and unpacked (not
/// installed).
fn folder() -> Result<PathBuf, String> {
    // Tests run in parallel; one of them fetches the package.
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOLDER.get_or_init(find_or_download).clone()
}

fn find_or_download() -> Result<PathBuf, String> {
    let cache = target().join("cache").join("linux-headers");
    if let Some(found) = search(&cache.join("usr/src")).or_else(|| search(Path::new("/usr/src"))) {
        return Ok(found);
    }
    download(&cache)?;
    search(&cache.join("usr/src"))
        .ok_or_else(|| "the package holds no include/linux/mlx5/mlx5_ifc.h".to_owned())
}

/// The build's target folder: `CARGO_TARGET_TMPDIR` is a folder inside it.
fn target() -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().unwrap_or(tmp).to_path_buf()
}

fn search(sources: &Path) -> Option<PathBuf> {
    fs::read_dir(sources)
        .ok()?
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("linux-headers-6.1") && name.ends_with("-common")
        })
        .map(|entry| entry.path().join("include/linux/mlx5"))
        .filter(|folder| folder.join("mlx5_ifc.h").is_file())
        .max_by_key(|folder| version(&folder.to_string_lossy()))
}

/// The numbers in a package's name, so that 6.1.0-9 comes before 6.1.0-48.
fn version(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn versions_are_numbers() {
    let newest =
        ["linux-headers-6.1.0-9-common", "linux-headers-6.1.0-48-common", "linux-headers-6.1.0-10-common"];
    assert_eq!(newest.into_iter().max_by_key(|name| version(name)), Some(newest[1]));
}

fn download(cache: &Path) -> Result<(), String> {
    fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    // Two test processes at once unpack each into a folder of its own; the first to finish wins.
    let work = cache.join(format!("download-{}", std::process::id()));
    fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let done = unpack(cache, &work);
    // Only what this run made; the unpacked tree has been moved away.
    let _ = fs::remove_dir_all(&work);
    done
}

fn unpack(cache: &Path, work: &Path) -> Result<(), String> {
    let state = Apt::new(work)?;
    let name = match state.newest()? {
        Some(name) => name,
        None => {
            state.update()?;
            state.newest()?.ok_or("apt knows no package linux-headers-6.1*-common")?
        }
    };
    say(&format!("downloading {name} to compare the layouts with its headers"));
    state.run("apt-get", &["download", &name])?;
    let deb = fs::read_dir(work)
        .map_err(|error| error.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .ok_or_else(|| format!("apt-get download left no package {name}"))?;
    let tree = work.join("tree");
    let output = Command::new("dpkg-deb")
        .arg("-x")
        .args([&deb, &tree])
        .output()
        .map_err(|error| format!("dpkg-deb: {error}"))?;
    if !output.status.success() {
        return Err(format!("dpkg-deb -x: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    match fs::rename(tree.join("usr"), cache.join("usr")) {
        Err(_) if search(&cache.join("usr/src")).is_some() => Ok(()),
        moved => moved.map_err(|error| format!("{}: {error}", cache.display())),
    }
}

/// Runs apt in the working folder, with package lists of its own when the machine's are empty.
struct Apt<'a> {
    work: &'a Path,
    own_lists: std::cell::Cell<bool>,
}

impl<'a> Apt<'a> {
    fn new(work: &'a Path) -> Result<Self, String> {
        let lists = work.join("lists/partial");
        fs::create_dir_all(&lists).map_err(|error| format!("{}: {error}", lists.display()))?;
        Ok(Self { work, own_lists: std::cell::Cell::new(false) })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.current_dir(self.work).args(["-q", "-o", "APT::Sandbox::User=root"]);
        if self.own_lists.get() {
            for (option, name) in [
                ("Dir::State::lists", "lists"),
                ("Dir::Cache::pkgcache", "pkgcache.bin"),
                ("Dir::Cache::srcpkgcache", "srcpkgcache.bin"),
            ] {
                command.arg("-o").arg(format!("{option}={}", self.work.join(name).display()));
            }
            command.args(["-o", "Debug::NoLocking=1"]);
        }
        let output = command
            .args(arguments)
            .env("LC_ALL", "C")
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            return Err(format!("{program} {}: {last}", arguments.join(" ")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Fetches package lists into the working folder; needs no privilege and leaves the machine's
    /// lists alone.
    fn update(&self) -> Result<(), String> {
        self.own_lists.set(true);
        self.run("apt-get", &["update"]).map(|_| ())
    }

    /// The newest of the packages that carry the headers.
    fn newest(&self) -> Result<Option<String>, String> {
        let found = self.run("apt-cache", &["search", "--names-only", r"^linux-headers-6\.1\..*-common$"])?;
        let names = found.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.max_by_key(|name| version(name)).map(str::to_owned))
    }
}
