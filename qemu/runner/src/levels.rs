//! `cargo xtask test` and `cargo xtask bench`: levels of tests, each a set of cargo calls.

use crate::cargo;
use crate::conditions::{LONG_VARIABLE, SKIPPED, required, skip};
use crate::failures::{self, Failure};
use crate::features;
use crate::linux::judge;
use crate::setup;
use rdma_lab::error::{Error, Result};
use rdma_lab::linux::{self, Kernel, Recipe};
use rdma_lab::process::Supervised;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A level of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Formatting, clippy on the host and on bare metal, documentation, packages, import circles,
    /// visible fields, prose.
    Lint,
    /// The libraries build without std for both bare-metal targets.
    NoStd,
    /// Unit tests of every package.
    Unit,
    /// The full stack on the model in one process: the target `in_process` of the package `tests`.
    InProcess,
    /// The unikernel under QEMU: the target `boot`.
    Boot,
    /// Foreign programs that check the HCA and captures: the target `oracle`.
    Oracle,
    /// Unmodified Linux guests: the target `linux`.
    Linux,
    /// The libraries' unit tests and a short world under Miri.
    Miri,
}

/// Levels by name.
const NAMES: [(&str, Level); 8] = [
    ("lint", Level::Lint),
    ("no-std", Level::NoStd),
    ("unit", Level::Unit),
    ("in-process", Level::InProcess),
    ("boot", Level::Boot),
    ("oracle", Level::Oracle),
    ("linux", Level::Linux),
    ("miri", Level::Miri),
];

/// Levels that run if the user names none.
pub const DEFAULT: [Level; 6] =
    [Level::NoStd, Level::Unit, Level::InProcess, Level::Boot, Level::Oracle, Level::Linux];

impl Level {
    fn name(self) -> &'static str {
        NAMES.iter().find(|(_, level)| *level == self).map_or("", |(name, _)| name)
    }

    /// Returns the level's test target in the package `tests`, if it has one.
    fn target(self) -> Option<&'static str> {
        match self {
            Self::InProcess => Some("in_process"),
            Self::Boot => Some("boot"),
            Self::Oracle => Some("oracle"),
            Self::Linux => Some("linux"),
            Self::Lint | Self::NoStd | Self::Unit | Self::Miri => None,
        }
    }

    /// Prepares the level's requirements that a machine may lack. Doing it before the tests run
    /// shows the progress, which tests would hide.
    fn prepare(self) -> Result<()> {
        match self {
            Self::Boot => setup::qemu().map(drop),
            Self::Oracle => {
                setup::program("tshark", "tshark")?;
                setup::qemu()?;
                let recipes = [Recipe::new(Kernel::V6_1), judge::programs(Kernel::Backports)?];
                recipes.iter().try_for_each(|recipe| linux::image(recipe).map(drop))
            }
            Self::Miri => setup::miri(),
            Self::Linux => {
                setup::qemu()?;
                let plain = Kernel::RELEASES.map(Recipe::new);
                let programs = [Kernel::V6_1, Kernel::Backports].map(judge::programs);
                let mut recipes = plain.into_iter().map(Ok).chain(programs);
                recipes.try_for_each(|recipe| linux::image(&recipe?).map(drop))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        NAMES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, level)| *level)
            .ok_or_else(|| Error::Usage(format!("unknown test level {text}; there are {}", names())))
    }
}

/// Returns the names of all levels.
#[must_use]
pub fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

/// Libraries for embedders.
const LIBRARIES: [&str; 8] =
    ["ib-types", "mlx5-prm", "driver-mlx", "platform-uefi", "ib-mgmt", "ib-port", "dat-nostd", "rds-nostd"];

/// Published crates.
const PUBLISHED: [&str; 15] = [
    "ib-types",
    "mlx5-prm",
    "driver-mlx",
    "vfio-functions",
    "platform-linux",
    "platform-uefi",
    "ib-mgmt",
    "ib-port",
    "dat-nostd",
    "rds-nostd",
    "rdma-fabric",
    "hca-model",
    "hca-serve",
    "unikernel",
    "rdma-lab",
];

/// Environment variable with the report file of a bench.
pub const BENCH_REPORT_VARIABLE: &str = "MLX5_BENCH_REPORT";

/// Packages for which cargo resolves features when it builds a target of the package `tests`. Equal
/// to those of the unit level, so that both levels share one build.
const TEST_SELECTION: &str = "--workspace";

/// Numbers of passed, failed and skipped tests. Steps that are not tests count too.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Output of the failed tests.
    failures: Vec<Failure>,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 { write!(f, ", {} skipped", self.skipped) } else { Ok(()) }
    }
}

impl Count {
    /// Count of a passed step.
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0, failures: Vec::new() };
    /// Count of a failed step.
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0, failures: Vec::new() };

    /// Returns whether a test or step failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed > 0
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// Returns the output of failed tests, a paragraph for each.
    pub(crate) fn failures(&self) -> String {
        self.failures.iter().map(|failure| format!("{failure}\n")).collect()
    }

    /// Subtracts skipped tests from the passed ones. The test harness counts them as passed.
    fn without_skipped(mut self) -> Self {
        self.passed = self.passed.saturating_sub(self.skipped);
        self
    }

    /// Parses a line of Rust's test harness.
    fn from_line(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |label: &str| {
            let before = rest.split(label).next()?;
            before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        Some(Self { passed: number(" passed")?, failed: number(" failed")?, ..Self::default() })
    }
}

/// Runs `levels` and prints a last line `N passed, N failed`, with the number of skipped tests if
/// any.
///
/// # Errors
/// A test or step failed. All others have still run.
pub fn test(levels: &[Level], long: bool) -> Result<()> {
    let total = run(levels, long)?;
    println!("{}{total}", total.failures());
    if total.failed() { Err(Error::Program("there were failures".into())) } else { Ok(()) }
}

/// Prepares the requirements of all levels. Errors are ignored, because the level that needs a
/// requirement tries again.
pub(crate) fn prepare() {
    for level in DEFAULT {
        let _ = level.prepare();
    }
}

/// Runs `levels` and returns the counts.
///
/// # Errors
/// A level cannot start.
pub(crate) fn run(levels: &[Level], long: bool) -> Result<Count> {
    let started = Instant::now();
    // The unit level needs the targets because a unikernel test checks that wrong code is rejected.
    let bare_metal = [Level::Boot, Level::Oracle, Level::Linux, Level::NoStd, Level::Lint, Level::Unit];
    if levels.iter().any(|level| bare_metal.contains(level)) {
        setup::rust_targets()?;
    }
    let mut total = Count::default();
    for (number, &level) in (1..).zip(levels) {
        println!("level {} ({number} of {})", level.name(), levels.len());
        let began = Instant::now();
        let count = match level.prepare() {
            Ok(()) => run_level(level, long)?,
            Err(error @ Error::Missing { .. }) if !required() => {
                skip(&format!("level {}: {error}", level.name()));
                Count { skipped: 1, ..Count::default() }
            }
            Err(error) => return Err(error),
        };
        println!("level {}: {count}, {:.0} s", level.name(), began.elapsed().as_secs_f64());
        total.add(count);
    }
    println!("all levels in {:.0} s", started.elapsed().as_secs_f64());
    Ok(total)
}

/// Runs the demonstration's workload in one process on a faulty fabric, with all its seeds. Other
/// full lengths take too long for each change.
///
/// # Errors
/// Cargo cannot be started.
pub(crate) fn demonstration() -> Result<Count> {
    let count =
        cargo(&["test", "--quiet", TEST_SELECTION, "--test", "in_process", "--", "demo::"], true, "")?;
    // A filter without matching tests would pass.
    Ok(if count.passed == 0 { Count::FAILED } else { count })
}

fn run_level(level: Level, long: bool) -> Result<Count> {
    let run = |arguments: Vec<String>, beside_others: bool| {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let call = format!("level {}: cargo {}", level.name(), words.join(" "));
        println!("{call}");
        let began = Instant::now();
        let package = words.iter().skip_while(|word| **word != "--package").nth(1);
        let prefix = package.filter(|_| beside_others).map(|name| format!("{name}: "));
        let count = cargo(&words, long, &prefix.unwrap_or_default())?;
        println!("{call}: {:.0} s", began.elapsed().as_secs_f64());
        Ok(count)
    };
    let mut calls = commands(level, long);
    if level == Level::Lint {
        calls.extend(features::calls(&cargo::metadata()?));
    }
    let counts: Vec<Result<Count>> = if level == Level::Miri {
        // An interpreter uses one processor.
        std::thread::scope(|scope| {
            let runs: Vec<_> = calls.into_iter().map(|call| scope.spawn(|| run(call, true))).collect();
            runs.into_iter().map(|run| run.join().unwrap_or(Ok(Count::FAILED))).collect()
        })
    } else {
        calls.into_iter().map(|call| run(call, false)).collect()
    };
    let mut total = Count::default();
    for count in counts {
        total.add(count?);
    }
    Ok(total)
}

/// Returns the cargo calls of a level.
fn commands(level: Level, long: bool) -> Vec<Vec<String>> {
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let each = |option: &str, names: &[&str]| -> String {
        names.iter().map(|name| format!("{option} {name}")).collect::<Vec<_>>().join(" ")
    };
    let packages = |names: &[&str]| each("--package", names);
    let libraries = packages(&LIBRARIES);
    match level {
        // Packages of one selection share their builds; a second selection may differ in features
        // and then compiles everything again.
        Level::Lint => vec![
            words("fmt --all --check"),
            words("clippy --workspace --all-targets -- -D warnings"),
            words(&format!(
                "clippy --package kernel --package unikernel --package workload --package freestanding --package driver-mlx --package dat-nostd --target {} -- -D warnings",
                setup::TARGETS[0]
            )),
            words(&format!("clippy --package efi --target {} -- -D warnings", setup::TARGETS[2])),
            // The published crates with the guides, then all others.
            words("run --quiet --package checks -- docs"),
            words(&format!("doc --workspace --exclude kernel {} --no-deps", each("--exclude", &PUBLISHED))),
            // Building each package takes minutes.
            words(&format!(
                "package --quiet {} --allow-dirty {}",
                if long { "" } else { "--no-verify" },
                packages(&PUBLISHED)
            )),
            words("run --quiet --package checks -- lint"),
        ],
        // The images have all libraries for their targets.
        Level::NoStd => vec![
            words(&format!("build {libraries} --target {}", setup::TARGETS[1])),
            words(&format!("build --release --package kernel --target {}", setup::TARGETS[0])),
            words(&format!("build --release --package efi --target {}", setup::TARGETS[2])),
        ],
        // More threads than processors, because C programs wait most of the time.
        // The second call runs DAT's tests on Ethernet ports (`harness::net::usual_card`).
        Level::Unit => vec![
            words("test --workspace --exclude tests -- --test-threads=4"),
            words(
                "test --workspace --exclude tests --test all --test errors --config env.RDMA_MEDIUM=\"ethernet\" -- --test-threads=4",
            ),
        ],
        Level::InProcess | Level::Boot | Level::Oracle | Level::Linux => {
            let target = level.target().unwrap_or_default();
            // More threads than processors, because guests wait for timers and for each other.
            let threads = match level {
                Level::InProcess => "",
                // Guests have two processors each.
                Level::Linux => " -- --test-threads=2",
                _ => " -- --test-threads=3",
            };
            let mut calls = vec![words(&format!("test {TEST_SELECTION} --test {target}{threads}"))];
            if level == Level::InProcess {
                // IP and RDS on Ethernet ports: a third of RDS's tests, or all.
                let which = if long { "ip:: rds::" } else { ROCE_MODULES };
                calls.push(words(&format!(
                    "test {TEST_SELECTION} --test {target} --config env.RDMA_MEDIUM=\"ethernet\" -- {which}"
                )));
            }
            calls
        }
        // A short world, and the libraries with unsafe code. All other crates forbid it.
        Level::Miri => ["harness --test short", "driver-mlx --lib", "dat-nostd --lib"]
            .map(|what| words(&format!("+{} miri test --package {what}", setup::MIRI_TOOLCHAIN)))
            .to_vec(),
    }
}

/// Modules of the in-process tests that every run repeats on Ethernet ports: those in which
/// connections begin, break and end.
const ROCE_MODULES: &str = "ip:: rds::connect:: rds::connections:: rds::ends:: rds::features:: rds::lives:: rds::local:: rds::messages:: rds::rdma:: rds::socket::";

/// Flags for Miri.
const MIRI_FLAGS: [&str; 4] = [
    // Device addresses are integers cast to pointers.
    "-Zmiri-permissive-provenance",
    // DMA memory has atomic accesses of different sizes to the same bytes. Miri finds their races
    // but cannot emulate stale values.
    "-Zmiri-disable-weak-memory-emulation",
    // Miri isolates the host: random tests must not read failure files, and must run few cases.
    "-Zmiri-env-set=PROPTEST_DISABLE_FAILURE_PERSISTENCE=true",
    "-Zmiri-env-set=PROPTEST_CASES=2",
];

/// Time limit of a cargo call.
const CARGO_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Runs cargo, forwards its output with `prefix` before each line, and counts. A call without tests
/// counts as one.
fn cargo(arguments: &[&str], long: bool, prefix: &str) -> Result<Count> {
    let is_miri = arguments.get(1) == Some(&"miri");
    let mut command = if is_miri { cargo::background() } else { cargo::command() };
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Without a terminal, cargo would print no colours.
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("CARGO_TERM_COLOR").is_none()
    {
        command.env("CARGO_TERM_COLOR", "always");
    }
    if long {
        command.env(LONG_VARIABLE, "1");
    }
    if is_miri {
        command.env("MIRIFLAGS", MIRI_FLAGS.join(" "));
    }
    if arguments.first() == Some(&"doc") {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    let mut child = Supervised::spawn(command)?;
    let prefix = prefix.to_owned();
    let of_errors = prefix.clone();
    let errors = child
        .streams()
        .stderr
        .take()
        .map(|stream| std::thread::spawn(move || pass_errors_on(stream, &of_errors)));
    let mut count = Count::default();
    let mut failures = failures::Reader::default();
    let mut tests = false;
    if let Some(output) = child.streams().stdout.take() {
        for line in BufReader::new(output).split(b'\n').map_while(std::result::Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{prefix}{line}");
            failures.line(&line);
            if let Some(found) = Count::from_line(&line) {
                tests = true;
                count.add(found);
            }
        }
    }
    count.failures = failures.into_failures();
    count.skipped = errors.and_then(|thread| thread.join().ok()).unwrap_or(0);
    count = count.without_skipped();
    let success = child.wait_until(Instant::now() + CARGO_LIMIT)?.is_some_and(|status| status.success());
    match (success, tests) {
        (true, true) => {}
        (true, false) => count.passed += 1,
        // A failed build, or a harness that exited without its result line.
        (false, _) => count.failed = count.failed.max(1),
    }
    Ok(count)
}

/// Forwards a child's standard error. Returns the number of lines that report a skipped test.
fn pass_errors_on(stream: impl std::io::Read, prefix: &str) -> u64 {
    let mut skipped = 0;
    for line in BufReader::new(stream).split(b'\n').map_while(std::result::Result::ok) {
        let line = String::from_utf8_lossy(&line);
        skipped += u64::from(line.starts_with(SKIPPED));
        eprintln!("{prefix}{line}");
    }
    skipped
}

/// A bench of the package `tests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Driver, DAT and RDS.
    Instructions,
    /// The emulated HCA.
    Model,
}

/// Runs a bench of the package `tests`, which writes its JSON to `report`.
///
/// # Errors
/// The bench fails.
pub fn bench(bench: Bench, report: Option<&Path>) -> Result<()> {
    setup::program("valgrind", "valgrind")?;
    let mut command = cargo::command();
    let name = match bench {
        Bench::Instructions => "instructions",
        Bench::Model => "model",
    };
    command.args(["bench", "--package", "benches", "--bench", name]);
    if let Some(path) = report {
        let absolute = std::path::absolute(path).map_err(|source| Error::Io {
            action: "cannot write",
            path: path.to_path_buf(),
            source,
        })?;
        // Check the output file first: the bench takes minutes.
        std::fs::File::create(&absolute).map_err(|source| Error::Io {
            action: "cannot write",
            path: absolute.clone(),
            source,
        })?;
        command.env(BENCH_REPORT_VARIABLE, absolute);
    }
    let mut child = Supervised::spawn(command)?;
    match child.wait_until(Instant::now() + CARGO_LIMIT)? {
        Some(status) if status.success() => Ok(()),
        _ => Err(Error::Program("the benches failed".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s";
        let count = Count { passed: 12, failed: 3, ..Count::default() };
        assert_eq!(Count::from_line(line), Some(count));
        assert_eq!(Count::from_line("test foo ... ok"), None);
    }

    #[test]
    fn skipped_tests_are_counted_and_are_not_among_the_passed() {
        let errors =
            b"   Compiling tests\nSKIPPED: no QEMU\nwarning: SKIPPED: not at the start\nSKIPPED: no tshark\n";
        assert_eq!(pass_errors_on(&errors[..], ""), 2);
        let count = Count { passed: 5, failed: 1, skipped: 2, ..Count::default() }.without_skipped();
        assert_eq!(count.to_string(), "3 passed, 1 failed, 2 skipped");
        assert_eq!(Count { passed: 5, ..Count::default() }.to_string(), "5 passed, 0 failed");
    }

    #[test]
    fn levels_choose_their_targets_and_unknown_ones_are_named() {
        let boot = ["test", "--workspace", "--test", "boot", "--", "--test-threads=3"];
        assert_eq!(commands(Level::Boot, false), [boot]);
        let both_media = commands(Level::InProcess, false);
        assert_eq!(both_media[0], ["test", "--workspace", "--test", "in_process"]);
        assert_eq!(both_media[1][4..6], ["--config", "env.RDMA_MEDIUM=\"ethernet\""]);
        assert!(
            both_media[1].len() < 20 && commands(Level::InProcess, true)[1].ends_with(&["rds::".to_owned()])
        );
        for (name, level) in NAMES {
            assert_eq!(name.parse::<Level>().ok(), Some(level));
        }
        let refused = "quick".parse::<Level>().expect_err("unknown").to_string();
        assert!(refused.contains("unknown test level quick") && refused.contains("in-process"), "{refused}");
    }

    #[test]
    fn published_crates_are_those_that_manifests_publish() {
        let metadata = cargo::metadata().expect("cargo metadata");
        let packages = metadata["packages"].as_array().expect("packages");
        // `publish = false` is an empty list of registries, no such key is null.
        let published = packages.iter().filter(|package| package["publish"].is_null());
        let mut published: Vec<&str> = published.filter_map(|package| package["name"].as_str()).collect();
        published.sort_unstable();
        let mut listed = PUBLISHED.to_vec();
        listed.sort_unstable();
        assert_eq!(published, listed);
        for package in packages.iter().filter(|package| package["publish"].is_null()) {
            // The address of the repository is set for all in the workspace.
            for key in ["description", "license", "rust_version", "repository"] {
                assert!(package[key].is_string(), "{}: no {key}", package["name"]);
            }
            for key in ["keywords", "categories"] {
                let list = package[key].as_array().map_or(0, Vec::len);
                assert!((1..=5).contains(&list), "{}: {list} {key}", package["name"]);
            }
        }
    }

    #[test]
    fn each_target_of_the_package_of_tests_is_a_levels() {
        let metadata = cargo::metadata().expect("cargo metadata");
        let tests = metadata["packages"]
            .as_array()
            .and_then(|packages| packages.iter().find(|package| package["name"] == "tests"))
            .expect("the package of tests");
        let mut targets: Vec<&str> = tests["targets"]
            .as_array()
            .expect("targets")
            .iter()
            .filter(|target| target["kind"][0] == "test")
            .filter_map(|target| target["name"].as_str())
            .collect();
        targets.sort_unstable();
        let mut levels: Vec<&str> = NAMES.iter().filter_map(|(_, level)| level.target()).collect();
        levels.sort_unstable();
        assert_eq!(targets, levels);
    }
}
